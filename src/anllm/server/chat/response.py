"""The shapes of a chat answer: whole, and in chunks."""

from __future__ import annotations

import msgspec

from anllm.core.request import FinishReason
from anllm.server.answers import AnswerHead, ChunkFrame, quote, usage_fields
from anllm.server.chat.protocol import ChatCompletionRequest
from anllm.server.generation import Answer, Generation, Update
from anllm.server.protocol import StreamOptions
from anllm.server.service import Service


class ChatAnswer:
    def __init__(self, service: Service, request: ChatCompletionRequest, generation: Generation) -> None:
        tier = None if request.service_tier is None else "default"
        self._head = AnswerHead("chatcmpl", request.model, service.system_fingerprint, tier)
        self._options = request.stream_options or StreamOptions()
        self._generation = generation

    def whole(self, answers: list[Answer]) -> bytes:
        return msgspec.json.encode(
            {
                **self._head.fields("chat.completion"),
                "choices": [_choice(index, answer) for index, answer in enumerate(answers)],
                "usage": usage_fields(self._generation.usage),
            }
        )

    def chunks(self) -> ChatChunks:
        frame = ChunkFrame(
            self._head,
            "chat.completion.chunk",
            lambda: self._generation.usage,
            include_usage=bool(self._options.include_usage),
            is_running=bool(self._options.continuous_usage_stats),
        )
        return ChatChunks(frame, self._generation.num_choices)


class ChatChunks:
    """Role chunks of all choices in order, then text as it comes, an end for each; clients insist on that order."""

    def __init__(self, frame: ChunkFrame, num_choices: int) -> None:
        self._frame = frame
        self._num_choices = num_choices

    def opening(self) -> bytes:
        delta = '{"role":"assistant","content":"","refusal":null}'
        return b"".join(self._chunk(index, delta) for index in range(self._num_choices))

    def update(self, update: Update) -> bytes:
        text = self._chunk(update.index, f'{{"content":{quote(update.text)}}}') if update.text else b""
        if update.finish_reason is None:
            return text
        return text + self._chunk(update.index, "{}", update.finish_reason)

    def closing(self) -> bytes:
        return self._frame.closing()

    def _chunk(self, index: int, delta: str, reason: FinishReason | None = None) -> bytes:
        finish = "null" if reason is None else f'"{reason}"'
        return self._frame.chunk(f'{{"index":{index},"delta":{delta},"logprobs":null,"finish_reason":{finish}}}')


def _choice(index: int, answer: Answer) -> dict[str, object]:
    return {
        "index": index,
        "message": {"role": "assistant", "content": answer.text, "refusal": None, "annotations": []},
        "logprobs": None,
        "finish_reason": answer.finish_reason,
    }
