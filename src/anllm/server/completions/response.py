"""The shapes of a completion: whole, and in chunks."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from anllm.core.events import TokenLogprobs
from anllm.core.request import FinishReason
from anllm.errors import AnllmError
from anllm.server.answers import AnswerHead, ChunkFrame, prompt_logprobs_fields, quote, usage_fields
from anllm.server.completions.convert import CompletionPlan
from anllm.server.completions.logprobs import completion_logprobs
from anllm.server.dialect import Dialect
from anllm.server.generation import Answer, Generation, Update
from anllm.server.protocol import StreamOptions
from anllm.server.service import Service
from anllm.server.sse import DONE, KEEP_ALIVE, event, to_ascii_json
from anllm.text.alignment import TextToken, align_prompt

_KIND = "text_completion"


class CompletionAnswer:
    def __init__(self, service: Service, plan: CompletionPlan, generation: Generation) -> None:
        self._head = AnswerHead("cmpl", plan.request.model, service.system_fingerprint)
        self._options = plan.request.stream_options or StreamOptions()
        self._generation = generation
        n = plan.prompts.sampling.n
        self._echoes = [echo for echo in plan.echoes for _ in range(n)]
        self._offsets = [offset for offset in plan.offsets for _ in range(n)]
        self._has_echo = bool(plan.request.echo)
        self._num_top = plan.request.logprobs
        self._num_prompt_top = plan.request.prompt_logprobs
        self._has_token_ids = bool(plan.request.return_token_ids)

    @property
    def id(self) -> str:
        return self._head.id

    def whole(self, answers: list[Answer]) -> bytes:
        return msgspec.json.encode(
            {
                **self._head.fields(_KIND),
                "choices": [
                    self._choice(index, echo, answer)
                    for index, (echo, answer) in enumerate(zip(self._echoes, answers, strict=True))
                ],
                "usage": usage_fields(self._generation.usage),
            }
        )

    def chunks(self) -> CompletionChunks:
        frame = ChunkFrame(
            self._head,
            _KIND,
            lambda: self._generation.usage,
            include_usage=bool(self._options.include_usage),
            is_running=bool(self._options.continuous_usage_stats),
        )
        prompts = None
        if self._has_token_ids:
            prompts = [self._generation.prompt_token_ids(index) for index in range(self._generation.num_choices)]
        return CompletionChunks(frame, self._generation, self._echoes, self._offsets, self._num_top, prompts)

    def _choice(self, index: int, echo: str, answer: Answer) -> dict[str, object]:
        logprobs = None
        if self._num_top is not None:
            parts = [(answer.tokens, self._offsets[index])]
            if self._has_echo:
                parts.insert(0, (prompt_tokens(self._generation, index, answer.prompt_logprobs), 0))
            logprobs = completion_logprobs(self._num_top, *parts)
        return {
            "index": index,
            "text": echo + answer.text,
            "logprobs": logprobs,
            "finish_reason": answer.finish_reason,
            **self._token_ids(index, answer),
            **prompt_logprobs_fields(self._generation, index, answer.prompt_logprobs, self._num_prompt_top),
        }

    def _token_ids(self, index: int, answer: Answer) -> dict[str, object]:
        if not self._has_token_ids:
            return {}
        return {"token_ids": answer.token_ids, "prompt_token_ids": self._generation.prompt_token_ids(index)}


def prompt_tokens(generation: Generation, index: int, logprobs: Sequence[TokenLogprobs]) -> list[TextToken]:
    """Of the prompt of answer `index`."""
    return align_prompt(generation.tokenizer, generation.prompt_token_ids(index), logprobs)


class CompletionChunks:
    """The echoed prompts first, then text as it comes; the last chunk of a choice carries its end. With log
    probabilities, a prompt is echoed when it has been scored.

    num_top: how many log probabilities a token has besides its own; None for none at all.
    prompt_token_ids: of each choice, for its first chunk; each chunk then has the ids of its tokens. None for no ids.
    """

    keep_alive = KEEP_ALIVE

    def __init__(
        self,
        frame: ChunkFrame,
        generation: Generation,
        echoes: list[str],
        offsets: list[int],
        num_top: int | None,
        prompt_token_ids: Sequence[Sequence[int]] | None,
    ) -> None:
        self._prompt_token_ids = None if prompt_token_ids is None else dict(enumerate(prompt_token_ids))
        self._frame = frame
        self._generation = generation
        self._echoes = echoes
        self._offsets = offsets
        self._num_top = num_top

    def opening(self) -> bytes:
        if self._num_top is not None:
            return b""
        return b"".join(self._chunk(index, echo) for index, echo in enumerate(self._echoes) if echo)

    def update(self, update: Update) -> bytes:
        echo, logprobs = b"", "null"
        if self._num_top is not None and update.prompt_logprobs is not None:
            tokens = prompt_tokens(self._generation, update.index, update.prompt_logprobs)
            told = to_ascii_json(completion_logprobs(self._num_top, (tokens, 0)))
            echo = self._chunk(update.index, self._echoes[update.index], told)
            if not (update.text or update.tokens or update.finish_reason):
                return echo
        if self._num_top is not None and update.tokens:
            told_of = (update.tokens, self._offsets[update.index])
            logprobs = to_ascii_json(completion_logprobs(self._num_top, told_of))
        return echo + self._chunk(update.index, update.text, logprobs, update.finish_reason, update.token_ids)

    def closing(self) -> bytes:
        return self._frame.closing() + DONE

    def failure(self, error: AnllmError, request_id: str) -> bytes:
        return event(Dialect.OPENAI.error_object(error, request_id)) + DONE

    def _chunk(
        self,
        index: int,
        text: str,
        logprobs: str = "null",
        reason: FinishReason | None = None,
        token_ids: Sequence[int] = (),
    ) -> bytes:
        finish = "null" if reason is None else f'"{reason}"'
        ids = "" if self._prompt_token_ids is None else self._ids(index, token_ids)
        return self._frame.chunk(
            f'{{"index":{index},"text":{quote(text)},"logprobs":{logprobs},"finish_reason":{finish}{ids}}}'
        )

    def _ids(self, index: int, token_ids: Sequence[int]) -> str:
        """Those of the prompt in the choice's first chunk only."""
        assert self._prompt_token_ids is not None
        prompt = self._prompt_token_ids.pop(index, None)
        return f',"token_ids":{to_ascii_json(token_ids)},"prompt_token_ids":{to_ascii_json(prompt)}'
