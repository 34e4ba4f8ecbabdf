"""From the messages of a Messages request to messages for the chat template. All raise InvalidRequestError."""

from __future__ import annotations

import json
from collections.abc import Sequence

from anllm.server.messages.block_protocol import DROPPED_BLOCKS, Block, Source, TextBlock
from anllm.server.messages.protocol import Conversation, Message
from anllm.server.validation import invalid, missing

PlainMessage = dict[str, object]

# Claude Code's first line, other with each request: nothing that follows it would be found in the prefix cache.
# https://github.com/anthropics/claude-code/issues/68900
_BILLING_HEADER = "x-anthropic-billing-header:"
_NON_TEXT = "the model takes text only, got a block of type '{}'"


def to_messages(request: Conversation) -> list[PlainMessage]:
    """For the chat template. Results of tools stand in front of what else the user says in the same message."""
    plain: list[PlainMessage] = []
    if system := _system_text(request.system):
        plain.append({"role": "system", "content": system})
    call_ids: set[str] = set()
    last_of_user = max((index for index, message in enumerate(request.messages) if message.role == "user"), default=-1)
    for index, message in enumerate(request.messages):
        param = f"messages[{index}].content"
        if message.role == "system" and message.clear_at == "next_user_message" and index < last_of_user:
            continue
        if isinstance(message.content, str):
            plain.append({"role": message.role, "content": message.content})
        elif message.role == "assistant":
            plain.append(_assistant_turn(message.content, param, call_ids))
        else:
            plain += _user_turn(message.role, message.content, param, call_ids)
    return plain


def is_begun_answer(message: Message) -> bool:
    """Whether the answer is to go on from this last message, as far as the assistant has come."""
    if message.role != "assistant":
        return False
    return isinstance(message.content, str) or all(block.type != "tool_use" for block in message.content)


def _system_text(system: str | list[TextBlock] | None) -> str:
    texts = [system] if isinstance(system, str) else [block.text for block in system or ()]
    if texts and texts[0].startswith(_BILLING_HEADER):
        texts[0] = texts[0].partition("\n")[2]
    return "\n".join(filter(None, texts))


def _assistant_turn(blocks: Sequence[Block], param: str, call_ids: set[str]) -> PlainMessage:
    """What the model thought, said and called. call_ids: gets those of the calls."""
    texts, thoughts, calls = [], [], []
    for index, block in enumerate(blocks):
        place = f"{param}[{index}]"
        match block.type:
            case "thinking":
                thoughts.append(block.thinking or "")
            case "tool_use":
                calls.append(_call(block, place))
                call_ids.add(block.id or "")
            case "tool_result":
                raise invalid(f"{place}.type", "a tool_result belongs to a message of the user", given=block.type)
            case _:
                texts += _texts(block, place)
    turn: PlainMessage = {"role": "assistant", "content": "".join(texts)}
    if thought := "\n\n".join(filter(None, thoughts)):
        turn["reasoning_content"] = thought
    if calls:
        turn["tool_calls"] = calls
    return turn


def _call(block: Block, param: str) -> PlainMessage:
    for key, value in (("id", block.id), ("name", block.name)):
        if value is None:
            raise missing(f"{param}.{key}")
    arguments = json.dumps(block.input or {}, ensure_ascii=False)
    return {"id": block.id, "type": "function", "function": {"name": block.name, "arguments": arguments}}


def _user_turn(role: str, blocks: Sequence[Block], param: str, call_ids: set[str]) -> list[PlainMessage]:
    results, texts = [], []
    for index, block in enumerate(blocks):
        place = f"{param}[{index}]"
        if block.type == "tool_result" and role == "user":
            results.append(_result(block, place, call_ids))
        elif block.type in ("tool_use", "tool_result", "thinking"):
            rule = f"a {block.type} does not belong to a message of the {role}"
            raise invalid(f"{place}.type", rule, given=block.type)
        else:
            texts += _texts(block, place)
    if results and not texts:
        return results
    return [*results, {"role": role, "content": _content(texts)}]


def _result(block: Block, param: str, call_ids: set[str]) -> PlainMessage:
    if block.tool_use_id is None:
        raise missing(f"{param}.tool_use_id")
    if block.tool_use_id not in call_ids:
        rule = "must be the id of a tool_use in an earlier message of the assistant"
        raise invalid(f"{param}.tool_use_id", rule, given=block.tool_use_id)
    texts = _inner_texts(block.content, f"{param}.content")
    if block.is_error and not "".join(texts).casefold().startswith(("error", "<tool_use_error>")):
        texts = [f"Error: {'' if not texts else texts[0]}", *texts[1:]]
    return {"role": "tool", "tool_call_id": block.tool_use_id, "content": _content(texts)}


def _content(texts: Sequence[str]) -> object:
    """Several texts stay parts, for templates that look at each."""
    return [{"type": "text", "text": text} for text in texts] if len(texts) > 1 else "".join(texts)


def _inner_texts(content: str | Sequence[Block] | None, param: str) -> list[str]:
    if content is None or isinstance(content, str):
        return [content or ""]
    return [text for index, block in enumerate(content) for text in _texts(block, f"{param}[{index}]")]


def _texts(block: Block, param: str) -> list[str]:
    """What can be read of it; nothing of blocks that only Anthropic's servers understand."""
    if block.type in DROPPED_BLOCKS:
        return []
    match block.type:
        case "text":
            if block.text is None:
                raise missing(f"{param}.text")
            return [block.text]
        case "search_result":
            heading = [text for text in (block.title, block.source) if isinstance(text, str)]
            return ["\n".join([*heading, *_inner_texts(block.content, f"{param}.content")])]
        case "document":
            return [_document_text(block, param)]
        case "compaction":  # the summary that stands for all before it; null if there was none
            return [text for text in _inner_texts(block.content, f"{param}.content") if text]
        case "image":
            raise invalid(f"{param}.type", _NON_TEXT.format("image"), None)
        case _:
            raise invalid(f"{param}.type", "must be 'text'", given=block.type)


def _document_text(block: Block, param: str) -> str:
    """Of a document that is text: its title, what is said about it, and itself."""
    heading = [text for text in (block.title, block.context) if text]
    return "\n".join([*heading, *_source_texts(block.source, f"{param}.source")])


def _source_texts(source: str | Source | None, param: str) -> list[str]:
    match source:
        case Source(type="text", data=str(text)):
            return [text]
        case Source(type="content", content=str() | list() as content):
            return _inner_texts(content, f"{param}.content")
    kind = source.type if isinstance(source, Source) else source
    rule = "the model takes text only: must be 'text', with its 'data', or 'content', with its 'content'"
    raise invalid(f"{param}.type", rule, given=kind)
