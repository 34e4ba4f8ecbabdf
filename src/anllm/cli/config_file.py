"""`--config FILE`: flags from a file, YAML or TOML. A flag goes before the environment, that before the file."""

from __future__ import annotations

import difflib
import tomllib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

import click

from anllm.errors import ConfigError

F = TypeVar("F", bound=Callable[..., Any])


def config_option(function: F) -> F:
    """The flag. What the file says becomes the command's defaults."""
    return click.option(
        "--config",
        type=click.Path(path_type=Path),
        is_eager=True,
        expose_value=False,
        callback=_take,
        help="YAML or TOML file with flags, such as port: 8123.",
    )(function)


def _take(ctx: click.Context, param: click.Parameter, path: Path | None) -> None:
    if path is None:
        return
    known = [p.name for p in ctx.command.params if p.name and p is not param and p.name != "help"]
    values = known_values(read_config(path), known, path.name)
    multiple = {p.name for p in ctx.command.params if p.multiple or p.nargs != 1}
    for name, value in values.items():
        if isinstance(value, Mapping) or (isinstance(value, list) and name not in multiple):
            raise ConfigError(f"{path.name}: {name} must be one value, got {value!r}.")
    ctx.default_map = {**(ctx.default_map or {}), **values}


def read_config(path: Path) -> dict[str, Any]:
    """Raises ConfigError."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        raise ConfigError(f"config: {str(path)!r} can't be read ({error}); check the path.") from None
    if path.suffix == ".toml":
        try:
            return tomllib.loads(text)
        except tomllib.TOMLDecodeError as error:
            raise ConfigError(f"config: {path.name} is no TOML: {error}.") from None
    if path.suffix not in (".yaml", ".yml"):
        raise ConfigError(f"config: {path.name} must end with .yaml, .yml or .toml.")
    import yaml  # type: ignore[import-untyped]  # it comes without types

    try:
        value = yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise ConfigError(f"config: {path.name} is no YAML: {' '.join(str(error).split())}.") from None
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise ConfigError(f"config: {path.name} must have a key and a value a line, such as port: 8123.")
    return value


def known_values(values: Mapping[str, Any], known: list[str], file: str) -> dict[str, Any]:
    """By the names of parameters. Keys are flags without their dashes, written with - or _; null leaves a flag alone.

    Raises ConfigError for a key that is no flag, with the nearest one.
    """
    found: dict[str, Any] = {}
    for key, value in values.items():
        name = str(key).replace("-", "_")
        if name not in known:
            near = difflib.get_close_matches(name, known, 1)
            hint = f"Did you mean {near[0].replace('_', '-')}?" if near else "docs/config.md lists the flags."
            raise ConfigError(f"{file}: there is no flag {str(key)!r}. {hint}")
        if value is not None:
            found[name] = value
    return found
