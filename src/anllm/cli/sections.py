"""--help of a command with many flags, under headings."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import click


class SectionedCommand(click.Command):
    """sections: the name of a flag -> the heading that begins with it, in the order of the flags."""

    def __init__(self, *args: Any, sections: Mapping[str, str], **options: Any) -> None:
        super().__init__(*args, **options)
        self._sections = sections

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        heading = "Options"
        parts: dict[str, list[tuple[str, str]]] = {}
        for parameter in self.get_params(ctx):
            heading = self._sections.get(parameter.name or "", heading)
            if parameter.name == "help":
                heading = "Options"
            record = parameter.get_help_record(ctx) if isinstance(parameter, click.Option) else None
            if record is not None:
                parts.setdefault(heading, []).append(record)
        for name, records in parts.items():
            with formatter.section(name):
                formatter.write_dl(records)
