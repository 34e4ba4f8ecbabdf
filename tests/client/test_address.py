from __future__ import annotations

import pytest

from anllm.client.address import Address
from anllm.errors import ConfigError


@pytest.mark.parametrize(
    ("url", "is_tls", "host", "port", "prefix", "written"),
    [
        ("http://127.0.0.1:8000", False, "127.0.0.1", 8000, "", "http://127.0.0.1:8000"),
        ("http://127.0.0.1:8000/v1/", False, "127.0.0.1", 8000, "", "http://127.0.0.1:8000"),
        ("localhost:9", False, "localhost", 9, "", "http://localhost:9"),
        ("https://host/models/v1", True, "host", 443, "/models", "https://host:443/models"),
        ("http://[::1]:8000", False, "::1", 8000, "", "http://[::1]:8000"),
    ],
)
def test_addresses(url: str, is_tls: bool, host: str, port: int, prefix: str, written: str) -> None:
    address = Address.parse(url)
    assert (address.is_tls, address.host, address.port, address.prefix) == (is_tls, host, port, prefix)
    assert address.url == written


@pytest.mark.parametrize("url", ["ftp://host", "http://", "http://host:99999", "http://host:x", "http://h/?a=b", ""])
def test_what_is_no_address_is_refused(url: str) -> None:
    with pytest.raises(ConfigError, match="is no address of a server; give one such as"):
        Address.parse(url)


def test_the_key_is_sent_and_never_shown() -> None:
    address = Address.parse("http://h:1", "sk-secret")
    assert address.headers["Authorization"] == "Bearer sk-secret"
    assert "secret" not in repr(address)
    assert "Authorization" not in Address.parse("http://h:1").headers
    with pytest.raises(ConfigError, match="printable ASCII") as refused:
        Address.parse("http://h:1", "a\r\nb: c")
    assert "b: c" not in str(refused.value)
