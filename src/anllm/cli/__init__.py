"""The command line: argv and environment -> Config -> launch. One file a command; no logic of its own."""

from anllm.cli.main import main

__all__ = ["main"]
