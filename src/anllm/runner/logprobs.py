"""Log probabilities on the device: of drawn tokens, and of a prompt's tokens."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

import mlx.core as mx
import numpy as np

from anllm.core.events import TokenLogprobs
from anllm.core.step import ScheduledSequence, StepPlan

LOWEST_LOGPROB = -9999.0  # what OpenAI's API has for "next to impossible"; JSON has no minus infinity


def token_logprobs(logits: mx.array, tokens: mx.array, num_top: int) -> tuple[mx.array, mx.array, mx.array]:
    """logits: float32 [n, vocab]; tokens: [n]. Log probabilities of the tokens [n], and the most likely tokens with
    theirs, the likeliest first, [n, num_top] but at least one and at most the vocabulary."""
    logprobs = mx.maximum(logits - mx.logsumexp(logits, axis=-1, keepdims=True), LOWEST_LOGPROB)
    own = mx.take_along_axis(logprobs, tokens[:, None], axis=-1)[:, 0]
    most = max(min(num_top, logits.shape[-1]), 1)
    likeliest = mx.argpartition(-logprobs, most - 1, axis=-1)[:, :most]
    order = mx.argsort(-mx.take_along_axis(logprobs, likeliest, axis=-1), axis=-1)
    likeliest = mx.take_along_axis(likeliest, order, axis=-1)
    return own, likeliest, mx.take_along_axis(logprobs, likeliest, axis=-1)


class ScoredPrompts:
    """What the model thinks of prompt tokens in a step, still being computed."""

    def __init__(self, logits: mx.array, entries: Sequence[ScheduledSequence]) -> None:
        """logits: [n, vocab], before each of the entries' scored tokens. entries: those that have some."""
        self._entries = entries
        tokens = mx.array(np.concatenate([entry.scored_token_ids for entry in entries]).astype(np.int32))
        logits = logits.astype(mx.float32)
        num_top = max(entry.params.prompt_logprobs or 0 for entry in entries)
        self._own, self._likeliest, self._top = token_logprobs(logits, tokens, num_top)
        of_token = mx.take_along_axis(logits, tokens[:, None], axis=-1)
        self._ranks = (logits > of_token).sum(axis=-1) + 1

    @property
    def arrays(self) -> list[mx.array]:
        """What is to be computed."""
        return [self._own, self._likeliest, self._top, self._ranks]

    def read(self) -> list[tuple[TokenLogprobs, ...]]:
        """Wait for them; one tuple for each entry."""
        own, likeliest, top, ranks = cast("Any", [array.tolist() for array in self.arrays])
        told, first = [], 0
        for entry in self._entries:
            number = entry.params.prompt_logprobs or 0
            rows = range(first, first + len(entry.scored_token_ids))
            first = rows.stop
            told.append(
                tuple(
                    TokenLogprobs(own[i], tuple(zip(likeliest[i][:number], top[i][:number], strict=True)), ranks[i])
                    for i in rows
                )
            )
        return told


def split_rows(plan: StepPlan) -> tuple[list[int], list[int]]:
    """Of a plan's logits, in the order of Forward.logits: the rows to sample from, and those of scored tokens."""
    sampled: list[int] = []
    scored: list[int] = []
    row = 0
    for entry in plan.scheduled:
        scored += range(row, row + len(entry.scored_token_ids))
        row += len(entry.scored_token_ids)
        if entry.sample:
            sampled.append(row)
            row += 1
    return sampled, scored
