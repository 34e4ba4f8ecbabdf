"""What the server refuses before there is a request: URLs and headers without end, connections too many; TLS."""

import json
import socket
import ssl
import subprocess
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from anllm.config import SchedulerConfig, SecurityConfig
from anllm.errors import ConfigError
from anllm.server.connection import MAX_HEAD_BYTES, MAX_URL_BYTES
from anllm.server.tls import tls_context
from fake_server import RealServer, make_runner
from server_harness import chat_body
from serving import PATIENCE_S, Gate

HEALTH = b"GET /health HTTP/1.1\r\nhost: localhost\r\n\r\n"


@pytest.fixture(scope="module")
def server() -> Iterator[RealServer]:
    yield from started(SecurityConfig())


def started(security: SecurityConfig) -> Iterator[RealServer]:
    gate = Gate()
    with RealServer(make_runner(before_run=gate), gate, SchedulerConfig(), security=security).running() as server:
        yield server


def answer(connection: socket.socket) -> tuple[int, dict[str, str], bytes]:
    """Of a connection that is closed after it."""
    received = b""
    try:
        while part := connection.recv(1 << 16):
            received += part
    except ConnectionResetError:  # it did not read all that we sent
        assert received
    head, _, body = received.partition(b"\r\n\r\n")
    lines = head.decode("ascii").split("\r\n")
    headers = dict(line.lower().split(": ", 1) for line in lines[1:])
    return int(lines[0].split()[1]), headers, body


def assert_refused(connection: socket.socket, status: int, code: str) -> None:
    found, headers, body = answer(connection)
    assert found == status, body
    assert headers["content-type"] == "application/json" and headers["x-request-id"]
    assert json.loads(body)["error"]["code"] == code


def test_the_longest_url_and_headers_pass(server: RealServer) -> None:
    with server.http() as http:
        assert http.get("/v1/models/" + "x" * (MAX_URL_BYTES - 11)).status_code == 404
        assert http.get("/health", headers={"x-long": "x" * (MAX_HEAD_BYTES - 1000)}).status_code == 200
        assert http.get("/health", headers={f"x-{i}": "x" * 100 for i in range(500)}).status_code == 200
        assert http.get("/health").status_code == 200, "each request has bounds of its own"


@pytest.mark.parametrize("piece_bytes", [100, 1000, 1 << 20])
def test_a_url_without_end_is_414(server: RealServer, piece_bytes: int) -> None:
    with server.connect() as connection:
        connection.sendall(b"GET /")
        send_until_closed(connection, b"x" * piece_bytes, MAX_URL_BYTES + piece_bytes)
        assert_refused(connection, 414, "url_too_long")


@pytest.mark.parametrize("piece", [b"x" * 1000, b"x-a: b\r\n" * 100, b"x-long: " + b"y" * 1000 + b"\r\n"])
@pytest.mark.parametrize("start", [b"", b"x: "])
def test_headers_without_end_are_431(server: RealServer, piece: bytes, start: bytes) -> None:
    with server.connect() as connection:
        connection.sendall(b"GET /health HTTP/1.1\r\nhost: localhost\r\n" + start)
        send_until_closed(connection, piece, 4 * MAX_HEAD_BYTES)
        assert_refused(connection, 431, "headers_too_large")


@pytest.mark.parametrize("piece", [b"x" * 1000, b"x-a: b\r\n" * 100])
def test_trailers_without_end_are_431(server: RealServer, piece: bytes) -> None:
    with server.connect() as connection:
        connection.sendall(
            b"POST /v1/completions HTTP/1.1\r\nhost: localhost\r\ntransfer-encoding: chunked\r\n\r\n"
            b"2\r\n{}\r\n0\r\nx: y\r\n"
        )
        send_until_closed(connection, piece, 4 * MAX_HEAD_BYTES)
        assert_refused(connection, 431, "headers_too_large")


def test_a_long_body_is_no_header(server: RealServer) -> None:
    body = json.dumps(chat_body(max_tokens=1, x="y" * 10 * MAX_HEAD_BYTES)).encode()
    with server.http() as http:
        for _ in range(2):
            sent = http.post("/v1/chat/completions", content=iter([body[:70_000], body[70_000:]]), headers=JSON)
            assert sent.status_code == 200
            assert http.post("/v1/chat/completions", content=body, headers=JSON).status_code == 200


JSON = {"content-type": "application/json"}


def send_until_closed(connection: socket.socket, piece: bytes, most: int) -> None:
    """Till the other side has had enough; it must before `most` bytes came, and what the kernel holds."""
    try:
        for _ in range(0, most, len(piece)):
            connection.sendall(piece)
    except (BrokenPipeError, ConnectionResetError):
        pass


# -- connections -------------------------------------------------------------------------------------------------------


def test_a_connection_too_many_is_503_and_supervisors_are_answered() -> None:
    for server in started(SecurityConfig(max_connections=2)):
        held = [server.connect() for _ in range(2)]
        for connection in held:  # so that the server knows of it
            connection.sendall(HEALTH)
            assert connection.recv(1 << 16).startswith(b"HTTP/1.1 200")
        with httpx.Client(base_url=server.url, timeout=PATIENCE_S) as http:
            refused = http.get("/v1/models")
            assert refused.status_code == 503 and int(refused.headers["retry-after"]) >= 1
            assert refused.json()["error"]["code"] == "service_unavailable"
            assert "2 connections" in refused.json()["error"]["message"]
            assert refused.headers["x-request-id"] and refused.headers["connection"] == "close"
            assert http.get("/health").status_code == 200
            for connection in held:
                connection.close()
            server.until(lambda: http.get("/v1/models").status_code == 200)


# -- TLS ---------------------------------------------------------------------------------------------------------------


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
