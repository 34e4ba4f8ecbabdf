"""`anllm completion`: what a shell needs to complete commands and flags."""

from __future__ import annotations

import click

WHERE = {
    "bash": 'Add to ~/.bashrc: eval "$(anllm completion bash)"',
    "zsh": 'Add to ~/.zshrc: eval "$(anllm completion zsh)"',
    "fish": "Once: anllm completion fish > ~/.config/fish/completions/anllm.fish",
}


# \b: click leaves the lines behind it as they are
HELP = """Print the code with which SHELL completes commands, flags and their values.

\b
bash, in ~/.bashrc:  eval "$(anllm completion bash)"
zsh, in ~/.zshrc:    eval "$(anllm completion zsh)"
fish, once:          anllm completion fish > ~/.config/fish/completions/anllm.fish
"""


@click.command(help=HELP)
@click.argument("shell", type=click.Choice(list(WHERE)))
def completion(shell: str) -> None:
    from click.shell_completion import get_completion_class

    from anllm.cli.main import main

    found = get_completion_class(shell)
    assert found is not None
    # The code first: zsh takes a file of its functions' path for a completion by its first line, "#compdef anllm".
    click.echo(found(main, {}, "anllm", "_ANLLM_COMPLETE").source().strip())
    click.echo(f"# {WHERE[shell]}")
