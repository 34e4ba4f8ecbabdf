"""Tables on stdout: drawn on a terminal as wide as it is, and without colours, whole, elsewhere."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from rich import box
from rich.console import Console
from rich.table import Table

WIDE = 240  # where nobody looks, nothing is cut


def console_for(*, to_stderr: bool = False) -> Console:
    console = Console(highlight=False, stderr=to_stderr)
    return console if console.is_terminal else Console(highlight=False, stderr=to_stderr, width=WIDE)


def print_table(
    columns: Sequence[str], rows: Iterable[Sequence[str]], right: Sequence[str] = (), *, to_stderr: bool = False
) -> None:
    """right: columns of numbers."""
    table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False)
    for column in columns:
        table.add_column(
            column, justify="right" if column in right else "left", overflow="fold", no_wrap=column != columns[0]
        )
    for row in rows:
        table.add_row(*row)
    console_for(to_stderr=to_stderr).print(table)
