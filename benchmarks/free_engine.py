"""An engine process whose model costs nothing: started by api.py in place of anllm.worker.

The real scheduler and the real frames; the tokens are those of an English text, or at random. Each step takes as long
as api.py says, however many rows it has.
"""

from __future__ import annotations

import os
import random
import sys
import time
from pathlib import Path

from anllm.config import SchedulerConfig
from anllm.core.events import EngineInfo, MemoryUse
from anllm.core.step import StepPlan, StepResult
from anllm.engine.process import serve_socket
from anllm.text.tokenizer import load_tokenizer
from anllm.worker import decode_settings

STEP_MS = "API_BENCHMARK_STEP_MS"
TOKENS = "API_BENCHMARK_TOKENS"  # "text" or "random"
TEXT = Path(__file__).parents[1] / "docs" / "architecture.md"
MAX_MODEL_LEN = 8192


class FreeRunner:
    """A Runner (core/step.py) that looks its tokens up, and sleeps until the step's time is over."""

    runs_ahead = False

    def __init__(self, token_ids: list[int], vocab_size: int, eos_token_ids: tuple[int, ...], step_s: float) -> None:
        self.info = EngineInfo(
            backend="free",
            blas="",
            kv_budget_bytes=1 << 24,
            kv_bytes_per_token=1,
            max_model_len=MAX_MODEL_LEN,
            vocab_size=vocab_size,
            execution="free",
            weights="none",
            eos_token_ids=eos_token_ids,
        )
        self._token_ids = token_ids
        self._step_s = step_s
        self._next_s = 0.0
        self._plan = StepPlan(())

    def submit(self, plan: StepPlan) -> FreeRunner:
        self._plan = plan
        return self

    def result(self) -> StepResult:
        now_s = time.perf_counter()
        self._next_s = max(self._next_s, now_s - self._step_s) + self._step_s
        time.sleep(max(0.0, self._next_s - now_s))
        ids = self._token_ids
        return StepResult(
            [ids[(s.request_id * 31 + s.token_index) % len(ids)] for s in self._plan.scheduled if s.sample]
        )

    def memory(self) -> MemoryUse:
        return MemoryUse(0, 0, 0)

    def release(self) -> None:
        pass

    def close(self) -> None:
        pass


def main(settings_text: str, log_level: str, log_format: str, address: str) -> int:
    settings = decode_settings(settings_text)
    tokenizer = load_tokenizer(settings.folder)
    ends = frozenset(settings.eos_token_ids)
    if os.environ.get(TOKENS) == "random":
        rng = random.Random(0)
        token_ids = [rng.randrange(tokenizer.vocab_size) for _ in range(10_000)]
    else:
        token_ids = tokenizer.encode(TEXT.read_text(), add_special_tokens=False)
    token_ids = [token_id for token_id in token_ids if token_id not in ends]
    step_s = float(os.environ.get(STEP_MS, "0")) / 1000
    config: SchedulerConfig = settings.scheduler
    runner = FreeRunner(token_ids, tokenizer.vocab_size, settings.eos_token_ids, step_s)
    return serve_socket(address, config, lambda on_progress: runner)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
