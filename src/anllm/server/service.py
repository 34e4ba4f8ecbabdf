"""What the routes need of the rest of the house, in one object. launch makes and fills it."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import anllm
from anllm.core.request import SamplingDefaults
from anllm.engine.client import EngineClient, EngineState
from anllm.errors import NotReadyError
from anllm.metrics.calls import Tracer
from anllm.metrics.recorder import Recorder
from anllm.parsers.choose import OutputFormat
from anllm.server.field_support import UnknownFields
from anllm.server.structured import GrammarChecker, NoGrammars
from anllm.text.interface import Tokenizer


class ChatTemplate(Protocol):
    """anllm.text.chat_template.ChatTemplate, as it is used here."""

    def render(
        self,
        messages: Sequence[Mapping[str, object]],
        /,
        *,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        tools: Sequence[Mapping[str, object]] | None = None,
        **template_kwargs: object,
    ) -> str:
        """The prompt. template_kwargs: variables for the template. Raises InvalidRequestError with param "messages" if
        the template refuses."""
        ...


@dataclass(frozen=True, slots=True)
class LoadedModel:
    """The model that answers, as far as the front knows it. chat_template is None for a base model. defaults: the
    sampling of requests that don't say. output_format: how it writes thoughts and calls."""

    id: str
    tokenizer: Tokenizer
    chat_template: ChatTemplate | None
    max_model_len: int
    defaults: SamplingDefaults
    output_format: OutputFormat


class Service:
    """The served model and its engine. Lives in the event loop.

    Set from outside: `tracer` where requests are traced; `tokenizer`, `chat_template`, `max_model_len`, `defaults`,
    `output_format` and `grammars` when the model has loaded, `draining` when the server is to end, `start_error` (a
    sentence) when the model can't be loaded.
    """

    def __init__(self, client: EngineClient, model_id: str, created: int, recorder: Recorder | None = None) -> None:
        """recorder: the one that sees the engine's frames."""
        self.client = client
        self.recorder = recorder or Recorder()
        self.tracer: Tracer | None = None
        self.model_id = model_id
        self.created = created
        self.tokenizer: Tokenizer | None = None
        self.chat_template: ChatTemplate | None = None
        self.max_model_len: int | None = None
        self.defaults = SamplingDefaults()
        self.output_format = OutputFormat.choose("", lambda piece: False)
        self.grammars: GrammarChecker = NoGrammars()
        self.draining = False
        self.start_error: str | None = None
        self.unknown_fields = UnknownFields()
        # Same build and model, same sampling: what OpenAI's clients compare before they trust a seed.
        digest = hashlib.sha256(f"{anllm.__version__}\n{model_id}".encode())
        self.system_fingerprint = f"fp_{digest.hexdigest()[:10]}"

    @property
    def status(self) -> str:
        """ "ok", or why not: "draining", "failed", "loading", "restarting" or "closed"."""
        if self.draining:
            return "draining"
        if self.start_error is not None:
            return "failed"
        if self.client.state is not EngineState.READY:
            return self.client.state.value
        return "loading" if self.tokenizer is None or self.max_model_len is None else "ok"

    @property
    def is_ready(self) -> bool:
        return self.status == "ok"

    @property
    def is_alive(self) -> bool:
        """Not when the model can't be loaded, or the engine is down for good."""
        return self.status not in ("failed", EngineState.CLOSED.value)

    def require_ready(self) -> LoadedModel:
        """The model. Raises NotReadyError unless requests can be taken now."""
        status = self.status
        if status != "ok" or self.tokenizer is None or self.max_model_len is None:
            raise NotReadyError(self._why_not(status))
        return LoadedModel(
            self.model_id, self.tokenizer, self.chat_template, self.max_model_len, self.defaults, self.output_format
        )

    def _why_not(self, status: str) -> str:
        if status == "failed":
            return f"The model could not be loaded. {self.start_error}"
        reasons = {
            "draining": "The server is shutting down.",
            "loading": "The model is still loading.",
            "restarting": "The engine is restarting.",
        }
        return reasons.get(status, "The engine is not running.")
