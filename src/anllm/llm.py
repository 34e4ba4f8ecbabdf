"""The engine as a library: Engine (tokens in, tokens out) and LLM (text in, text out), on the caller's machine.

The same scheduler, loop and runner as the server's, without HTTP and without a second process.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from itertools import islice
from pathlib import Path
from typing import Any

from anllm.config import CacheConfig, GenerationConfig, ModelConfig, SchedulerConfig
from anllm.core.request import FinishReason, SamplingDefaults, SamplingParams
from anllm.core.step import Runner
from anllm.engine.driver import EngineDriver
from anllm.errors import InvalidRequestError
from anllm.runner.build import RunnerSettings, build_runner
from anllm.store.cache import cache_folder
from anllm.store.progress import NoProgress
from anllm.store.resolve import fetch, parse_source
from anllm.text.chat_template import ChatTemplate, load_chat_template
from anllm.text.generation_config import load_sampling_defaults
from anllm.text.interface import Tokenizer
from anllm.text.output import TextOutput
from anllm.text.tokenizer import load_tokenizer
from anllm.worker import mask_maker


class Engine(EngineDriver):
    """A loaded model that takes token ids: submit, poll, step, abort, run_until_complete, stream.

    >>> with Engine() as engine:                                      # the embedded default model
    ...     request_id = engine.submit([504, 3575, 282], SamplingParams(temperature=0, max_tokens=5))
    ...     engine.run_until_complete()[request_id].new_token_ids     # doctest: +SKIP
    """

    def __init__(
        self,
        model: str | None = None,
        *,
        model_config: ModelConfig | None = None,
        cache: CacheConfig | None = None,
        scheduler: SchedulerConfig | None = None,
    ) -> None:
        """model: hub id, folder, or .gguf file; None is the embedded default. Raises ModelError, ConfigError."""
        folder = model_folder(model)
        scheduler = scheduler or SchedulerConfig()
        tokenizer = load_tokenizer(folder)
        eos_token_ids = tuple(sorted(tokenizer.eos_token_ids))
        settings = RunnerSettings(
            folder, eos_token_ids, model_config or ModelConfig(model=model), cache or CacheConfig(), scheduler
        )
        super().__init__(runner_factory(settings), scheduler, mask_maker(lambda: tokenizer))


@dataclass(frozen=True, slots=True)
class Completion:
    """One answer. token_ids hold the end token, if one was sampled; text holds neither it nor a stop string."""

    text: str
    token_ids: tuple[int, ...]
    finish_reason: FinishReason


class LLM:
    """Text in, text out, in batches.

    >>> llm = LLM()                                                                # the embedded default model
    >>> llm.generate(["The sky is"], SamplingParams(max_tokens=8))[0][0].text      # doctest: +SKIP
    >>> llm.chat([[{"role": "user", "content": "Say hi."}]])[0][0].text            # doctest: +SKIP
    """

    def __init__(self, model: str | None = None, **engine_options: Any) -> None:
        """model and options as for Engine. Raises ModelError, ConfigError."""
        folder = model_folder(model)
        self._engine = Engine(str(folder), **engine_options)
        self._max_num_open = (engine_options.get("scheduler") or SchedulerConfig()).max_num_open
        self._tokenizer: Tokenizer = load_tokenizer(folder)
        self._template: ChatTemplate | None = load_chat_template(folder)
        model_config = engine_options.get("model_config") or ModelConfig()
        is_auto = model_config.generation_config is GenerationConfig.AUTO
        defaults = load_sampling_defaults(folder) if is_auto else SamplingDefaults()
        self._default_params = SamplingParams(**asdict(defaults))

    @property
    def engine(self) -> Engine:
        return self._engine

    @property
    def default_params(self) -> SamplingParams:
        """How is drawn where no params are given: as the model's generation_config.json suggests."""
        return self._default_params

    @property
    def tokenizer(self) -> Tokenizer:
        return self._tokenizer

    def generate(
        self, prompts: Sequence[str], params: SamplingParams | None = None, *, show_progress: bool = False
    ) -> list[list[Completion]]:
        """Complete all prompts, batched; for each its params.n answers, in order.

        Raises InvalidRequestError for a prompt that is empty or too long (the others are then given up), StepError if
        the model fails.
        """
        tokens = [self._tokenizer.encode(prompt, add_special_tokens=True) for prompt in prompts]
        return self._complete(tokens, params or self._default_params, show_progress)

    def chat(
        self,
        conversations: Sequence[list[dict[str, Any]]],
        params: SamplingParams | None = None,
        *,
        show_progress: bool = False,
    ) -> list[list[Completion]]:
        """Answer conversations, each a list of {"role", "content"}; as generate().

        Raises InvalidRequestError too where the model has no chat template, or it refuses the messages.
        """
        if self._template is None:
            raise InvalidRequestError("This model has no chat template; use generate().", param="messages")
        prompts = [self._template.render(messages) for messages in conversations]
        tokens = [self._tokenizer.encode(prompt, add_special_tokens=False) for prompt in prompts]
        return self._complete(tokens, params or self._default_params, show_progress)

    def close(self) -> None:
        """Unload the model."""
        self._engine.close()

    def _complete(
        self, prompts: Sequence[list[int]], params: SamplingParams, show_progress: bool
    ) -> list[list[Completion]]:
        """All answers to all prompts, as one batch."""
        seed = secrets.randbits(63) if params.seed is None else params.seed
        answers: list[_Answer] = []
        todo = ((tokens, index) for tokens in prompts for index in range(params.n))
        advance, stop = _progress(len(prompts) * params.n, show_progress)
        open_answers: list[_Answer] = []
        try:
            while True:
                for tokens, index in islice(todo, self._max_num_open - len(open_answers)):
                    engine_params = params.for_choice(index, seed)
                    open_answers.append(_Answer(self._engine, self._tokenizer, tokens, params, engine_params))
                    answers.append(open_answers[-1])
                if not open_answers:
                    break
                self._engine.step()
                still_open = [answer for answer in open_answers if not answer.advance()]
                advance(len(open_answers) - len(still_open))
                open_answers = still_open
        finally:
            stop()
            for answer in open_answers:
                answer.abort()
        completions = [answer.completion() for answer in answers]
        return [completions[i : i + params.n] for i in range(0, len(completions), params.n)]


class _Answer:
    """One sequence in the engine, and its text so far."""

    def __init__(
        self,
        engine: Engine,
        tokenizer: Tokenizer,
        prompt: list[int],
        params: SamplingParams,
        engine_params: SamplingParams,
    ) -> None:
        ends = frozenset(params.stop_token_ids) | (frozenset() if params.ignore_eos else tokenizer.eos_token_ids)
        self._engine = engine
        self._output = TextOutput(
            tokenizer,
            params.stop,
            ends,
            includes_stop=params.include_stop_str_in_output,
            skips_special=params.skip_special_tokens,
        )
        self._text = ""
        self._token_ids: list[int] = []
        self._finish_reason: FinishReason | None = None
        self._request_id = engine.submit(prompt, engine_params)

    def advance(self) -> bool:
        """Take what is new; whether the answer has ended."""
        polled = self._engine.poll(self._request_id)
        if polled.error is not None:
            raise polled.error
        self._text += self._output.add(polled.new_token_ids)
        self._token_ids += polled.new_token_ids
        if self._output.stopped:
            del self._token_ids[self._output.num_tokens :]
            self._finish_reason = FinishReason.STOP
            self.abort()
        elif polled.finish_reason is not None:
            self._finish_reason = polled.finish_reason
            self._text += self._output.finish()
            if self._output.stopped:
                self._finish_reason = FinishReason.STOP
        return self._finish_reason is not None

    def abort(self) -> None:
        self._engine.abort(self._request_id)

    def completion(self) -> Completion:
        assert self._finish_reason is not None
        return Completion(self._text, tuple(self._token_ids), self._finish_reason)


def model_folder(model: str | None) -> Path:
    """The folder of a model, fetched if need be. Raises ModelError."""
    return fetch(parse_source(model), NoProgress())


def runner_factory(settings: RunnerSettings) -> Callable[[], Runner]:
    """Builds the runner on the thread that calls it."""
    return lambda: build_runner(settings, cache_folder(None))


def _progress(total: int, is_shown: bool) -> tuple[Callable[[int], None], Callable[[], None]]:
    """advance(n) and stop() of a progress bar on stderr, or of none."""
    if not is_shown:
        return lambda count: None, lambda: None
    from rich.console import Console
    from rich.progress import Progress

    bar = Progress(console=Console(stderr=True))
    task = bar.add_task("Generating", total=total)
    bar.start()
    return lambda count: bar.advance(task, count), bar.stop
