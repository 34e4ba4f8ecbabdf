"""What a check finds."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Status(StrEnum):
    OK = "ok"
    WARNING = "warning"  # it works, but slowly, or not all of it
    PROBLEM = "problem"  # it does not work until this is fixed


@dataclass(frozen=True, slots=True)
class Check:
    """name: what was looked at; found: what is so; fix: what to do, "" where nothing is to be done."""

    name: str
    status: Status
    found: str
    fix: str = ""


def ok(name: str, found: str) -> Check:
    return Check(name, Status.OK, found)


def warning(name: str, found: str, fix: str) -> Check:
    return Check(name, Status.WARNING, found, fix)


def problem(name: str, found: str, fix: str) -> Check:
    return Check(name, Status.PROBLEM, found, fix)
