"""The API keys that are valid now, and whose they are. Keys are kept as digests and shown nowhere.

Knows nothing of HTTP. Used in the event loop.
"""

from __future__ import annotations

import hashlib
import hmac
import logging
import os
import re
import stat
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

from anllm.config import is_api_key
from anllm.errors import ConfigError

logger = logging.getLogger(__name__)

LOOK_EVERY_S = 1.0
MIN_CHARS = 16  # 96 bits, if drawn from letters and digits; less is worth a warning
MAX_FILE_BYTES = 1 << 20
_NAME = re.compile(r"[\w.@-]{1,64}", re.ASCII)


@dataclass(frozen=True, slots=True)
class ApiKey:
    """digest: SHA-256 of the key, so that comparing takes the same time whatever its length."""

    name: str
    digest: bytes


class ApiKeys:
    """Keys from the settings and from a file.

    The file has a key a line, or a name and a key; a line that begins with # says nothing. Keys with one name are one
    client. It is looked at again when somebody asks and a second has passed. One that is missing or broken then, or has
    no keys, changes nothing: the keys of before stay valid, and the log says so once.

    Raises ConfigError if it can't be read the first time.
    """

    def __init__(self, keys: Iterable[str], file: str | None, clock: Callable[[], float] = time.monotonic) -> None:
        self._own = tuple(_unnamed(key) for key in keys)
        self._file = None if file is None else Path(file)
        self._clock = clock
        self._looked_s = clock()
        self._seen = _fingerprint(self._file)
        self._has_failed = False
        self._keys = self._own if self._file is None else self._own + read_key_file(self._file)
        if self._file is not None:
            warn_if_others_can_read(self._file)

    def name_of(self, key: str) -> str | None:
        """Whose key it is; None if nobody's. In a time that says nothing about the valid ones."""
        self._refresh()
        digest = hashlib.sha256(key.encode("utf-8", "surrogateescape")).digest()
        found = None
        for known in self._keys:  # all of them, always
            if hmac.compare_digest(known.digest, digest) and found is None:
                found = known.name
        return found

    def _refresh(self) -> None:
        now_s = self._clock()
        if self._file is None or now_s - self._looked_s < LOOK_EVERY_S:
            return
        self._looked_s = now_s
        fingerprint = _fingerprint(self._file)
        if fingerprint == self._seen:
            return
        self._seen = fingerprint
        try:
            keys = read_key_file(self._file)
        except ConfigError as error:
            if not self._has_failed:
                logger.error("%s The keys of before stay valid.", error.message)
            self._has_failed = True
            return
        self._has_failed = False
        self._keys = self._own + keys
        logger.info("API keys were read again: %d now, of %s", len(self._keys), ", ".join(self._names()))
        warn_if_others_can_read(self._file)

    def _names(self) -> list[str]:
        return list(dict.fromkeys(key.name for key in self._keys))


def read_key_file(path: Path) -> tuple[ApiKey, ...]:
    """Raises ConfigError with path and line, never with what stands there."""
    try:
        with path.open("rb") as file:
            raw = file.read(MAX_FILE_BYTES + 1)
    except OSError as error:
        raise ConfigError(f"api_key_file: {path} can't be read: {error.strerror or error}.") from None
    if len(raw) > MAX_FILE_BYTES:
        raise ConfigError(f"api_key_file: {path} must have at most {MAX_FILE_BYTES} bytes.")
    try:
        lines = raw.decode("utf-8-sig").splitlines()
    except UnicodeDecodeError:
        raise ConfigError(f"api_key_file: {path} is not UTF-8 text.") from None
    keys = []
    for number, line in enumerate(lines, 1):
        if line.strip() and not line.lstrip().startswith("#"):
            keys.append(_read_line(line, f"api_key_file: line {number} of {path}"))
    if not keys:
        raise ConfigError(f"api_key_file: {path} has no key in it; write one a line, or a name and a key.")
    return tuple(keys)


def _read_line(line: str, place: str) -> ApiKey:
    match line.split():
        case [key] if is_api_key(key):
            return _unnamed(key)
        case [name, key] if is_api_key(key) and _NAME.fullmatch(name.removesuffix(":")):
            _warn_if_short(key, name)
            return ApiKey(name.removesuffix(":"), _digest(key))
    raise ConfigError(
        f"{place} must be a key, or a name and a key with a space between. A key is printable ASCII; a name has at "
        "most 64 letters, digits and .@_-"
    )


def _unnamed(key: str) -> ApiKey:
    """Named by its digest: the same at each start and in each line, and of no use to who reads the log."""
    digest = _digest(key)
    name = f"key-{digest.hex()[:8]}"
    _warn_if_short(key, name)
    return ApiKey(name, digest)


def _warn_if_short(key: str, name: str) -> None:
    if len(key) < MIN_CHARS:
        logger.warning(
            "The API key %s has fewer than %d characters and may be guessed; `openssl rand -hex 32` makes a good one.",
            name,
            MIN_CHARS,
        )


def _digest(key: str) -> bytes:
    return hashlib.sha256(key.encode()).digest()


def warn_if_others_can_read(path: Path) -> None:
    """Of a file with secrets, if the rights of its group or of everybody let them."""
    try:
        mode = path.stat().st_mode
    except OSError:
        return
    if mode & (stat.S_IRGRP | stat.S_IROTH):
        logger.warning("%s holds secrets, and other users of this machine can read it: run `chmod 600 %s`.", path, path)


def _fingerprint(path: Path | None) -> tuple[int, int, int] | None:
    """Changes when the file does; None if it is not there."""
    if path is None:
        return None
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size, found.st_ino
