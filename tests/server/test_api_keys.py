"""The key file: its form, reading it anew, and that no key is shown."""

import logging
import os
from pathlib import Path

import pytest

from anllm.config import SecurityConfig
from anllm.errors import ConfigError
from anllm.server.api_keys import LOOK_EVERY_S, MAX_FILE_BYTES, ApiKeys

ANN, BOB = "sk-ann-0123456789abcdef", "sk-bob-0123456789abcdef"


class Clock:
    def __init__(self) -> None:
        self.now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


def write(path: Path, text: str | bytes, mode: int = 0o600) -> None:
    """As an editor does it: another file takes the place of this one."""
    fresh = path.with_suffix(".new")
    fresh.write_bytes(text if isinstance(text, bytes) else text.encode())
    fresh.chmod(mode)
    os.replace(fresh, path)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "keys"


def test_a_key_a_line_with_a_name_or_without(file: Path) -> None:
    write(file, f"\ufeff# who may\n\n  ann {ANN}\r\nbob:\t{BOB}\n#old sk-x\n{ANN}x\n")
    keys = ApiKeys((), str(file))
    assert keys.name_of(ANN) == "ann"
    assert keys.name_of(BOB) == "bob"
    unnamed = keys.name_of(ANN + "x")
    assert unnamed is not None and unnamed.startswith("key-") and len(unnamed) == 12
    for wrong in ("", ANN[:-1], ANN + " ", "sk-x", "ann", "#old", "\u00e9", "\udce9", ANN * 10_000):
        assert keys.name_of(wrong) is None


def test_two_keys_of_one_name_are_one_client(file: Path) -> None:
    write(file, f"ann {ANN}\nann {BOB}\n")
    keys = ApiKeys((), str(file))
    assert keys.name_of(ANN) == keys.name_of(BOB) == "ann"


def test_keys_of_the_settings_hold_beside_those_of_the_file(file: Path) -> None:
    write(file, f"bob {BOB}")
    keys = ApiKeys((ANN,), str(file))
    assert keys.name_of(ANN) == ApiKeys((ANN,), None).name_of(ANN) != keys.name_of(BOB) == "bob"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "has no key"),
        ("# only this\n", "has no key"),
        (f"ann {ANN} x\n", "line 1"),
        (f"{ANN}\nann {BOB}\u00e9\n", "line 2"),
        (f"an/n {ANN}", "line 1"),
        (b"\xff\xfe", "not UTF-8"),
        (b"k\n" * MAX_FILE_BYTES, "at most"),
    ],
)
def test_a_broken_file_stops_the_start_and_shows_no_key(file: Path, text: str | bytes, words: str) -> None:
    write(file, text)
    with pytest.raises(ConfigError, match=words) as error:
        ApiKeys((), str(file))
    assert "sk-" not in error.value.message


def test_a_missing_file_stops_the_start(file: Path) -> None:
    with pytest.raises(ConfigError, match="can't be read: No such file"):
        ApiKeys((ANN,), str(file))


def test_a_changed_file_is_read_again_without_a_restart(file: Path) -> None:
    write(file, f"ann {ANN}")
    clock = Clock()
    keys = ApiKeys((), str(file), clock)
    write(file, f"bob {BOB}")
    assert keys.name_of(ANN) == "ann", "it was just read"
    clock.now_s += LOOK_EVERY_S
    assert keys.name_of(BOB) == "bob"
    assert keys.name_of(ANN) is None


@pytest.mark.parametrize("text", [None, "", "a b c", b"\xff"])
def test_a_file_that_breaks_keeps_the_keys_and_is_told_once(file: Path, text: str | bytes | None, caplog) -> None:
    write(file, f"ann {ANN}")
    clock = Clock()
    keys = ApiKeys((), str(file), clock)
    for attempt in range(3):
        file.unlink(missing_ok=True)
        if text is not None:
            write(file, text)
            os.utime(file, (attempt, attempt))
        clock.now_s += LOOK_EVERY_S
        assert keys.name_of(ANN) == "ann"
    errors = [record for record in caplog.records if record.levelno == logging.ERROR]
    assert len(errors) == 1 and "stay valid" in errors[0].getMessage()
    write(file, f"bob {BOB}")
    clock.now_s += LOOK_EVERY_S
    assert keys.name_of(BOB) == "bob" and keys.name_of(ANN) is None


def test_rights_that_let_others_read_and_short_keys_are_warned_of(file: Path, caplog) -> None:
    write(file, f"ann {ANN}\nbob short-key\n", mode=0o644)
    ApiKeys((), str(file))
    warnings = [record.getMessage() for record in caplog.records]
    assert len(warnings) == 2
    assert any("chmod 600" in text for text in warnings) and any("bob" in text for text in warnings)
    assert "sk-" not in caplog.text and "short-key" not in caplog.text


def test_no_key_is_shown_by_the_settings() -> None:
    config = SecurityConfig(api_keys=(ANN,), ssl_certfile="c", ssl_keyfile_password="geheim")
    assert ANN not in repr(config) and "geheim" not in repr(config)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"api_keys": ("",)}, "key 1"),
        ({"api_keys": (ANN, "a b")}, "key 2"),
        ({"api_keys": ("caf\u00e9",)}, "key 1"),
        ({"max_requests_per_key": 2}, "needs API keys"),
        ({"api_keys": (ANN,), "max_requests_per_key": 0}, "at least 1"),
        ({"allowed_origins": ("chat.example.com",)}, "allowed_origins"),
        ({"allowed_origins": ("https://chat.example.com/",)}, "allowed_origins"),
        ({"allowed_origins": ("https://*.example.com",)}, "allowed_origins"),
        ({"allowed_hosts": ("https://x",)}, "allowed_hosts"),
        ({"ssl_keyfile": "k"}, "needs ssl_certfile"),
        ({"ssl_ca_certs": "k"}, "needs ssl_certfile"),
    ],
)
def test_settings_that_make_no_sense_are_refused(settings, words: str) -> None:
    with pytest.raises(ConfigError, match=words) as error:
        SecurityConfig(**settings)
    assert "sk-" not in error.value.message
