"""A scheduler and a fake model in one loop under a clock: requests in, answers out, everything checked on the way."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from zlib import crc32

from anllm.config import SchedulerConfig
from anllm.core.events import StepEvents, TokenLogprobs
from anllm.core.request import FinishReason, Request, SamplingParams
from anllm.core.step import StepPlan
from anllm.kvcache.pool import KVPool
from anllm.scheduler.scheduler import Scheduler
from anllm.testing import FakeClock, FakeRunner
from anllm.testing.runner import LETTERS, Model, letters

EOS = 256


def make_request(request_id: int = 0, num_tokens: int = 10, *, prompt: tuple[int, ...] = (), **params: Any) -> Request:
    """A prompt that differs from that of every other id, unless given."""
    prompt = prompt or tuple((request_id * 7 + i * i) % 256 for i in range(num_tokens))
    return Request(
        request_id=request_id,
        prompt_token_ids=prompt,
        params=SamplingParams(**{"max_tokens": 8, "seed": 0, **params}),
    )


def letters_and_ends(token_ids: tuple[int, ...]) -> int:
    """Like `letters`, but about one token in twenty is the end token."""
    number = crc32(repr(token_ids).encode())
    return EOS if number % 20 == 0 else LETTERS[number % len(LETTERS)]


def nearby(token_ids: tuple[int, ...]) -> int:
    """Looks at the number of tokens and the last ones only, so that long answers stay cheap."""
    return letters((len(token_ids), *token_ids[-4:]))


def alone(request: Request, model: Model = letters, *, max_model_len: int = 4096) -> tuple[list[int], FinishReason]:
    """What the request gets when nobody else is there: the model asked token by token, in the plainest way."""
    prompt, params, outputs = request.prompt_token_ids, request.params, list[int]()
    ends = {*params.stop_token_ids} | (set() if params.ignore_eos else {EOS})
    while True:
        outputs.append(model((*prompt, *outputs)))
        if outputs[-1] in ends:
            return outputs, FinishReason.STOP
        if len(outputs) == params.max_tokens or len(prompt) + len(outputs) == max_model_len:
            return outputs, FinishReason.LENGTH


class Stepper:
    """The engine by hand. `tokens` and `ends` tell what each request got so far."""

    def __init__(
        self,
        *,
        model: Model = letters,
        max_model_len: int = 4096,
        kv_budget_tokens: int = 1 << 20,
        step_s: Callable[[StepPlan], float] = lambda plan: 0.0,
        before_run: Callable[[StepPlan], None] = lambda plan: None,
        reuses_prefixes: bool = True,
        **config: int,
    ) -> None:
        self.clock = FakeClock()
        self.max_model_len = max_model_len
        self.model = model
        self.runner = FakeRunner(
            model, max_model_len=max_model_len, kv_budget_tokens=kv_budget_tokens, before_run=before_run
        )
        self.pool = KVPool(budget_bytes=kv_budget_tokens, bytes_per_token=1, max_model_len=max_model_len)
        self.scheduler = Scheduler(
            SchedulerConfig(**config),
            self.pool,
            max_model_len=max_model_len,
            eos_token_ids=(EOS,),
            reuses_prefixes=reuses_prefixes,
        )
        self.requests: dict[int, Request] = {}
        self.tokens: dict[int, list[int]] = {}
        self.ends: dict[int, FinishReason | str] = {}
        self.num_cached: dict[int, int] = {}  # tokens of prompts that were not computed again, as told with the end
        self.scores: dict[int, list[TokenLogprobs]] = {}  # of prompts
        self._step_s = step_s

    def add(self, *requests: Request) -> None:
        for request in requests:
            self.scheduler.add(request)
            self.requests[request.request_id] = request
            self.tokens[request.request_id] = []

    def abort(self, request_id: int) -> None:
        self.scheduler.abort(request_id)
        self.scheduler.check_integrity()

    def schedule(self) -> StepPlan | None:
        plan = self.scheduler.schedule(self.clock())
        self.scheduler.check_integrity()
        return plan

    def finish(self, plan: StepPlan) -> None:
        """Run a plan and take its result in. A step that raises fails."""
        try:
            result = self.runner.run(plan)
        except RuntimeError as error:
            self._collect(self.scheduler.fail(plan, str(error)))
            return
        self.clock.advance(self._step_s(plan))
        self._collect(self.scheduler.update(plan, result, self.clock()))

    def step(self) -> StepPlan | None:
        plan = self.schedule()
        if plan is not None:
            self.finish(plan)
        return plan

    def run(self, max_steps: int = 5000) -> list[StepPlan]:
        """Step until nothing is left to do."""
        plans: list[StepPlan] = []
        while self.scheduler.has_work:
            plan = self.step()
            assert plan is not None, "there are requests, but nothing to do"
            plans.append(plan)
            assert len(plans) <= max_steps, "it does not end"
        self.check_idle()
        return plans

    def run_until(self, condition: Callable[[], object], max_steps: int = 1000) -> list[StepPlan]:
        plans: list[StepPlan] = []
        while not condition():
            plan = self.step()
            assert plan is not None, "there is nothing left to do"
            plans.append(plan)
            assert len(plans) <= max_steps, "it never came to hold"
        return plans

    def check_idle(self) -> None:
        """Everything is free, but for the rows that are kept for what is in them."""
        assert self.step() is None
        assert (self.scheduler.num_waiting, self.scheduler.num_running) == (0, 0)
        assert self.pool.num_owned_slots == self.scheduler.num_warm_rows
        self.scheduler.check_integrity()

    def check_answer(self, request_id: int) -> None:
        """The request got just what it gets alone."""
        expected = alone(self.requests[request_id], self.model, max_model_len=self.max_model_len)
        assert (self.tokens[request_id], self.ends[request_id]) == expected

    def check_scores(self, request_id: int) -> None:
        """Each token of the prompt but the first was scored once, as the fake model does it; or none, if not asked."""
        request = self.requests[request_id]
        number = request.params.prompt_logprobs
        expected = [] if number is None else [-1 - token % 64 for token in request.prompt_token_ids[:-1]]
        scores = self.scores.get(request_id, [])
        assert [score.logprob for score in scores] == expected
        assert all(len(score.top) == number for score in scores)

    def check_answers(self) -> None:
        for request_id in self.requests:
            self.check_answer(request_id)

    def _collect(self, events: StepEvents) -> None:
        self.scheduler.check_integrity()
        for scored in events.prompts:
            assert not self.tokens[scored.request_id], "the prompt's come first"
            self.scores.setdefault(scored.request_id, []).extend(scored.logprobs)
        for started in events.started:
            assert not self.tokens[started.request_id], "the start comes first, and once"
            self.num_cached[started.request_id] = started.num_cached_tokens
        for tokens in events.tokens:
            assert tokens.request_id not in self.ends
            self.tokens[tokens.request_id].extend(tokens.token_ids)
        for finished in events.finished:
            assert self.ends.setdefault(finished.request_id, finished.finish_reason) is finished.finish_reason
        for failed in events.failed:
            assert failed.request_id not in self.ends
            self.ends[failed.request_id] = failed.error
