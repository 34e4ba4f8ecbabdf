"""Chat messages to the prompt, by the model's own Jinja template.

Rendered by transformers' own function, in its sandbox, so that a prompt is what the model was trained on. Imports
transformers at the first rendering. Knows nothing of HTTP or tokens. Any thread may render.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import cast

from anllm.errors import InvalidRequestError, ModelError
from anllm.text.messages import CALL_FORMS, CallForm, Message, conversations, in_call_form, with_content_parts
from anllm.text.plain_tools import with_calls_as_text, with_tools_as_text
from anllm.text.special_tokens import read_json_object, special_token_texts

# Names that would replace the template or the conversation, or change what rendering returns.
RESERVED_KWARGS = frozenset({"chat_template", "conversations", "messages", "return_assistant_tokens_mask"})
PROBE = "probe-7f3a"


class ChatTemplate:
    """A template with the special tokens that it may write.

    text: the Jinja text.
    special_tokens: bos_token, eos_token and so on -> text; variables of the template.
    """

    def __init__(self, text: str, special_tokens: Mapping[str, str]) -> None:
        self.text = text
        self.special_tokens = dict(special_tokens)

    def render(
        self,
        messages: Sequence[Mapping[str, object]],
        /,
        *,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        tools: Sequence[Mapping[str, object]] | None = None,
        **template_kwargs: object,
    ) -> str:
        """The prompt, special tokens written out.

        messages: valid already: a role that OpenAI knows; content a string, text parts or None.
        continue_final_message: the prompt ends with the text of the last message, for the model to go on with.
        tools: as in the request; an empty list is none. Where the template passes over them, or over the calls of
            earlier turns, they are written into the messages (plain_tools.py).
        template_kwargs: further variables of the template; they win over the special tokens.

        A conversation that the template refuses, or of which it drops a system message, is tried again in plainer forms
        (see messages.conversations). Raises InvalidRequestError with the template's first message when it refuses all.
        """
        reserved = sorted(RESERVED_KWARGS & template_kwargs.keys())
        if reserved:
            raise InvalidRequestError(f"A request can't set {', '.join(reserved)}.", param="chat_template_kwargs")
        variables = {**self.special_tokens, **template_kwargs, "add_generation_prompt": add_generation_prompt}
        variables["continue_final_message"] = continue_final_message
        variables["tools"] = [dict(tool) for tool in tools] if tools else None
        if self._call_form is None:
            messages = with_calls_as_text(messages)
        if tools and not self._shows_tools:
            messages = with_tools_as_text(messages, tools, tells_form=self._call_form is None)
        return self._render_first_accepted(messages, variables)

    @cached_property
    def _shows_tools(self) -> bool:
        """Whether the template tells the model of the tools that it may call."""
        function = {"name": PROBE, "description": PROBE, "parameters": {"type": "object", "properties": {}}}
        user: Message = {"role": "user", "content": "hi"}
        return self._shows_probe([user], tools=[{"type": "function", "function": function}])

    @cached_property
    def _call_form(self) -> CallForm | None:
        """How the template wants the calls of earlier turns, so that they are in the prompt; None if they never are."""
        call = {"type": "function", "id": "abcdefghi", "function": {"name": PROBE, "arguments": {"x": "y"}}}
        conversation: list[Message] = [
            {"role": "user", "content": "hi"},
            {"role": "assistant", "content": "", "tool_calls": [call]},
            {"role": "tool", "content": "done", "tool_call_id": "abcdefghi"},
        ]
        if "tool_calls" not in self.text:
            return None
        return next((form for form in CALL_FORMS if self._shows_probe(in_call_form(conversation, form))), None)

    def _render_first_accepted(self, messages: Sequence[Mapping[str, object]], variables: dict[str, object]) -> str:
        """Some templates raise at a role or a place that they don't know, others pass over the message."""
        forms = list(conversations(messages, keeps_developer="developer" in self.text))
        system_texts = [str(message["content"]).strip() for message in forms[0] if message["role"] == "system"]
        first_error: Exception | None = None
        incomplete: str | None = None
        for conversation in forms:
            if self._call_form is not None:
                conversation = in_call_form(conversation, self._call_form)
            try:
                prompt = self._render(
                    with_content_parts(conversation) if self._needs_parts else conversation, variables
                )
            except Exception as error:  # noqa: BLE001 - the model's code: whatever it raises, it refuses the request
                first_error = first_error or error
                continue
            if all(text in prompt for text in system_texts):
                return prompt
            incomplete = incomplete or prompt
        if incomplete is not None:
            return incomplete
        reason = str(first_error) or type(first_error).__name__
        raise InvalidRequestError(
            f"The chat template of the model refuses these messages: {reason}", param="messages"
        ) from first_error

    @cached_property
    def _needs_parts(self) -> bool:
        """Whether text given as a string gets lost, and text given as a part doesn't."""
        message: Message = {"role": "user", "content": PROBE}
        return not self._shows_probe([message]) and self._shows_probe(with_content_parts([message]))

    def _shows_probe(self, conversation: list[Message], **more: object) -> bool:
        variables: dict[str, object] = {**self.special_tokens, "add_generation_prompt": True, **more}
        try:
            return PROBE in self._render(conversation, variables)
        except Exception:  # noqa: BLE001 - as in _render_first_accepted
            return False

    def _render(self, conversation: list[Message], variables: dict[str, object]) -> str:
        from transformers.utils.chat_template_utils import render_jinja_template  # takes over a second to import

        # Declared to return a string, it returns a pair. It caches compiled templates by their text.
        render = cast("Callable[..., tuple[list[str], list[object]]]", render_jinja_template)
        prompts, _ = render(conversations=[conversation], chat_template=self.text, **variables)
        return prompts[0]


def load_chat_template(folder: Path) -> ChatTemplate | None:
    """The template of the model in `folder`, None if it has none (a base model).

    From chat_template.jinja, else tokenizer_config.json, else chat_template.json.
    """
    path = folder / "chat_template.jinja"
    text = _read_text(path) if path.is_file() else None
    for name in ("tokenizer_config.json", "chat_template.json"):
        text = text or _default_template(read_json_object(folder, name).get("chat_template"))
    return ChatTemplate(text, special_token_texts(folder)) if text else None


def _read_text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except ValueError as error:
        raise ModelError(f"{path.name} of the model {path.parent.name} is not UTF-8 text.") from error


def _default_template(value: object) -> str | None:
    """A template as it is; of a list of named ones the default, else the first."""
    if isinstance(value, str):
        return value
    if not isinstance(value, list) or not all(isinstance(item, Mapping) for item in value):
        return None
    templates = {item.get("name"): item.get("template") for item in value}
    chosen = templates.get("default") or next(iter(templates.values()), None)
    return chosen if isinstance(chosen, str) else None
