"""`anllm doctor`: is this machine fit to serve, and what to fix."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from anllm.doctor.check import Check

MARKS = {"ok": ("✓", "green"), "warning": ("!", "yellow"), "problem": ("✗", "red")}


@click.command()
@click.option("--json", "as_json", is_flag=True, help="Print JSON, a list of objects.")
def doctor(as_json: bool) -> None:
    """Check this machine: packages, backend, BLAS, compiler, memory, ports, disk, network; and say what to fix.

    Ends with code 1 if something must be fixed before anything can be served; warnings don't count. Changes nothing.
    """
    checks = []
    for check in examine():
        checks.append(check)
        if not as_json:
            print_check(check)
    problems = [check for check in checks if check.status.value == "problem"]
    if as_json:
        fields = ("name", "status", "found", "fix")
        click.echo(json.dumps([{name: getattr(check, name) for name in fields} for check in checks], indent=2))
    else:
        number = len(problems)
        click.echo(f"\n{number} thing{'s' if number > 1 else ''} to fix." if problems else "\nReady to serve.")
    sys.exit(1 if problems else 0)


def examine() -> Iterator[Check]:
    """All checks; what takes a second or more comes last."""
    from anllm.cli.main import variables
    from anllm.doctor.machine import check_machine, probe_command, run_probe
    from anllm.doctor.packages import check_packages
    from anllm.doctor.surroundings import check_surroundings

    yield from check_packages()
    yield from check_surroundings(os.environ, variables())
    yield from check_machine(run_probe(probe_command()))


def print_check(check: Check) -> None:
    mark, color = MARKS[check.status.value]
    click.echo(f"{click.style(mark, fg=color, bold=True)} {click.style(check.name, bold=True)}: {check.found}")
    if check.fix:
        click.echo(f"    {click.style('fix:', fg=color)} {check.fix}")
