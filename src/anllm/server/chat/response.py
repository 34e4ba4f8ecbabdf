"""The shapes of a chat answer: whole, and in chunks."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from anllm.errors import AnllmError
from anllm.parsers.pieces import CallBegun, Reasoning
from anllm.server.answers import AnswerHead, ChunkFrame, prompt_logprobs_fields, quote, usage_fields
from anllm.server.chat.convert import ChatPlan
from anllm.server.chat.logprobs import chat_logprobs
from anllm.server.chat.parts import CallDeltas, finish_reason, message_of
from anllm.server.dialect import Dialect
from anllm.server.generation import Answer, Generation, Update
from anllm.server.protocol import StreamOptions
from anllm.server.service import Service
from anllm.server.sse import DONE, KEEP_ALIVE, event, to_ascii_json
from anllm.text.alignment import TextToken


class ChatAnswer:
    def __init__(self, service: Service, plan: ChatPlan, generation: Generation) -> None:
        request = plan.request
        self._hides_reasoning = request.include_reasoning is False
        self._is_legacy = plan.use.is_legacy
        self._has_parts = plan.prompts.parser is not None
        tier = None if request.service_tier is None else "default"
        self._head = AnswerHead("chatcmpl", request.model, service.system_fingerprint, tier)
        self._options = request.stream_options or StreamOptions()
        self._has_logprobs = bool(request.logprobs)
        self._has_token_ids = bool(request.return_token_ids)
        self._num_prompt_top = request.prompt_logprobs
        self._generation = generation

    @property
    def id(self) -> str:
        return self._head.id

    def whole(self, answers: list[Answer]) -> bytes:
        return msgspec.json.encode(
            {
                **self._head.fields("chat.completion"),
                "choices": [self._choice(index, answer) for index, answer in enumerate(answers)],
                "usage": usage_fields(self._generation.usage),
                **({"prompt_token_ids": self._generation.prompt_token_ids(0)} if self._has_token_ids else {}),
                **prompt_logprobs_fields(self._generation, 0, answers[0].prompt_logprobs, self._num_prompt_top),
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
        prompt_token_ids = self._generation.prompt_token_ids(0) if self._has_token_ids else None
        return ChatChunks(
            frame,
            self._generation.num_choices,
            has_logprobs=self._has_logprobs,
            prompt_token_ids=prompt_token_ids,
            hides_reasoning=self._hides_reasoning,
            is_legacy=self._is_legacy,
        )

    def _choice(self, index: int, answer: Answer) -> dict[str, object]:
        pieces = [p for p in answer.pieces if not (self._hides_reasoning and isinstance(p, Reasoning))]
        has_calls = any(isinstance(piece, CallBegun) for piece in pieces)
        written = message_of(pieces, is_legacy=self._is_legacy) if self._has_parts else {"content": answer.text}
        return {
            "index": index,
            "message": {"role": "assistant", **written, "refusal": None, "annotations": []},
            "logprobs": chat_logprobs(answer.tokens) if self._has_logprobs else None,
            "finish_reason": finish_reason(answer.finish_reason, has_calls=has_calls, is_legacy=self._is_legacy),
            **({"token_ids": answer.token_ids} if self._has_token_ids else {}),
        }


class ChatChunks:
    """Role chunks of all choices in order, then text as it comes, an end for each; clients insist on that order.

    prompt_token_ids: stand in the first chunk, and each further one has the ids of its tokens; None for no ids.
    """

    keep_alive = KEEP_ALIVE

    def __init__(
        self,
        frame: ChunkFrame,
        num_choices: int,
        *,
        has_logprobs: bool,
        prompt_token_ids: Sequence[int] | None,
        hides_reasoning: bool = False,
        is_legacy: bool = False,
    ) -> None:
        self._hides_reasoning = hides_reasoning
        self._is_legacy = is_legacy
        self._deltas = [CallDeltas(is_legacy=is_legacy) for _ in range(num_choices)]
        self._prompt_token_ids = prompt_token_ids
        self._frame = frame
        self._num_choices = num_choices
        self._has_logprobs = has_logprobs

    def opening(self) -> bytes:
        delta = '{"role":"assistant","content":"","refusal":null}'
        logprobs = self._logprobs(())
        ids = "" if self._prompt_token_ids is None else f',"prompt_token_ids":{to_ascii_json(self._prompt_token_ids)}'
        return b"".join(
            self._chunk(index, delta, logprobs, more="" if index else ids) for index in range(self._num_choices)
        )

    def update(self, update: Update) -> bytes:
        text, token_ids = b"", update.token_ids
        if update.text:
            delta = f'{{"content":{quote(update.text)}}}'
            text = self._chunk(update.index, delta, self._logprobs(update.tokens), token_ids=token_ids)
            token_ids = ()
        elif update.pieces or update.tokens:
            text, token_ids = self._parts(update), ()
        if update.finish_reason is None:
            return text
        reason = finish_reason(update.finish_reason, has_calls=update.has_calls, is_legacy=self._is_legacy)
        return text + self._chunk(update.index, "{}", "null", f'"{reason}"', token_ids=token_ids)

    def _parts(self, update: Update) -> bytes:
        """A chunk for each piece. All new tokens go with the first piece, and what is known of the content's with the
        first content."""
        tokens, token_ids, chunks = update.tokens, update.token_ids, []
        for delta, is_content in self._deltas[update.index].of(
            [p for p in update.pieces if not (self._hides_reasoning and isinstance(p, Reasoning))]
        ):
            logprobs = self._logprobs(tokens) if is_content else "null"
            chunks.append(self._chunk(update.index, delta, logprobs, token_ids=token_ids))
            tokens, token_ids = () if is_content else tokens, ()
        if tokens or token_ids:
            chunks.append(self._chunk(update.index, "{}", self._logprobs(tokens), token_ids=token_ids))
        return b"".join(chunks)

    def closing(self) -> bytes:
        return self._frame.closing() + DONE

    def failure(self, error: AnllmError, request_id: str) -> bytes:
        return event(Dialect.OPENAI.error_object(error, request_id)) + DONE

    def _logprobs(self, tokens: Sequence[TextToken]) -> str:
        return to_ascii_json(chat_logprobs(tokens)) if self._has_logprobs else "null"

    def _chunk(
        self,
        index: int,
        delta: str,
        logprobs: str,
        reason: str = "null",
        *,
        token_ids: Sequence[int] = (),
        more: str = "",
    ) -> bytes:
        """delta, logprobs and reason as JSON."""
        ids = "" if self._prompt_token_ids is None else f',"token_ids":{to_ascii_json(token_ids)}'
        choice = f'{{"index":{index},"delta":{delta},"logprobs":{logprobs},"finish_reason":{reason}{ids}}}'
        return self._frame.chunk(choice, more)
