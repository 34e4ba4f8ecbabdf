"""`anllm`: the group of commands. Imports nothing heavy, so that --help is instant."""

from __future__ import annotations

import os

import click

import anllm
from anllm.cli.fetch import fetch
from anllm.cli.serve import serve

# transformers warns at import that PyTorch is absent, which is as it should be. The engine process inherits this.
os.environ.setdefault("TRANSFORMERS_NO_ADVISORY_WARNINGS", "1")


@click.group(context_settings={"auto_envvar_prefix": "ANLLM", "help_option_names": ["-h", "--help"]})
@click.version_option(anllm.__version__, prog_name="anllm")
def main() -> None:
    """Serve language models on Apple's MLX behind the OpenAI HTTP API."""


main.add_command(serve)
main.add_command(fetch)
