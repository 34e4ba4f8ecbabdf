"""Tables on stdout: drawn on a terminal as wide as it is, and without colours, whole, elsewhere."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from rich import box
from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

WIDE = 240  # where nobody looks, nothing is cut
INDENT = 2


def console_for(*, to_stderr: bool = False) -> Console:
    console = Console(highlight=False, stderr=to_stderr)
    return console if console.is_terminal else Console(highlight=False, stderr=to_stderr, width=WIDE)


def print_table(
    columns: Sequence[str], rows: Iterable[Sequence[str]], right: Sequence[str] = (), *, to_stderr: bool = False
) -> None:
    """Row for row below its first cell where the terminal is too narrow for them side by side.

    right: columns of numbers.
    """
    table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False)
    for column in columns:
        table.add_column(column, justify="right" if column in right else "left", no_wrap=True)
    rows = list(rows)
    for row in rows:
        table.add_row(*map(Text, row))
    console = console_for(to_stderr=to_stderr)
    unbounded = console.options.update_width(WIDE * 10)
    if console.measure(table, options=unbounded).maximum <= console.width:
        console.print(table)
        return
    for first, *rest in rows:
        console.print(Text(first, style="bold"))
        console.print(Padding(pairs_grid(zip(columns[1:], rest, strict=True), style="dim"), (0, 0, 0, INDENT)))


def print_pairs(pairs: Iterable[tuple[str, str]]) -> None:
    """A name and a text a line; what does not fit beside the name goes on below the text."""
    console, pairs = console_for(), list(pairs)
    if console.is_terminal:
        console.print(pairs_grid(pairs, style="bold"))
        return
    width = max(len(name) for name, _ in pairs)
    for name, text in pairs:
        console.print(Text(f"{name:{width}}  {text}"), soft_wrap=True)


def pairs_grid(pairs: Iterable[tuple[str, str]], style: str) -> Table:
    grid = Table.grid(padding=(0, 2, 0, 0))
    grid.add_column(style=style)
    grid.add_column(overflow="fold")
    for name, text in pairs:
        grid.add_row(Text(name), Text(text))
    return grid
