"""HTTPS on a real port, with certificates that openssl makes; and what is wrong with certificates and keys."""

import ssl
import subprocess
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from anllm.config import SchedulerConfig, SecurityConfig
from anllm.errors import ConfigError
from anllm.server.tls import tls_context
from fake_server import RealServer, make_runner
from server_harness import chat_body
from serving import PATIENCE_S, Gate


def started(security: SecurityConfig) -> Iterator[RealServer]:
    gate = Gate()
    with RealServer(make_runner(before_run=gate), gate, SchedulerConfig(), security=security).running() as server:
        yield server


class Authority:
    """Makes certificates for 127.0.0.1, by openssl."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.certificate = folder / "ca.pem"
        self._key = folder / "ca.key"
        self._openssl(
            "req", "-x509", *self._new_key("ca"), "-subj", "/CN=test authority", "-out", str(self.certificate)
        )

    def issue(self, name: str) -> tuple[Path, Path]:
        """Certificate and key."""
        request, certificate = self.folder / f"{name}.csr", self.folder / f"{name}.pem"
        extensions = self.folder / "extensions"
        extensions.write_text("subjectAltName=IP:127.0.0.1,DNS:localhost\n")
        self._openssl("req", *self._new_key(name), "-subj", f"/CN={name}", "-out", str(request))
        self._openssl(
            *("x509", "-req", "-in", str(request), "-CA", str(self.certificate), "-CAkey", str(self._key)),
            *("-CAcreateserial", "-days", "2", "-extfile", str(extensions), "-out", str(certificate)),
        )
        return certificate, self.folder / f"{name}.key"

    def encrypted(self, key: Path, password: str) -> Path:
        protected = key.with_suffix(".enc")
        self._openssl("pkey", "-in", str(key), "-aes256", "-passout", f"pass:{password}", "-out", str(protected))
        protected.chmod(0o600)
        return protected

    def _new_key(self, name: str) -> list[str]:
        key = self.folder / f"{name}.key"
        return ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-keyout", str(key)]

    def _openssl(self, *arguments: str) -> None:
        subprocess.run(["openssl", *arguments], check=True, capture_output=True, timeout=30)


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("tls"))


def test_https_is_spoken_and_http_is_not(authority: Authority) -> None:
    certificate, key = authority.issue("server")
    for server in started(SecurityConfig(ssl_certfile=str(certificate), ssl_keyfile=str(key))):
        url = server.url.replace("http://", "https://")
        trusting = ssl.create_default_context(cafile=str(authority.certificate))
        with httpx.Client(base_url=url, verify=trusting, timeout=PATIENCE_S) as http:
            assert http.get("/health").json() == {"status": "ok"}
            with http.stream("POST", "/v1/chat/completions", json=chat_body(stream=True, max_tokens=20)) as response:
                assert response.read().endswith(b"data: [DONE]\n\n")
        with pytest.raises(httpx.TransportError):
            httpx.get(server.url + "/health", timeout=PATIENCE_S)
        with pytest.raises(httpx.ConnectError, match="certificate"):
            httpx.get(url + "/health", timeout=PATIENCE_S)
        old = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        old.load_verify_locations(authority.certificate)
        with pytest.warns(DeprecationWarning, match="TLSv1_1"):
            old.maximum_version = ssl.TLSVersion.TLSv1_1
        with pytest.raises(httpx.ConnectError):
            httpx.get(url + "/health", verify=old, timeout=PATIENCE_S)


def test_with_authorities_clients_need_a_certificate(authority: Authority) -> None:
    certificate, key = authority.issue("server")
    own, own_key = authority.issue("client")
    config = SecurityConfig(
        ssl_certfile=str(certificate), ssl_keyfile=str(key), ssl_ca_certs=str(authority.certificate)
    )
    for server in started(config):
        url = server.url.replace("http://", "https://")
        nameless = ssl.create_default_context(cafile=str(authority.certificate))
        with pytest.raises(httpx.TransportError):
            httpx.get(url + "/health", verify=nameless, timeout=PATIENCE_S)
        named = ssl.create_default_context(cafile=str(authority.certificate))
        named.load_cert_chain(own, own_key)
        assert httpx.get(url + "/health", verify=named, timeout=PATIENCE_S).status_code == 200


def test_a_key_with_a_password(authority: Authority) -> None:
    certificate, key = authority.issue("locked")
    locked = str(authority.encrypted(key, "geheim"))
    assert tls_context(SecurityConfig(ssl_certfile=str(certificate), ssl_keyfile=locked, ssl_keyfile_password="geheim"))
    with pytest.raises(ConfigError, match="is encrypted: set ssl_keyfile_password"):
        tls_context(SecurityConfig(ssl_certfile=str(certificate), ssl_keyfile=locked))
    with pytest.raises(ConfigError, match="does not fit") as error:
        tls_context(SecurityConfig(ssl_certfile=str(certificate), ssl_keyfile=locked, ssl_keyfile_password="falsch"))
    assert "falsch" not in error.value.message


def test_files_that_dont_fit_are_told_by_setting_and_path(authority: Authority, tmp_path: Path) -> None:
    certificate, key = map(str, authority.issue("one"))
    _, other_key = map(str, authority.issue("other"))
    text = tmp_path / "text.pem"
    text.write_text("no certificate")
    missing = str(tmp_path / "missing.pem")
    for config, words in (
        (SecurityConfig(ssl_certfile=missing), f"ssl_certfile: {missing} can't be read: No such file"),
        (SecurityConfig(ssl_certfile=certificate, ssl_keyfile=missing), f"ssl_keyfile: {missing} can't be read"),
        (SecurityConfig(ssl_certfile=certificate, ssl_keyfile=other_key), f"{other_key} does not belong"),
        (SecurityConfig(ssl_certfile=str(text), ssl_keyfile=key), "PEM form"),
        (SecurityConfig(ssl_certfile=certificate), "PEM form"),
        (SecurityConfig(ssl_certfile=certificate, ssl_keyfile=key, ssl_ca_certs=str(text)), "ssl_ca_certs"),
        (SecurityConfig(ssl_certfile=str(tmp_path), ssl_keyfile=key), "Is a directory"),
    ):
        with pytest.raises(ConfigError) as error:
            tls_context(config)
        assert words in error.value.message


def test_a_key_that_others_can_read_is_warned_of(authority: Authority, caplog: pytest.LogCaptureFixture) -> None:
    certificate, key = authority.issue("open")
    key.chmod(0o644)
    assert tls_context(SecurityConfig(ssl_certfile=str(certificate), ssl_keyfile=str(key)))
    assert "chmod 600" in caplog.text


def test_without_a_certificate_there_is_no_tls() -> None:
    assert tls_context(SecurityConfig()) is None
