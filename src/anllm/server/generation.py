"""One HTTP request's answers while they are generated: n sequences for each prompt, their text, ends and counts.

The engine's events are turned into text as they come, in the event loop, so that a stop string frees the engine at
once, however slowly the client reads. Text that the client has not taken yet waits here, joined: a slow reader costs at
most the length of its answers. Answers are one text each, or pieces where there is a parser. Knows nothing of JSON.
"""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from anllm.core.events import Finished, PromptLogprobs, Started, TokenLogprobs, Tokens
from anllm.core.request import FinishReason, Request, SamplingParams
from anllm.engine.client import EngineClient, Event
from anllm.errors import from_engine, reason_of
from anllm.metrics.recorder import Recorder
from anllm.metrics.records import ABORT, ERROR, RequestRecord
from anllm.parsers.pieces import Piece
from anllm.parsers.stream import OutputParser, joined
from anllm.server.parsed_output import ParsedOutput
from anllm.text.alignment import TextToken
from anllm.text.interface import Tokenizer
from anllm.text.output import TextOutput


@dataclass(frozen=True, slots=True)
class Prompts:
    """What to generate: `sampling.n` answers to each prompt. With max_tokens 0 nothing is, as `is_empty` says; prompts
    may be scored all the same.

    token_ids: one tuple a prompt; none is empty.
    sampling: for all of them. Its seed None lets one be drawn.
    returns_token_ids: answers come with the ids of their tokens.
    keeps_silent: with log probabilities, tokens without text come too.
    parser: makes one for each answer, where answers have parts; kept: special tokens that it has to see; max_calls: the
        answer ends before it calls more.
    client: the name of the API key that they came with; clients share the engine fairly.
    """

    token_ids: tuple[tuple[int, ...], ...]
    sampling: SamplingParams
    is_empty: bool = False
    returns_token_ids: bool = False
    keeps_silent: bool = False
    parser: Callable[[], OutputParser] | None = None
    kept: frozenset[str] = frozenset()
    max_calls: int | None = None
    client: str = ""


@dataclass(frozen=True, slots=True)
class Update:
    """New text of answer `index`, its tokens if log probabilities were asked for, and in the last one why it ended.

    pieces: what is new where there is a parser; text is empty then.
    token_ids: if they were asked for, of the tokens that came meanwhile; the text of the last ones may be held back.
    prompt_logprobs: if they were asked for, those of the whole prompt, from its second token on; once.
    """

    index: int
    text: str
    finish_reason: FinishReason | None
    tokens: Sequence[TextToken] = ()
    token_ids: Sequence[int] = ()
    prompt_logprobs: Sequence[TokenLogprobs] | None = None
    pieces: Sequence[Piece] = ()
    has_calls: bool = False  # so far
    stop_string: str = ""  # that ended it


@dataclass(frozen=True, slots=True)
class Answer:
    """A whole answer. prompt_logprobs: from the prompt's second token on; none if not asked for. pieces: of an answer
    with parts, whose text is empty then. stop_string: that ended it, or ""."""

    text: str
    finish_reason: FinishReason
    tokens: Sequence[TextToken] = ()
    token_ids: Sequence[int] = ()
    prompt_logprobs: Sequence[TokenLogprobs] = ()
    pieces: Sequence[Piece] = ()
    stop_string: str = ""


@dataclass(frozen=True, slots=True)
class Usage:
    """Tokens so far. Prompts count once, whatever n; cached are those of the prompts found in the prefix cache.
    reasoning_tokens: of the completion's, where they can be told apart."""

    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int
    reasoning_tokens: int = 0


@dataclass(slots=True)
class _Choice:
    output: TextOutput | ParsedOutput
    pending_pieces: list[Piece] = field(default_factory=list)
    pending: list[str] = field(default_factory=list)  # text that the reader has not taken
    pending_tokens: list[TextToken] = field(default_factory=list)
    pending_ids: list[int] = field(default_factory=list)  # of tokens that the reader has not heard of, if it wants them
    prompt_logprobs: list[TokenLogprobs] = field(default_factory=list)
    is_prompt_due: bool = False  # all of them are there, and the reader has not taken them
    finish_reason: FinishReason | None = None
    num_cached_tokens: int = 0


class Generation:
    """Answer number prompt * n + j is answer j to that prompt. Used in one event loop by one reader.

    submit once, then either answers(), or take() whenever news() says so. abort when the reader is gone, whatever
    happened.
    """

    def __init__(self, client: EngineClient, tokenizer: Tokenizer, prompts: Prompts, recorder: Recorder) -> None:
        sampling = prompts.sampling
        own_ends = frozenset[int]() if sampling.ignore_eos else tokenizer.eos_token_ids
        end_token_ids = own_ends | frozenset(sampling.stop_token_ids)
        self._loop = asyncio.get_running_loop()  # asking for it is a system call
        self.tokenizer = tokenizer
        self._client = client
        self._recorder = recorder
        self._prompts = prompts
        self._choices = [
            _Choice(_output(tokenizer, prompts, end_token_ids)) for _ in range(len(prompts.token_ids) * sampling.n)
        ]
        self._open: dict[int, int] = {}  # request id -> index of the answer
        self._touched: dict[int, None] = {}  # answers with news for the reader, in order
        self._error: Exception | None = None
        self._reader: asyncio.Future[None] | None = None  # done when it is to look
        self._ended = asyncio.Event()

    @property
    def num_choices(self) -> int:
        return len(self._choices)

    def prompt_token_ids(self, index: int) -> tuple[int, ...]:
        """Of the prompt that answer `index` goes on from."""
        return self._prompts.token_ids[index // self._prompts.sampling.n]

    @property
    def usage(self) -> Usage:
        firsts = self._choices[:: self._prompts.sampling.n]  # later answers may share what the first one computed
        return Usage(
            prompt_tokens=sum(map(len, self._prompts.token_ids)),
            completion_tokens=sum(choice.output.num_tokens for choice in self._choices),
            cached_tokens=sum(choice.num_cached_tokens for choice in firsts),
            reasoning_tokens=sum(
                choice.output.num_reasoning_tokens
                for choice in self._choices
                if isinstance(choice.output, ParsedOutput)
            ),
        )

    @property
    def outcome(self) -> str:
        """How it ended, for the log: finish reasons, the error's name, or "abort"."""
        if self._error is not None:
            return type(self._error).__name__
        reasons = dict.fromkeys(choice.finish_reason or "abort" for choice in self._choices)
        return ",".join(reasons)

    @property
    def sampling(self) -> SamplingParams:
        """Of all answers."""
        return self._prompts.sampling

    @property
    def error_reason(self) -> str | None:
        """Why it failed, in one word; None if it did not."""
        return None if self._error is None else reason_of(self._error)

    def submit(self, record: RequestRecord) -> None:
        """Hand all sequences to the engine, or none. Raises QueueFullError or NotReadyError. record: of the HTTP
        request; gets the sequences."""
        requests = self._requests(record.id)
        is_empty, record.num_answers = self._prompts.is_empty, self._prompts.sampling.n
        self._open = {request.request_id: index for index, request in enumerate(requests)}
        scores_prompts = self._prompts.sampling.prompt_logprobs is not None
        if scores_prompts:
            for index in range(len(self._choices)):
                self._look_at_prompt(index)  # of a single token there is nothing to tell
        if is_empty and not scores_prompts:
            self._recorder.opened(record, requests, is_empty=True)
            for request_id in list(self._open):
                self._end(request_id, FinishReason.LENGTH)
        else:
            self._client.submit(requests, self._on_event)
            self._recorder.opened(record, requests, is_empty=is_empty)

    @property
    def has_news(self) -> bool:
        """Whether take() has something to give, or to raise."""
        return bool(self._touched) or self._error is not None

    @property
    def is_over(self) -> bool:
        """Whether every answer has ended, and all of them was taken."""
        return not self._open and not self._touched

    def news(self) -> asyncio.Future[None]:
        """Done with the next news, or by wake(). For a reader that has taken all there was."""
        self._reader = self._loop.create_future()
        return self._reader

    def wake(self) -> None:
        """Let the reader look, if it waits for news."""
        if self._reader is not None:
            if not self._reader.done():  # it may have been cancelled
                self._reader.set_result(None)
            self._reader = None

    def take(self) -> list[Update]:
        """All news since the last call. Raises the AnllmError that ended the generation."""
        if self._error is not None:
            raise self._error
        batch = []
        for index in self._touched:
            choice = self._choices[index]
            text = "".join(choice.pending)
            prompt = choice.prompt_logprobs if choice.is_prompt_due else None
            batch.append(
                Update(
                    index,
                    text,
                    choice.finish_reason,
                    choice.pending_tokens,
                    choice.pending_ids,
                    prompt,
                    list(joined(choice.pending_pieces)) if choice.pending_pieces else (),
                    has_calls=isinstance(choice.output, ParsedOutput) and choice.output.has_calls,
                    stop_string=choice.output.stop_string,
                )
            )
            choice.pending, choice.pending_tokens, choice.pending_ids, choice.pending_pieces = [], [], [], []
            choice.is_prompt_due = False
        self._touched.clear()
        return batch

    async def answers(self) -> list[Answer]:
        """All answers, when they have ended. Raises the AnllmError that ended the generation."""
        await self._ended.wait()
        if self._error is not None:
            raise self._error
        return [
            Answer(
                "".join(choice.pending),
                choice.finish_reason or FinishReason.STOP,
                choice.pending_tokens,
                choice.pending_ids,
                choice.prompt_logprobs,
                list(joined(choice.pending_pieces)),
                choice.output.stop_string,
            )
            for choice in self._choices
        ]

    def abort(self) -> None:
        """Stop what still runs. May be called again, and after the end."""
        self._give_up(ABORT)

    def _give_up(self, reason: str, error: str = "") -> None:
        """End what still runs, for this reason (metrics/records.py)."""
        if self._open:
            for request_id in self._open:
                self._recorder.ended(request_id, reason, error)
            self._client.abort(list(self._open))
            self._open.clear()

    def _requests(self, log_id: str) -> list[Request]:
        sampling = self._prompts.sampling
        seed = secrets.randbits(63) if sampling.seed is None else sampling.seed
        now_s = time.monotonic()
        return [
            Request(
                request_id=self._client.next_request_id(),
                prompt_token_ids=self._prompts.token_ids[index // sampling.n],
                params=sampling.for_choice(index, seed),
                arrival_time_s=now_s,
                client=self._prompts.client,
                log_id=log_id,
            )
            for index in range(len(self._choices))
        ]

    # -- events --------------------------------------------------------------------------------------------------------

    def _on_event(self, event: Event) -> None:
        index = self._open.get(event.request_id)
        if index is None:  # its abort and this event crossed
            return
        try:
            self._apply(event, index, self._choices[index])
        except Exception as error:  # noqa: BLE001 - a bug must reach this request's reader, who else waits for ever
            self.fail(error)

    def _apply(self, event: Event, index: int, choice: _Choice) -> None:
        if isinstance(event, PromptLogprobs):
            choice.prompt_logprobs += event.logprobs
            self._look_at_prompt(index)
        elif isinstance(event, Tokens):
            if self._prompts.is_empty:
                return  # drawn since the engine draws at least one
            num_before = choice.output.num_tokens
            self._add_text(index, choice, choice.output.add(event.token_ids, event.logprobs))
            if self._prompts.returns_token_ids:  # none behind a stop string
                choice.pending_ids += event.token_ids[: choice.output.num_tokens - num_before]
            if choice.output.stopped:
                self._end(event.request_id, FinishReason.STOP)
                self._client.abort((event.request_id,))
        elif isinstance(event, Started):
            choice.num_cached_tokens = event.num_cached_tokens
        elif isinstance(event, Finished):
            is_cut = event.finish_reason is FinishReason.LENGTH
            self._add_text(index, choice, choice.output.finish(is_cut=is_cut))
            is_stop = event.finish_reason is FinishReason.STOP or choice.output.stopped
            reason = FinishReason.STOP if is_stop and not self._prompts.is_empty else FinishReason.LENGTH
            self._end(event.request_id, reason)
        else:
            self.fail(from_engine(event.error, event.message))

    def _look_at_prompt(self, index: int) -> None:
        """Tell the reader once all of the prompt has been scored."""
        choice = self._choices[index]
        if len(choice.prompt_logprobs) == len(self.prompt_token_ids(index)) - 1:
            choice.is_prompt_due = True
            self._touched[index] = None
            self.wake()

    def _add_text(self, index: int, choice: _Choice, text: str | list[Piece]) -> None:
        tokens = choice.output.take_tokens() if choice.output.has_logprobs else ()
        if text or tokens:
            if isinstance(text, str):
                choice.pending.append(text)
            else:
                choice.pending_pieces += text
            choice.pending_tokens += tokens
            self._touched[index] = None
            self.wake()

    def _end(self, request_id: int, reason: FinishReason) -> None:
        index = self._open.pop(request_id)
        self._recorder.ended(request_id, reason)
        self._choices[index].finish_reason = reason
        self._touched[index] = None
        self.wake()
        if not self._open:
            self._ended.set()

    def fail(self, error: Exception) -> None:
        """End it so, unless it has ended."""
        if self._ended.is_set():
            return
        self._error = error
        self._give_up(ERROR, reason_of(error))
        self.wake()
        self._ended.set()


def _output(tokenizer: Tokenizer, prompts: Prompts, end_token_ids: frozenset[int]) -> TextOutput | ParsedOutput:
    sampling = prompts.sampling
    if prompts.parser is not None:
        return ParsedOutput(
            tokenizer,
            prompts.parser(),
            sampling.stop,
            end_token_ids,
            kept=prompts.kept,
            max_calls=prompts.max_calls,
            includes_stop=sampling.include_stop_str_in_output,
            skips_special=sampling.skip_special_tokens,
            has_logprobs=sampling.logprobs is not None,
        )
    return TextOutput(
        tokenizer,
        sampling.stop,
        end_token_ids,
        includes_stop=sampling.include_stop_str_in_output,
        skips_special=sampling.skip_special_tokens,
        has_logprobs=sampling.logprobs is not None,
        keeps_silent=prompts.keeps_silent,
    )
