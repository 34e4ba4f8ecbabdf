"""From logits to tokens, for all rows of a step at once.

Randomness is one number per token of the vocabulary, a hash of (seed, token index, token id) and of nothing else. The
token drawn is that of the largest logit / temperature - log(noise), where the noise of each token is exponentially
distributed: the "exponential race", or Gumbel-max trick (Maddison et al., arXiv:1411.0030). So a seed gives the same
draws whatever else is in the batch, on every backend, and after a preemption. And it does so although batched
arithmetic differs in the last bits: a token changes only where two scores all but tie. (Inverting the cumulative
distribution instead, a difference of 1e-6 moves thousands of borders at once: measured, one seeded token in 250
changed.)

HostSampler (NumPy) and DeviceSampler (MLX) follow the same rule and are tested against each other.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol, cast

import mlx.core as mx
import numpy as np

from anllm.core.events import TokenLogprobs
from anllm.core.step import Masks, ScheduledSequence, StepResult
from anllm.runner.logprobs import LOWEST_LOGPROB, token_logprobs
from anllm.runner.noise import device_noise, host_noise, row_keys
from anllm.runner.seen import Seen

NOT_A_NUMBER = -1  # the "token" of a row whose logits are not numbers
SMALLEST_TEMPERATURE = 1e-6  # below it nothing changes any more, but 1 / temperature would leave float32


class Drawn(Protocol):
    """The tokens of a step's rows, perhaps not computed yet."""

    @property
    def tokens(self) -> mx.array:
        """int32 [rows]; NOT_A_NUMBER where the logits are broken."""
        ...

    @property
    def arrays(self) -> list[mx.array]:
        """What is to be computed."""
        ...

    def read(self) -> StepResult:
        """Wait for them, and for the log probabilities of those rows that ask."""
        ...


class Sampler(Protocol):
    def draw(
        self, logits: mx.array, rows: Sequence[ScheduledSequence], seen: Sequence[Seen | None], masks: Masks
    ) -> Drawn:
        """logits: [rows, vocab]. One token per row. seen: for rows with penalties the tokens that are there already.
        masks: for rows bound to a grammar."""
        ...


def is_greedy(row: ScheduledSequence) -> bool:
    return row.params.temperature == 0 or row.params.top_p == 0 or row.params.top_k == 1


def added(row: ScheduledSequence, vocab_size: int, masks: Masks) -> tuple[list[int], list[float]]:
    """Tokens, and what is added to their logits: bias, and minus infinity for banned ones, which a mask leaves out by
    itself. Tokens that a tokenizer has and the model does not are left out: they can't be drawn anyway."""
    banned = () if row.request_id in masks else row.banned_token_ids
    changes = [*row.params.logit_bias, *((token, -math.inf) for token in banned)]
    known = [(token, value) for token, value in changes if 0 <= token < vocab_size]
    return [token for token, _ in known], [value for _, value in known]


def allowed(row: ScheduledSequence, vocab_size: int, masks: Masks) -> np.ndarray | None:
    """The tokens that may be drawn, uint8 [4 * ceil(vocab_size / 32)] of bits as in Masks; None where all may."""
    bits = masks.get(row.request_id)
    if bits is not None:
        return np.frombuffer(bits, np.uint8)
    if not row.params.allowed_token_ids:
        return None
    flags = np.zeros(32 * math.ceil(vocab_size / 32), bool)
    flags[[token for token in row.params.allowed_token_ids if token < vocab_size]] = True
    return np.packbits(flags, bitorder="little")


# -- on the host -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class HostDrawn:
    """Drawn, all there."""

    result: StepResult

    @property
    def tokens(self) -> mx.array:
        return mx.array(list(self.result.token_ids), mx.int32)

    @property
    def arrays(self) -> list[mx.array]:
        return []

    def read(self) -> StepResult:
        return self.result


class HostSampler:
    """In NumPy: the quickest on a CPU, where logits are in host memory anyway."""

    def draw(
        self, logits: mx.array, rows: Sequence[ScheduledSequence], seen: Sequence[Seen | None], masks: Masks
    ) -> HostDrawn:
        host = np.array(logits.astype(mx.float32), copy=False)
        tokens = [self._draw_row(*one, masks) for one in zip(host, rows, seen, strict=True)]
        asks = any(row.params.logprobs is not None for row in rows)
        told = [host_logprobs(*one) for one in zip(host, rows, tokens, strict=True)] if asks else ()
        return HostDrawn(StepResult(tokens, told))

    def _draw_row(self, logits: np.ndarray, row: ScheduledSequence, seen: Seen | None, masks: Masks) -> int:
        """logits: [vocab] float32"""
        if not np.isfinite(logits[logits.argmax()]):  # NaN wins any comparison, so it is found here
            return NOT_A_NUMBER
        logits = changed(logits, row, seen, masks)
        best = int(logits.argmax())
        if is_greedy(row) or not np.isfinite(logits[best]):
            return best
        params = row.params
        scores = (logits.astype(np.float64) - logits[best]) / max(params.temperature, SMALLEST_TEMPERATURE)
        if params.top_k > 0 or params.top_p < 1 or params.min_p > 0:
            weights = np.exp(scores)
            if 0 < params.top_k < len(weights):
                weights = keep_likeliest(weights, params.top_k)
            if params.top_p < 1:
                weights = keep_nucleus(weights, params.top_p)
            scores = np.where((weights > 0) & (weights >= params.min_p), scores, -np.inf)
        return int((scores - np.log(host_noise(row_keys(row), len(scores)))).argmax())


def changed(logits: np.ndarray, row: ScheduledSequence, seen: Seen | None, masks: Masks) -> np.ndarray:
    """Logits [vocab] with bias, bans and penalties; the same array where there are none."""
    tokens, values = added(row, len(logits), masks)
    packed = allowed(row, len(logits), masks)
    if not tokens and packed is None and seen is None:
        return logits
    logits = logits.copy()
    if packed is not None:
        logits[np.unpackbits(packed, count=len(logits), bitorder="little") == 0] = -np.inf
    if tokens:
        np.add.at(logits, tokens, values)
    if seen is not None:
        params, mine = row.params, logits[seen.ids]
        with np.errstate(over="ignore", divide="ignore", invalid="ignore"):  # a tiny penalty makes them infinite
            mine = np.where(mine > 0, mine / params.repetition_penalty, mine * params.repetition_penalty)
        mine -= params.frequency_penalty * seen.counts + params.presence_penalty * (seen.counts > 0)
        logits[seen.ids] = mine
    return logits


def keep_likeliest(weights: np.ndarray, top_k: int) -> np.ndarray:
    """Zero all but the top_k most likely tokens; ties at the edge stay."""
    edge = np.partition(weights, -top_k)[-top_k]
    return np.where(weights >= edge, weights, 0.0)


def keep_nucleus(weights: np.ndarray, top_p: float) -> np.ndarray:
    """Zero all but the smallest set of most likely tokens that holds top_p of the mass; ties at its edge stay.

    weights: [vocab], not normalised. Holtzman et al., arXiv:1904.09751. Tokens below (1 - top_p) / vocab of the mass
    are outside whatever the others are, so that only few are left to sort.
    """
    total = weights.sum()
    likely = weights[weights >= total * (1 - top_p) / len(weights)]
    likely = np.sort(likely)[::-1]
    edge = likely[min(int(np.searchsorted(likely.cumsum(), top_p * total)), len(likely) - 1)]
    return np.where(weights >= edge, weights, 0.0)


def host_logprobs(logits: np.ndarray, row: ScheduledSequence, token: int) -> TokenLogprobs | None:
    """Of the model's own logits [vocab]; None if the row does not ask."""
    number = row.params.logprobs
    if number is None or token == NOT_A_NUMBER:
        return None
    exact = logits.astype(np.float64)
    logprobs = exact - exact.max() - np.log(np.exp(exact - exact.max()).sum())
    likeliest = np.argpartition(-logprobs, number - 1)[:number] if 0 < number < len(logprobs) else np.arange(number)
    likeliest = likeliest[np.argsort(-logprobs[likeliest], kind="stable")]
    top = tuple((int(i), max(float(logprobs[i]), LOWEST_LOGPROB)) for i in likeliest)
    return TokenLogprobs(max(float(logprobs[token]), LOWEST_LOGPROB), top)


# -- on the device -----------------------------------------------------------------------------------------------------


class DeviceDrawn:
    """Drawn, still being computed."""

    def __init__(self, tokens: mx.array, logits: mx.array, rows: Sequence[ScheduledSequence]) -> None:
        """logits: the model's own, float32 [rows, vocab], for rows that ask for log probabilities."""
        self.tokens = tokens
        self._num_rows = len(rows)
        self._asking = [i for i, row in enumerate(rows) if row.params.logprobs is not None]
        self._numbers = [rows[i].params.logprobs or 0 for i in self._asking]
        if self._asking:
            asking = mx.array(self._asking)
            drawn = mx.maximum(tokens[asking], 0)
            self._sampled, self._likeliest, self._top = token_logprobs(logits[asking], drawn, max(self._numbers))

    @property
    def arrays(self) -> list[mx.array]:
        """What is to be computed."""
        return [self.tokens, *((self._sampled, self._likeliest, self._top) if self._asking else ())]

    def read(self) -> StepResult:
        token_ids = cast("list[int]", self.tokens.tolist())
        if not self._asking:
            return StepResult(token_ids)
        told: list[TokenLogprobs | None] = [None] * self._num_rows
        columns = (self._sampled.tolist(), self._likeliest.tolist(), self._top.tolist(), self._numbers)
        for row, sampled, ids, values, number in zip(self._asking, *cast("Any", columns), strict=True):
            told[row] = TokenLogprobs(sampled, tuple(zip(ids[:number], values[:number], strict=True)))
        return StepResult(token_ids, told)


class DeviceSampler:
    """In MLX, on the device: logits stay there, only token ids come back."""

    BISECTIONS = 24  # halvings of the interval in which an edge lies; float32 has as many bits

    def draw(
        self, logits: mx.array, rows: Sequence[ScheduledSequence], seen: Sequence[Seen | None], masks: Masks
    ) -> DeviceDrawn:
        own = logits.astype(mx.float32)
        top = mx.take_along_axis(own, mx.argmax(own, axis=-1)[:, None], axis=-1)[:, 0]
        logits = self._changed(own, rows, seen, masks)
        tokens = mx.argmax(logits, axis=-1)
        if not all(map(is_greedy, rows)):
            tokens = mx.where(mx.array(list(map(is_greedy, rows))), tokens, self._drawn(logits, rows))
        return DeviceDrawn(mx.where(mx.isfinite(top), tokens.astype(mx.int32), NOT_A_NUMBER), own, rows)

    def _changed(
        self, logits: mx.array, rows: Sequence[ScheduledSequence], seen: Sequence[Seen | None], masks: Masks
    ) -> mx.array:
        """Logits [rows, vocab] with bias, bans and penalties; all rows in one go."""
        sums = [added(row, logits.shape[-1], masks) for row in rows]
        if any(tokens for tokens, _ in sums):
            index = mx.array(np.repeat(np.arange(len(rows)), [len(tokens) for tokens, _ in sums]))
            tokens = mx.array([token for tokens, _ in sums for token in tokens])
            logits = logits.at[index, tokens].add(mx.array([value for _, values in sums for value in values]))
        packed = [allowed(row, logits.shape[-1], masks) for row in rows]
        if any(bits is not None for bits in packed):
            logits = masked(logits, packed)
        penalised = [i for i, one in enumerate(seen) if one is not None]
        if penalised:
            logits = self._penalised(logits, penalised, rows, [one for one in seen if one is not None])
        return logits

    def _penalised(
        self, logits: mx.array, which: list[int], rows: Sequence[ScheduledSequence], seen: Sequence[Seen]
    ) -> mx.array:
        sizes = [len(one.ids) for one in seen]

        def spread(values: list[float]) -> mx.array:
            return mx.array(np.repeat(np.array(values, np.float32), sizes))

        params = [rows[i].params for i in which]
        index, tokens = mx.array(np.repeat(which, sizes)), mx.array(np.concatenate([one.ids for one in seen]))
        counts = mx.array(np.concatenate([one.counts for one in seen]))
        mine, repetition = logits[index, tokens], spread([p.repetition_penalty for p in params])
        mine = mx.where(mine > 0, mine / repetition, mine * repetition)
        mine -= spread([p.frequency_penalty for p in params]) * counts
        mine -= spread([p.presence_penalty for p in params]) * (counts > 0)
        changed = mx.array(logits)
        changed[index, tokens] = mine
        return changed

    def _drawn(self, logits: mx.array, rows: Sequence[ScheduledSequence]) -> mx.array:
        """[rows, vocab] -> [rows]"""
        params = [row.params for row in rows]
        temperature = mx.array([max(p.temperature, SMALLEST_TEMPERATURE) for p in params])[:, None]
        scores = (logits - logits.max(axis=-1, keepdims=True)) / temperature
        if any(p.top_k > 0 or p.top_p < 1 or p.min_p > 0 for p in params):
            weights = mx.exp(scores)
            if any(p.top_k > 0 for p in params):
                numbers = mx.array([p.top_k or logits.shape[-1] for p in params])[:, None]
                weights = self._keep_likeliest(weights, numbers)
            if any(p.top_p < 1 for p in params):
                weights = self._keep_nucleus(weights, mx.array([p.top_p for p in params])[:, None])
            kept = (weights > 0) & (weights >= mx.array([p.min_p for p in params])[:, None])
            scores = mx.where(kept, scores, -mx.inf)
        noise = device_noise([row_keys(row) for row in rows], logits.shape[-1])
        return mx.argmax(scores - mx.log(noise), axis=-1)

    def _keep_likeliest(self, weights: mx.array, top_k: mx.array) -> mx.array:
        """By search for the edge: the largest weight such that at least top_k are no lighter."""
        low, high = mx.zeros(top_k.shape), mx.ones(top_k.shape)
        for _ in range(2 * self.BISECTIONS):  # of the logarithm's range too: the edge may be a tiny weight
            middle = mx.where(low > 0, mx.sqrt(low * high), high * 1e-6)
            enough = (weights >= middle).sum(axis=-1, keepdims=True) >= top_k
            low, high = mx.where(enough, middle, low), mx.where(enough, high, middle)
        return mx.where(weights >= low, weights, 0)

    def _keep_nucleus(self, weights: mx.array, top_p: mx.array) -> mx.array:
        """By search for the edge, not by sorting: the largest weight such that what is at least as heavy has top_p."""
        needed = weights.sum(axis=-1, keepdims=True) * top_p
        low, high = mx.zeros_like(needed), mx.ones_like(needed)  # the heaviest weighs exp(0) = 1
        for _ in range(self.BISECTIONS):
            middle = (low + high) / 2
            enough = mx.where(weights >= middle, weights, 0).sum(axis=-1, keepdims=True) >= needed
            low, high = mx.where(enough, middle, low), mx.where(enough, high, middle)
        return mx.where((weights >= low) | (top_p >= 1), weights, 0)


def masked(logits: mx.array, packed: Sequence[np.ndarray | None]) -> mx.array:
    """Logits [rows, vocab], minus infinity where the token's bit is not set. packed: of each row as allowed() gives
    them, at least one."""
    num_bytes = next(len(bits) for bits in packed if bits is not None)
    stacked = np.full((len(packed), num_bytes), 0xFF, np.uint8)
    for row, bits in zip(stacked, packed, strict=True):
        if bits is not None:
            row[:] = bits
    is_whole = 8 * num_bytes == logits.shape[-1]
    return (_masked_whole if is_whole else _masked_in_part)(logits, mx.array(stacked))


def _masked_in_part(logits: mx.array, packed: mx.array) -> mx.array:
    """logits: [rows, vocab]. packed: uint8 [rows, n], 8 n more than vocab."""
    return mx.where(_unpacked(packed).reshape(len(packed), -1)[:, : logits.shape[-1]], logits, -mx.inf)


@mx.compile
def _masked_whole(logits: mx.array, packed: mx.array) -> mx.array:
    """The same where vocab is 8 n: in one operation, since each costs the host time."""
    return mx.where(_unpacked(packed), logits.reshape(*packed.shape, 8), -mx.inf).reshape(logits.shape)


def _unpacked(packed: mx.array) -> mx.array:
    """uint8 [rows, n] -> bool [rows, n, 8], the lowest bit of each byte first"""
    return (packed[:, :, None] >> mx.arange(8, dtype=mx.uint8)) & 1 != 0
