"""Sequences bound to a grammar, on a model: the same tokens one by one, together, and one step ahead."""

from __future__ import annotations

from typing import Any

import mlx.core as mx
import numpy as np
import pytest

from anllm.config import Execution, SchedulerConfig
from anllm.core.events import Add, StepEvents
from anllm.core.request import Request, SamplingParams
from anllm.engine.loop import EngineLoop
from anllm.runner.attention import StockKernels
from anllm.runner.contract import choose_forward
from anllm.runner.sampler import DeviceSampler, HostSampler
from anllm.structured.grammar import json_schema, regex
from anllm.structured.state import MaskComputer
from anllm.structured.vocabulary import Vocabulary
from runner.bare import BareRunner
from runner.families import VOCAB, tiny
from runner.greedy import check_greedy, random_tokens

pytestmark = pytest.mark.mlx

# The first 127 bytes, and an end: as many tokens as the tiny models have logits.
EOS = VOCAB - 1
VOCABULARY = Vocabulary([bytes([i]) for i in range(EOS)] + [b"<eos>"], frozenset({EOS}), frozenset({EOS}), VOCAB)
SCHEMA = {
    "type": "object",
    "properties": {"a": {"type": "integer"}, "b": {"enum": ["x", "yy"]}},
    "required": ["a", "b"],
}
GRAMMARS = [json_schema(SCHEMA, strict=True).text, regex("[a-f]{5,30}").text, ""]


def bound_alone(model: Any, prompt: tuple[int, ...], grammar: str, max_tokens: int) -> list[int]:
    """Greedy, the whole text computed anew for each token."""
    computer = MaskComputer(VOCABULARY)
    state = computer.begin(grammar).result()
    outputs: list[int] = []
    while len(outputs) < max_tokens and not state.is_complete:
        rows = computer.rows(1)
        computer.fill([state], rows)
        bits = np.unpackbits(rows.view(np.uint8), bitorder="little")[:VOCAB].astype(bool)
        logits = np.array(model(mx.array([[*prompt, *outputs]]))[0, -1].astype(mx.float32))
        outputs.append(int(np.where(bits, logits, -np.inf).argmax()))
        assert state.accept(outputs[-1])
    computer.close()
    return outputs


@pytest.mark.parametrize("sampler", [HostSampler(), DeviceSampler()], ids=["plain", "one step ahead"])
@pytest.mark.parametrize("execution", [Execution.FLATTENED, Execution.COMPATIBLE, Execution.SEQUENTIAL])
def test_bound_answers_are_the_models_own_best_among_what_is_allowed(execution: Execution, sampler: Any) -> None:
    model = tiny()
    runner = BareRunner(choose_forward(model, StockKernels(), execution, VOCAB), sampler)
    assert runner.runs_ahead is (execution is Execution.FLATTENED and isinstance(sampler, DeviceSampler))
    tokens: dict[int, list[int]] = {}

    def collect(events: StepEvents) -> None:
        assert not events.failed
        for event in events.tokens:
            tokens.setdefault(event.request_id, []).extend(event.token_ids)

    computer = MaskComputer(VOCABULARY)
    loop = EngineLoop(runner, SchedulerConfig(max_num_seqs=4, max_num_batched_tokens=40), collect, masks=computer)
    prompts = [random_tokens(length, seed=length) for length in (5, 70, 33, 9, 12, 41)]
    requests = [
        Request(
            request_id=i,
            prompt_token_ids=prompt,
            params=SamplingParams(temperature=0, max_tokens=20, seed=0, grammar=GRAMMARS[i % 3]),
        )
        for i, prompt in enumerate(prompts)
    ]
    loop.take([Add(request) for request in requests])
    while loop.step():
        loop.scheduler.check_integrity()
    computer.close()
    for i, prompt in enumerate(prompts):
        if GRAMMARS[i % 3]:
            assert tokens[i] == bound_alone(model, prompt, GRAMMARS[i % 3], 20)
        else:
            assert check_greedy(model, prompt, tokens[i]) == 0
