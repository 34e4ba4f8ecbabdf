"""Where each sequence stands in its grammar, and which tokens may come next. For the engine.

Grammars are compiled on threads of their own; all else is called by one thread. Matchers drop the GIL while they
compute, so that masks can be made beside the forward pass.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor

import numpy as np
from llguidance import LLExecutor, LLMatcher, LLTokenizer
from numpy.typing import NDArray

from anllm.limits import processors
from anllm.structured.compile import compile_grammar, first_words
from anllm.structured.vocabulary import Vocabulary

MAX_CACHED = 16  # compiling again takes a millisecond, and a hostile grammar may hold 100 MB
COMPILE_THREADS = 2


class GrammarState:
    """One sequence's place in its grammar."""

    def __init__(self, matcher: LLMatcher, eos_token_ids: frozenset[int]) -> None:
        """matcher: taken over."""
        self._matcher = matcher
        self._eos_token_ids = eos_token_ids
        self._has_ended = False

    def accept(self, token_id: int) -> bool:
        """Advances. False, and an error, if the grammar does not allow the token here; after the end, none is."""
        if self._has_ended:
            return False
        if token_id in self._eos_token_ids and self._matcher.is_accepting():
            self._has_ended = True
            return True
        return self._matcher.consume_token(token_id)

    @property
    def can_end(self) -> bool:
        """What is written satisfies the grammar."""
        return self._matcher.is_accepting()

    @property
    def is_complete(self) -> bool:
        """Nothing but an end token may follow, or one has come."""
        return self._has_ended or (self._matcher.is_stopped() and self.error is None)

    @property
    def error(self) -> str | None:
        """Why no mask can be had any more: a limit was reached, or a token accepted that is not allowed."""
        return first_words(self._matcher.get_error()) if self._matcher.is_error() else None

    @property
    def matcher(self) -> LLMatcher:
        """For MaskComputer."""
        return self._matcher


class MaskComputer:
    """Grammars in, rows of allowed tokens out."""

    def __init__(self, vocabulary: Vocabulary, num_threads: int | None = None) -> None:
        """num_threads: for masks; None is half of the processors, at most 8. Compiling has threads of its own. Building
        the vocabulary takes up to 0.5 s, when first used."""
        self._vocabulary = vocabulary
        self._num_threads = num_threads or max(1, min(8, processors() // 2))
        self._executor: LLExecutor | None = None
        self._compilers = ThreadPoolExecutor(COMPILE_THREADS, thread_name_prefix="grammar")
        self._tokenizer: Future[LLTokenizer] | None = None
        self._matchers: OrderedDict[str, Future[LLMatcher]] = OrderedDict()

    def begin(self, grammar: str) -> Future[GrammarState]:
        """A state at the start of the grammar, as GrammarChecker gave it out. The future may raise GrammarError.

        A grammar seen before is not compiled again, and its future is done.
        """
        matcher = self._compiled(grammar)
        state: Future[GrammarState] = Future()
        matcher.add_done_callback(lambda done: self._copy(done, state))
        return state

    def fill(self, states: Sequence[GrammarState], rows: NDArray[np.int32]) -> None:
        """Writes the mask of each state into the row of the same number.

        rows: (at least len(states), vocabulary.num_mask_words) int32, contiguous; bit i % 32 of word i // 32 says
            whether token i may come. After the end, or after an error, only an end token may.
        """
        assert rows.dtype == np.int32 and rows.flags.c_contiguous and rows.ndim == 2
        assert rows.shape[0] >= len(states) and rows.shape[1] == self._vocabulary.num_mask_words
        if self._executor is None:
            self._executor = LLExecutor(self._num_threads)
        jobs = [(state.matcher, index) for index, state in enumerate(states)]
        self._executor.unsafe_compute_mask_ptr(jobs, rows.ctypes.data, rows.shape[1] * rows.itemsize, rows.shape[0])

    def rows(self, num_states: int) -> NDArray[np.int32]:
        """(num_states, words) int32 for fill; its contents do not matter."""
        return np.zeros((num_states, self._vocabulary.num_mask_words), dtype=np.int32)

    def close(self) -> None:
        """A grammar that is being compiled is given up."""
        self._compilers.shutdown(wait=False, cancel_futures=True)

    def _compiled(self, grammar: str) -> Future[LLMatcher]:
        if self._tokenizer is None:
            self._tokenizer = self._compilers.submit(self._vocabulary.build)
        matcher = self._matchers.get(grammar)
        if matcher is None:
            matcher = self._compilers.submit(_compile, self._tokenizer, grammar)
            self._matchers[grammar] = matcher
            while len(self._matchers) > MAX_CACHED:
                self._matchers.popitem(last=False)
        self._matchers.move_to_end(grammar)
        return matcher

    def _copy(self, matcher: Future[LLMatcher], state: Future[GrammarState]) -> None:
        if matcher.cancelled():
            state.cancel()
        elif (error := matcher.exception()) is not None:
            state.set_exception(error)
        else:
            state.set_result(GrammarState(matcher.result().deep_copy(), self._vocabulary.eos_token_ids))


def _compile(tokenizer: Future[LLTokenizer], grammar: str) -> LLMatcher:
    return compile_grammar(tokenizer.result(), grammar)
