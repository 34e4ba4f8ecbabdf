"""The command line: argv, environment and file -> Config -> launch. One file a command; no logic of its own."""

from anllm.cli.main import main

__all__ = ["main"]
