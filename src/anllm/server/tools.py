"""Which tools an answer may call, whatever form the request gave them in. Raises InvalidRequestError."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from anllm.parsers.schema import is_strict, name_of, parameters_of
from anllm.server.protocol import Function
from anllm.server.structured import Structure, named
from anllm.server.validation import invalid
from anllm.structured.errors import GrammarError
from anllm.structured.grammar import json_schema
from anllm.structured.schema import check_schema

Tool = Mapping[str, object]


@dataclass(frozen=True, slots=True)
class ToolUse:
    """offered: all tools, for the prompt, each in the form of chat; their names differ. callable: those that the answer
    may call, for parser and grammar.

    min_calls: of the answer; at least 1 makes calls all of it. max_calls: None is any number.
    is_legacy: asked for with `functions`, and answered so.
    params: for each offered tool the path of its schema in the request.
    """

    offered: tuple[Tool, ...] = ()
    callable: tuple[Tool, ...] = ()
    min_calls: int = 0
    max_calls: int | None = None
    is_legacy: bool = False
    params: tuple[str, ...] = ()

    @property
    def is_bound(self) -> bool:
        """Whether calls have to fit their schemas."""
        return bool(self.callable) and (self.min_calls > 0 or any(is_strict(tool) for tool in self.callable))


def check_schemas(use: ToolUse) -> None:
    """Of those that a grammar is made of; others are the model's business."""
    if not use.is_bound:
        return
    names = {name_of(tool) for tool in use.callable}
    for tool, param in zip(use.offered, use.params, strict=True):
        if name_of(tool) in names and (use.min_calls or is_strict(tool)):
            try:
                check_schema(parameters_of(tool))
            except GrammarError as error:
                raise named(error, param) from error


def strict_schemas(use: ToolUse) -> tuple[Structure, ...]:
    """Of the functions that may be called and are strict, each by itself."""
    return tuple(
        Structure(json_schema(parameters_of(tool), strict=True), param)
        for tool, param in zip(use.offered, use.params, strict=True)
        if tool in use.callable and is_strict(tool)
    )


def max_calls(*, is_named: bool, is_parallel: bool | None) -> int | None:
    """A function that is named is called once, as with other servers, unless the request says otherwise: who names one
    wants its arguments, and small models would give them again and again."""
    is_parallel = not is_named if is_parallel is None else is_parallel
    return None if is_parallel else 1


def check_names(names: Iterable[tuple[str, str]]) -> None:
    """names: each with the path where it stands. No two are the same."""
    seen = set()
    for name, param in names:
        if name in seen:
            raise invalid(param, "must not be the name of another one", given=name)
        seen.add(name)


def plain_tool(function: Function) -> Tool:
    """As the client sent it, nulls left out, for templates that write it as JSON."""
    optional = {
        "description": function.description,
        "parameters": function.parameters,
        "strict": function.strict,
    }
    given = {key: value for key, value in optional.items() if value is not None}
    return {"type": "function", "function": {"name": function.name, **given}}
