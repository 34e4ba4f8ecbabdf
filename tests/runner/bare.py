"""A ModelRunner around a model that is there already, without a folder."""

from __future__ import annotations

from anllm.core.events import EngineInfo
from anllm.runner.contract import ChosenForward
from anllm.runner.run import ModelRunner
from anllm.runner.sampler import Sampler
from anllm.runner.seen import SeenTokens
from runner.families import VOCAB
from runner.greedy import MAX_MODEL_LEN


class BareRunner(ModelRunner):
    """With K/V for six short rows. One step ahead where the sampler and the way of calling the model allow it."""

    def __init__(self, chosen: ChosenForward, sampler: Sampler) -> None:
        self._forward, self._sampler, self._last = chosen.forward, sampler, None
        self._seen = SeenTokens()
        per_token = max(chosen.bytes_per_token, 1)
        budget = 6 * 256 * per_token
        self.info = EngineInfo("test", "", budget, per_token, MAX_MODEL_LEN, VOCAB, chosen.forward.name, "", ())
