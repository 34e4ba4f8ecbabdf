"""The parts of a chat answer: its content, what the model thought, and its calls; whole, and as deltas of a stream."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from anllm.core.request import FinishReason
from anllm.parsers.pieces import CallArguments, CallBegun, Content, Piece, Reasoning
from anllm.server.answers import new_call_id, quote
from anllm.server.sse import to_ascii_json


def message_of(pieces: Iterable[Piece], *, is_legacy: bool) -> dict[str, object]:
    """The keys of a message that depend on what the model wrote. is_legacy: a call as `function_call`."""
    content, reasoning = [], []
    calls: list[tuple[str, list[str]]] = []
    for piece in pieces:
        match piece:
            case Content():
                content.append(piece.text)
            case Reasoning():
                reasoning.append(piece.text)
            case CallBegun():
                calls.append((piece.name, []))
            case CallArguments():
                calls[-1][1].append(piece.text)
    functions = [{"name": name, "arguments": "".join(arguments)} for name, arguments in calls]
    message: dict[str, object] = {"content": "".join(content) if content or not calls else None}
    if reasoning:
        message["reasoning_content"] = "".join(reasoning)
    if functions and is_legacy:
        message["function_call"] = functions[0]
    elif functions:
        message["tool_calls"] = [{"id": new_call_id(), "type": "function", "function": f} for f in functions]
    return message


def finish_reason(reason: FinishReason, *, has_calls: bool, is_legacy: bool) -> str:
    """Calls are why an answer ended, unless a limit cut it."""
    if reason is not FinishReason.STOP or not has_calls:
        return str(reason)
    return "function_call" if is_legacy else "tool_calls"


class CallDeltas:
    """The deltas of one answer, as JSON; counts its calls."""

    def __init__(self, *, is_legacy: bool) -> None:
        self._is_legacy = is_legacy
        self._num_calls = 0

    def of(self, pieces: Sequence[Piece]) -> Iterator[tuple[str, bool]]:
        """Each piece's delta, and whether it is content."""
        for piece in pieces:
            match piece:
                case Content():
                    yield f'{{"content":{quote(piece.text)}}}', True
                case Reasoning():
                    yield f'{{"reasoning_content":{quote(piece.text)}}}', False
                case CallBegun():
                    yield self._begin(piece.name), False
                case CallArguments():
                    yield self._go_on(piece.text), False

    def _begin(self, name: str) -> str:
        """Index, id, type and name come here and in no later delta: clients join what is repeated."""
        self._num_calls += 1
        function = {"name": name, "arguments": ""}
        if self._is_legacy:
            return to_ascii_json({"function_call": function})
        call = {"index": self._num_calls - 1, "id": new_call_id(), "type": "function", "function": function}
        return to_ascii_json({"tool_calls": [call]})

    def _go_on(self, text: str) -> str:
        if self._is_legacy:
            return f'{{"function_call":{{"arguments":{quote(text)}}}}}'
        return f'{{"tool_calls":[{{"index":{self._num_calls - 1},"function":{{"arguments":{quote(text)}}}}}]}}'
