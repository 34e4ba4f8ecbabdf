"""What a request says about the form of its answer, as a grammar: response_format, vLLM's structured_outputs, and the
older guided_* fields. All raise InvalidRequestError with the field's name."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Protocol, TypeVar

from anllm.server.generation import Prompts
from anllm.server.protocol import ResponseFormat, SampledRequest, StructuredOutputs
from anllm.server.validation import invalid, missing
from anllm.structured import grammar
from anllm.structured.errors import GrammarError
from anllm.structured.grammar import GrammarSource

T = TypeVar("T")


class GrammarChecker(Protocol):
    """anllm.structured.checker.GrammarChecker, as it is used here."""

    def check(self, source: GrammarSource) -> str:
        """The text for the engine. Blocks. Raises GrammarError."""
        ...


class NoGrammars:
    """Of a model that can't be bound: without an end token, a structured text would never end."""

    def check(self, source: GrammarSource) -> str:
        raise GrammarError("this model has no end token, so its answers can't be bound to a form.")


@dataclass(frozen=True, slots=True)
class Structure:
    """A grammar that is wanted, and the field that it comes from.

    parts: makes grammars of its parts, each with a field of its own, to find out which of them is at fault; called
    only if there is a fault.
    """

    source: GrammarSource
    param: str
    parts: Callable[[], tuple[Structure, ...]] = tuple


def structure_of(request: SampledRequest, form: Structure | None) -> Structure | None:
    """The one form that the request asks for; None for free text. form: what OpenAI's own field asks for."""
    wanted = [
        structure
        for structure in (
            form,
            _of_structured_outputs(request.structured_outputs),
            _of_json("guided_json", request.guided_json),
            _of("guided_regex", grammar.regex, request.guided_regex),
            _of("guided_choice", grammar.choice, request.guided_choice),
            _of("guided_grammar", grammar.grammar, request.guided_grammar),
        )
        if structure is not None
    ]
    if len(wanted) > 1:
        raise invalid(wanted[1].param, f"is not allowed together with '{wanted[0].param}'", None)
    if wanted and request.allowed_token_ids is not None:
        raise invalid("allowed_token_ids", f"is not allowed together with '{wanted[0].param}'", None)
    return wanted[0] if wanted else None


async def bind(prompts: Prompts, structure: Structure | None, checker: GrammarChecker) -> Prompts:
    """The prompts with the grammar, once it is known to compile."""
    if structure is None:
        return prompts
    text = await asyncio.to_thread(_checked, structure, checker)
    return replace(prompts, sampling=replace(prompts.sampling, grammar=text))


def _checked(structure: Structure, checker: GrammarChecker) -> str:
    try:
        return checker.check(structure.source)
    except GrammarError as error:
        for part in structure.parts():
            _checked(part, checker)
        raise named(error, structure.param) from error


def named(error: GrammarError, param: str) -> GrammarError:
    """The error with the field that the grammar comes from."""
    error.param = param
    error.message = f"Invalid '{param}': {error.message[0].lower()}{error.message[1:]}"
    return error


def of_response_format(wanted: ResponseFormat | None) -> Structure | None:
    if wanted is None or wanted.type == "text":
        return None
    if wanted.type == "json_object":
        return of_json_object("response_format")
    given = wanted.json_schema
    if given is None:
        raise missing("response_format.json_schema")
    if given.json_schema is None:
        if "json_schema" in given.model_fields_set:
            raise invalid("response_format.json_schema.schema", "must be an object, or be left out", "invalid_type")
        return of_json_object("response_format")
    return of_schema("response_format", given.json_schema, strict=given.strict)


def of_json_object(param: str) -> Structure:
    """Any JSON object."""
    return Structure(grammar.json_object(), param)


def of_schema(param: str, schema: dict[str, object], *, strict: bool | None) -> Structure:
    """JSON of this schema. strict: refuse what the grammar can't hold it to."""
    return _made(param, lambda: grammar.json_schema(schema, strict=strict))


def _of_structured_outputs(wanted: StructuredOutputs | None) -> Structure | None:
    if wanted is None:
        return None
    if wanted.structural_tag is not None:
        raise invalid("structured_outputs.structural_tag", "is not supported; use 'tools' or 'grammar'", None)
    found = [
        structure
        for structure in (
            _of_json("structured_outputs.json", wanted.json_value),
            _of("structured_outputs.regex", grammar.regex, wanted.regex),
            _of("structured_outputs.choice", grammar.choice, wanted.choice),
            _of("structured_outputs.grammar", grammar.grammar, wanted.grammar),
            Structure(grammar.json_object(), "structured_outputs.json_object") if wanted.json_object else None,
        )
        if structure is not None
    ]
    if len(found) != 1:
        rule = f"must have exactly one of json, regex, choice, grammar and json_object, got {len(found)}"
        raise invalid("structured_outputs", rule, None)
    return found[0]


def _of_json(param: str, value: str | dict[str, object] | None) -> Structure | None:
    """As vLLM takes it: not strict."""
    if value is None:
        return None
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except (ValueError, RecursionError):
            rule = "must be a JSON schema, as an object or as JSON text"
            raise invalid(param, rule, GrammarError.code, given=value) from None
    schema = value
    return _made(param, lambda: grammar.json_schema(schema, strict=None))


def _of(param: str, make: Callable[[T], GrammarSource], value: T | None) -> Structure | None:
    return None if value is None else _made(param, lambda: make(value))


def _made(param: str, make: Callable[[], GrammarSource]) -> Structure:
    try:
        return Structure(make(), param)
    except GrammarError as error:
        raise named(error, param) from error
