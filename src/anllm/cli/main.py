"""`anllm`: the group of commands. A command's file is imported when it is called, so that --help is instant."""

from __future__ import annotations

import difflib
import importlib
import os
import sys
from typing import Any

import click

import anllm
from anllm.errors import AnllmError

# transformers warns at import that PyTorch is absent, which is as it should be. The engine process inherits this.
os.environ.setdefault("TRANSFORMERS_NO_ADVISORY_WARNINGS", "1")

INTERRUPTED = 130  # as shells have it for a program that Ctrl-C ended

# Heading -> command -> what --help says of it. A command `x` is `x` of anllm/cli/x.py.
COMMANDS: dict[str, dict[str, str]] = {
    "Serve and talk": {
        "serve": "Serve a model behind the OpenAI HTTP API.",
        "chat": "Talk to a model in the terminal.",
    },
    "Models": {
        "pull": "Download or convert a model, without serving it.",
        "list": "The models on this machine.",
        "rm": "Remove a model from the cache.",
        "info": "What a model is, and the memory it needs.",
    },
    "Measure and mend": {
        "bench": "Measure a server under load.",
        "doctor": "Check this machine, and say what to fix.",
        "completion": "Print what a shell needs to complete commands.",
    },
}
MODULES = {"list": "list_models"}  # where a command's name is one of Python's own


class LazyGroup(click.Group):
    """Lists commands under headings, and imports the one that is called. Errors of anllm's become one line."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return [name for commands in COMMANDS.values() for name in commands]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in self.list_commands(ctx):
            return None
        attribute = MODULES.get(cmd_name, cmd_name)
        command = getattr(importlib.import_module(f"anllm.cli.{attribute}"), attribute)
        assert isinstance(command, click.Command)
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        name = args[0]
        if not name.startswith("-") and name not in self.list_commands(ctx):
            near = difflib.get_close_matches(name, self.list_commands(ctx), 1)
            hint = f" Did you mean '{near[0]}'?" if near else ""
            ctx.fail(f"No such command '{name}'.{hint}")
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        width = max(map(len, self.list_commands(ctx)))
        for heading, commands in COMMANDS.items():
            with formatter.section(heading):
                formatter.write_dl([(name.ljust(width), text) for name, text in commands.items()])

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except click.BadParameter as error:
            if not (place := where_from(error)):
                raise
            message = f"{error.message.removesuffix('.')} ({place})."
            raise click.BadParameter(message, error.ctx, error.param, error.param_hint) from None
        except AnllmError as error:
            click.echo(f"Error: {error.message}", err=True)
            sys.exit(1)
        except KeyboardInterrupt:
            click.echo(err=True)
            sys.exit(INTERRUPTED)


def where_from(error: click.BadParameter) -> str:
    """Where a wrong value was set, if not on the command line, where it can be seen; else ""."""
    if error.ctx is None or error.param is None or error.param.name is None:
        return ""
    source = error.ctx.get_parameter_source(error.param.name)
    if source is click.core.ParameterSource.ENVIRONMENT:
        return f"by the variable {error.param.envvar or f'{error.ctx.auto_envvar_prefix}_{error.param.name}'.upper()}"
    return "in the config file" if source is click.core.ParameterSource.DEFAULT_MAP else ""


@click.group(
    cls=LazyGroup,
    context_settings={"auto_envvar_prefix": "ANLLM", "help_option_names": ["-h", "--help"]},
    epilog="Each command has its own --help. Each flag has an environment variable: --port of serve is "
    "ANLLM_SERVE_PORT.",
)
@click.version_option(anllm.__version__, prog_name="anllm")
def main() -> None:
    """Serve language models on Apple's MLX behind the OpenAI HTTP API."""


def variables() -> set[str]:
    """Every environment variable that a flag of a command can be given by."""
    context = click.Context(main)
    found = set()
    for name in main.list_commands(context):
        command = main.get_command(context, name)
        assert command is not None
        for parameter in command.params:
            if isinstance(parameter, click.Option) and parameter.name is not None:
                own = [parameter.envvar] if isinstance(parameter.envvar, str) else list(parameter.envvar or ())
                found |= {f"ANLLM_{name}_{parameter.name}".upper(), *own}
    return found
