"""Fields that would change the answer, and that nothing here obeys."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from anllm.errors import InvalidRequestError
from anllm.server.field_support import (
    NEUTRAL_CHAT_VALUES,
    NEUTRAL_COMPLETION_VALUES,
    NEUTRAL_MESSAGES_VALUES,
    NEUTRAL_RESPONSES_VALUES,
    NEUTRAL_TOKENIZE_VALUES,
    refuse_unsupported,
)

TABLES = {
    "chat": NEUTRAL_CHAT_VALUES,
    "completions": NEUTRAL_COMPLETION_VALUES,
    "responses": NEUTRAL_RESPONSES_VALUES,
    "messages": NEUTRAL_MESSAGES_VALUES,
    "tokenize": NEUTRAL_TOKENIZE_VALUES,
}


@pytest.mark.parametrize("endpoint", TABLES)
def test_each_is_refused_by_name_unless_it_says_nothing(endpoint: str) -> None:
    table: Mapping[str, tuple[object, ...]] = TABLES[endpoint]
    for name, neutral in table.items():
        for value in (None, *neutral):
            refuse_unsupported({name: value}, table)
        with pytest.raises(InvalidRequestError, match=f"'{name}' is known, but this server can't do it yet") as caught:
            refuse_unsupported({name: "something else"}, table)
        code = "thread_unsupported_request" if name == "thread" else "unsupported_parameter"
        assert (caught.value.param, caught.value.code) == (name, code)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("thinking_token_budget", 64),
        ("repetition_detection", {"max_pattern_size": 4}),
        ("typical_p", 0.9),
        ("mirostat", 2),
        ("dry_multiplier", 0.8),
        ("xtc_probability", 0.5),
        ("documents", [{"text": "Paris"}]),
    ],
)
def test_what_other_servers_obey_is_not_passed_over(name: str, value: object) -> None:
    with pytest.raises(InvalidRequestError):
        refuse_unsupported({name: value}, NEUTRAL_CHAT_VALUES)
