"""HTTPS: certificate and key from files, checked before anything else is started."""

from __future__ import annotations

import ssl
from pathlib import Path

from anllm.config import SecurityConfig
from anllm.errors import ConfigError
from anllm.server.api_keys import warn_if_others_can_read


def tls_context(config: SecurityConfig) -> ssl.SSLContext | None:
    """None without a certificate. TLS 1.2 or later, with Python's choice of ciphers.

    Raises ConfigError with the setting and its file.
    """
    if config.ssl_certfile is None:
        return None
    for name in ("ssl_certfile", "ssl_keyfile", "ssl_ca_certs"):
        _check_file(name, getattr(config, name))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    _load_certificate(context, config, config.ssl_certfile)
    if config.ssl_ca_certs is not None:
        context.verify_mode = ssl.CERT_REQUIRED
        try:
            context.load_verify_locations(config.ssl_ca_certs)
        except ssl.SSLError as error:
            raise ConfigError(
                f"ssl_ca_certs: {config.ssl_ca_certs} must hold certificates in PEM form: {_reason(error)}."
            ) from None
    warn_if_others_can_read(Path(config.ssl_keyfile or config.ssl_certfile))
    return context


def _load_certificate(context: ssl.SSLContext, config: SecurityConfig, certfile: str) -> None:
    keyfile = config.ssl_keyfile or certfile
    password = config.ssl_keyfile_password
    was_asked = False

    def give_password() -> str:  # without one, OpenSSL would ask at the terminal
        nonlocal was_asked
        was_asked = True
        return password or ""

    try:
        context.load_cert_chain(certfile, config.ssl_keyfile, give_password)
    except ssl.SSLError as error:
        if was_asked and password is None:
            raise ConfigError(f"ssl_keyfile: the key in {keyfile} is encrypted: set ssl_keyfile_password.") from None
        if was_asked:
            raise ConfigError(f"ssl_keyfile_password does not fit the key in {keyfile}.") from None
        if "MISMATCH" in (error.reason or ""):
            raise ConfigError(
                f"ssl_keyfile: the key in {keyfile} does not belong to the certificate in {certfile}."
            ) from None
        raise ConfigError(
            f"ssl_certfile and ssl_keyfile must hold a certificate and its key in PEM form; {certfile} and {keyfile} "
            f"don't: {_reason(error)}."
        ) from None


def _check_file(name: str, path: str | None) -> None:
    if path is None:
        return
    try:
        with Path(path).open("rb") as file:
            file.read(1)
    except OSError as error:
        raise ConfigError(f"{name}: {path} can't be read: {error.strerror or error}.") from None


def _reason(error: ssl.SSLError) -> str:
    return (error.reason or str(error)).lower().replace("_", " ")
