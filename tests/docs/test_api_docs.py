"""docs/api.md names every field that a request may have, as honoured, accepted or refused, and every error code."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from anllm.errors import AnllmError
from anllm.server import errors as _http_errors  # noqa: F401 - so that its classes are known
from anllm.server.chat.protocol import ChatCompletionRequest, Message
from anllm.server.completions.protocol import CompletionRequest
from anllm.server.field_support import (
    _NOT_WORTH_LOGGING,
    ACCEPTED_WITHOUT_EFFECT,
    MESSAGES_ACCEPTED_WITHOUT_EFFECT,
    NEUTRAL_CHAT_VALUES,
    NEUTRAL_COMPLETION_VALUES,
    NEUTRAL_MESSAGES_VALUES,
    NEUTRAL_RESPONSES_VALUES,
    NEUTRAL_TOKENIZE_VALUES,
    NEUTRAL_VALUES,
    RESPONSES_ACCEPTED_WITHOUT_EFFECT,
)
from anllm.server.messages.block_protocol import DROPPED_BLOCKS, KNOWN_BLOCKS
from anllm.server.messages.protocol import MessagesRequest, OutputConfig, Thinking, ToolChoice
from anllm.server.protocol import GenerationRequest, SampledRequest, StreamOptions
from anllm.server.responses.item_protocol import ITEMS
from anllm.server.responses.protocol import Reasoning, ResponsesRequest, TextConfig
from anllm.server.tokenization.protocol import TokenizeRequest

API_MD = (Path(__file__).parents[2] / "docs" / "api.md").read_text(encoding="utf-8")
ALL, CHAT, RESPONSES = "Fields of all generating endpoints", "Chat", "Responses"
MESSAGES, COMPLETIONS, TOKENS = "Messages", "Completions", "Tokens"
ACCEPTED = {RESPONSES: RESPONSES_ACCEPTED_WITHOUT_EFFECT, MESSAGES: MESSAGES_ACCEPTED_WITHOUT_EFFECT}


def kinds(section: str) -> dict[str, str]:
    """Field -> honoured, accepted or refused."""
    text = API_MD.split(f"\n## {section}\n")[1].split("\n## ")[0]
    rows = re.findall(r"^\| (`.*?) \| (honoured|accepted|refused) \|", text, re.MULTILINE)
    return {name: kind for names, kind in rows for name in re.findall(r"`(\w+)`", names)}


def test_every_field_stands_in_one_table():
    shared = GenerationRequest.model_fields.keys() | NEUTRAL_VALUES.keys()
    chat = (ChatCompletionRequest.model_fields.keys() | NEUTRAL_CHAT_VALUES.keys()) - shared
    completions = (CompletionRequest.model_fields.keys() | NEUTRAL_COMPLETION_VALUES.keys()) - shared
    assert kinds(ALL).keys() == shared
    responses = ResponsesRequest.model_fields.keys() - SampledRequest.model_fields.keys()
    assert kinds(CHAT).keys() == chat
    assert kinds(RESPONSES).keys() == responses | (NEUTRAL_RESPONSES_VALUES.keys() - NEUTRAL_VALUES.keys())
    messages = {field.alias or name for name, field in MessagesRequest.model_fields.items()}
    messages -= SampledRequest.model_fields.keys()
    assert kinds(MESSAGES).keys() == messages | (NEUTRAL_MESSAGES_VALUES.keys() - NEUTRAL_VALUES.keys())
    assert kinds(COMPLETIONS).keys() == completions
    assert kinds(TOKENS).keys() == TokenizeRequest.model_fields.keys() | NEUTRAL_TOKENIZE_VALUES.keys()


def test_the_kinds_are_those_of_the_code():
    refused_by_rule = {"modalities", "best_of"}
    for section, neutral in (
        (ALL, NEUTRAL_VALUES),
        (CHAT, NEUTRAL_CHAT_VALUES),
        (RESPONSES, NEUTRAL_RESPONSES_VALUES),
        (MESSAGES, NEUTRAL_MESSAGES_VALUES),
        (COMPLETIONS, NEUTRAL_COMPLETION_VALUES),
        (TOKENS, NEUTRAL_TOKENIZE_VALUES),
    ):
        for name, kind in kinds(section).items():
            if name in neutral or name in refused_by_rule:
                assert kind == "refused", name
            elif name in ACCEPTED.get(section, ACCEPTED_WITHOUT_EFFECT):
                assert kind == "accepted", name
            else:
                assert kind == "honoured", name


@pytest.mark.parametrize("name", sorted({*ITEMS, *Reasoning.model_fields, *TextConfig.model_fields}))
def test_items_and_smaller_fields_of_responses_are_named(name):
    assert f"`{name}`" in API_MD.split("\n## Responses\n")[1].split("\n## ")[0]


@pytest.mark.parametrize(
    "name",
    sorted(
        {*KNOWN_BLOCKS, "image", "server_tool_use"}
        | {*Thinking.model_fields, *OutputConfig.model_fields, *ToolChoice.model_fields} - {"json_schema"}
    ),
)
def test_blocks_and_smaller_fields_of_messages_are_named(name):
    assert f"`{name}`" in API_MD.split("\n## Messages\n")[1].split("\n## ")[0]
    assert "server_tool_use" in DROPPED_BLOCKS


@pytest.mark.parametrize(
    "name", sorted(Message.model_fields.keys() - {"role"} | StreamOptions.model_fields.keys() | _NOT_WORTH_LOGGING)
)
def test_smaller_fields_are_named(name):
    assert f"`{name}`" in API_MD


def test_every_status_and_code_of_an_error_class_is_in_the_table():
    table = API_MD.split("\n## Errors\n")[1].split("\n## ")[0]
    for error in subclasses(AnllmError):
        if error.__module__.startswith("anllm."):
            assert f"| {error.status} |" in table, error.__name__
            assert error.code is None or f"`{error.code}`" in table, error.__name__


def subclasses(kind: type[AnllmError]) -> list[type[AnllmError]]:
    direct = kind.__subclasses__()
    return direct + [further for child in direct for further in subclasses(child)]
