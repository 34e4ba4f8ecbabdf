"""Where a server is, and how to say who asks."""

from __future__ import annotations

from dataclasses import dataclass
from urllib.parse import urlsplit

from anllm.errors import ConfigError

DEFAULT_URL = "http://127.0.0.1:8000"


@dataclass(frozen=True, slots=True)
class Address:
    """prefix: what stands before /v1 in paths, "" as a rule. The key never shows in a repr."""

    is_tls: bool
    host: str
    port: int
    prefix: str
    api_key: str | None = None

    @classmethod
    def parse(cls, url: str, api_key: str | None = None) -> Address:
        """From http://host:port, with or without /v1 behind. Raises ConfigError."""
        parts = urlsplit(url if "://" in url else f"http://{url}")
        try:
            port = parts.port
        except ValueError:
            port = -1
        if parts.scheme not in ("http", "https") or not parts.hostname or port == -1 or parts.query:
            raise ConfigError(f"url: {url!r} is no address of a server; give one such as {DEFAULT_URL}.")
        if api_key is not None and not (api_key.isascii() and api_key.isprintable()):
            raise ConfigError("api_key: a key has printable ASCII characters only; check ANLLM_API_KEY.")
        is_tls = parts.scheme == "https"
        prefix = parts.path.rstrip("/").removesuffix("/v1")
        return cls(is_tls, parts.hostname, port or (443 if is_tls else 80), prefix, api_key)

    @property
    def url(self) -> str:
        """Without /v1."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"http{'s' * self.is_tls}://{host}:{self.port}{self.prefix}"

    @property
    def headers(self) -> dict[str, str]:
        key = {"Authorization": f"Bearer {self.api_key}"} if self.api_key else {}
        return {"Content-Type": "application/json", **key}

    def __repr__(self) -> str:
        return f"Address({self.url!r})"
