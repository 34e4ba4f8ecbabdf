"""Which request fields are honoured, which are accepted because they change nothing, and which are refused for now.

Rule: a field is obeyed or refused; it is ignored only if it can't change the output. A feature that gets built takes
its line out of the tables here.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping

from anllm.errors import InvalidRequestError
from anllm.server.body import JsonObject

logger = logging.getLogger(__name__)

_ACCEPTED_EVERYWHERE = {
    "prompt_cache_key": "a hint for speed",
    "prompt_cache_options": "a hint for speed",
    "prompt_cache_retention": "a hint for speed",
    "safety_identifier": "label of the client's own",
    "service_tier": 'there is one tier; answered with "default"',
    "user": "label of the client's own",
}
ACCEPTED_WITHOUT_EFFECT = {
    **_ACCEPTED_EVERYWHERE,
    "audio": "parameters of audio output, which `modalities` can't ask for",
    "metadata": "labels of the client's own",
    "prediction": "a hint for speed",
    "store": "nothing is stored",
    "verbosity": "a hint that local models don't know",
}
RESPONSES_ACCEPTED_WITHOUT_EFFECT = {
    **_ACCEPTED_EVERYWHERE,
    "context_management": "conversations are not compacted",
    "max_tool_calls": "a bound for tools of OpenAI's servers",
}
MESSAGES_ACCEPTED_WITHOUT_EFFECT = {
    "service_tier": "there is one tier",
    "metadata": "labels of the client's own",
    "context_management": "conversations are not edited",
}

# Sent by clients for other servers: https://github.com/BerriAI/litellm/issues/23978 and the like.
_NOT_WORTH_LOGGING = frozenset(
    {
        "cache_control",
        "chat_id",
        "client_metadata",
        "id",
        "keep_alive",
        "options",
        "plugins",
        "provider",
        "reasoning",
        "repeat_penalty",
        "session_id",
        "think",
        "thinking",
        "transforms",
    }
)

# Field -> values that mean the same as leaving it out. Any other value would change the output: refused.
NEUTRAL_VALUES: Mapping[str, tuple[object, ...]] = {
    "use_beam_search": (False,),
    "length_penalty": (1,),
    "bad_words": ([],),
    "truncate_prompt_tokens": (),
    "logits_processors": ([],),
    "repetition_detection": (),
    "thinking_token_budget": (),
    "typical_p": (1,),
    "mirostat": (0,),
    "dry_multiplier": (0,),
    "xtc_probability": (0,),
}
NEUTRAL_TOKENIZE_VALUES: Mapping[str, tuple[object, ...]] = {
    "chat_template": (),
}
NEUTRAL_CHAT_VALUES: Mapping[str, tuple[object, ...]] = {
    **NEUTRAL_VALUES,
    "web_search_options": (),
    "moderation": (),
    "chat_template": (),
    "documents": ([],),
    "echo": (False,),
}
NEUTRAL_COMPLETION_VALUES: Mapping[str, tuple[object, ...]] = {
    **NEUTRAL_VALUES,
    "prompt_embeds": (),
    "suffix": ("",),
}
NEUTRAL_RESPONSES_VALUES: Mapping[str, tuple[object, ...]] = {
    **NEUTRAL_VALUES,
    "background": (False,),
    "conversation": (),
    "prompt": (),
    "moderation": (),
    "n": (1,),
    "prompt_logprobs": (),
    "response_format": ({"type": "text"},),
    "return_token_ids": (False,),
}
NEUTRAL_MESSAGES_VALUES: Mapping[str, tuple[object, ...]] = {
    **NEUTRAL_VALUES,
    "compaction": (),
    "container": (),
    "mcp_servers": ([],),
    "n": (1,),
    "prompt_logprobs": (),
    "response_format": ({"type": "text"},),
    "return_token_ids": (False,),
    "thread": (),
}
_CODES = {"thread": "thread_unsupported_request"}  # at which Anthropic's clients send the whole conversation instead
_INSTEAD = {
    "compaction": "Ask for a summary in a message.",
    "thread": "Send the whole conversation in 'messages'.",
    "mcp_servers": "Have the client call them, as tools.",
    "background": "Ask for a stream, or wait for the answer.",
    "conversation": "Use 'previous_response_id', or send the earlier items in 'input'.",
    "prompt": "Send its text in 'instructions' and 'input'.",
    "response_format": "Use 'text.format'.",
}


def unsupported(param: str) -> InvalidRequestError:
    instead = _INSTEAD.get(param, "Please leave it out.")
    return InvalidRequestError(
        f"Unsupported parameter: '{param}' is known, but this server can't do it yet. {instead}",
        param=param,
        code=_CODES.get(param, "unsupported_parameter"),
    )


def refuse_unsupported(body: JsonObject, neutral: Mapping[str, tuple[object, ...]]) -> None:
    """Raises InvalidRequestError for a field with a value that would have to change the output."""
    for name, values in neutral.items():
        value = body.get(name)
        if value is not None and value not in values:
            raise unsupported(name)


class UnknownFields:
    """Logs each unknown field name once. Bounded, since names come from clients."""

    _MAX_NAMES = 1000

    def __init__(self) -> None:
        self._seen: set[str] = set()

    def note(self, names: Iterable[str], known: Iterable[str]) -> None:
        for name in set(names).difference(known, self._seen, _NOT_WORTH_LOGGING):
            if len(name) > 64 or len(self._seen) >= self._MAX_NAMES:
                continue
            self._seen.add(name)
            logger.info("unknown request field ignored: %r", name)
