"""A chat as the person who has it sees it: what was said, how answers are drawn, and what may be changed about both."""

from __future__ import annotations

import difflib
import json
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from anllm.client.plain import PlainClient
from anllm.errors import ConfigError

Json = dict[str, Any]
SHORTEST_S = 0.05  # below that a rate says more of the network than of the model

# What a request may say of how its answer is made; the server checks the values.
SETTINGS = (
    *("temperature", "top_p", "top_k", "min_p", "max_tokens", "seed", "stop", "repetition_penalty", "presence_penalty"),
    *("frequency_penalty", "reasoning_effort", "chat_template_kwargs", "response_format", "logit_bias", "min_tokens"),
)


@dataclass(slots=True)
class Answer:
    """As far as it has come. Times in seconds; num_tokens by the server's usage, None where it told none."""

    content: str = ""
    reasoning: str = ""
    finish_reason: str | None = None
    num_tokens: int | None = None
    first_s: float | None = None
    total_s: float = 0.0

    @property
    def tokens_s(self) -> float | None:
        """Tokens a second after the first one. None where they came all at once, which tells nothing of the model."""
        if self.num_tokens is None or self.num_tokens < 2 or self.first_s is None:
            return None
        if self.total_s - self.first_s < SHORTEST_S:
            return None
        return (self.num_tokens - 1) / (self.total_s - self.first_s)


@dataclass(slots=True)
class Conversation:
    """messages: of the user and the model, in turn; the system's stands apart."""

    model: str
    system: str = ""
    settings: Json = field(default_factory=dict)
    messages: list[Json] = field(default_factory=list)

    def ask(self, text: str, client: PlainClient, on_change: Callable[[Answer], None]) -> Answer:
        """Say something, and hear the answer. on_change: whenever more of it is there.

        Interrupted, what there is of the answer stays. Raises RemoteError, and then nothing has been said.
        """
        self.messages.append({"role": "user", "content": text})
        answer = Answer()
        started = time.monotonic()
        try:
            for event in client.stream("/v1/chat/completions", self.body()):
                if self._take(event, answer, time.monotonic() - started):
                    on_change(answer)
        except KeyboardInterrupt:
            answer.finish_reason = "interrupted"
        except BaseException:
            self.messages.pop()
            raise
        answer.total_s = time.monotonic() - started
        self.messages.append({"role": "assistant", "content": answer.content})
        return answer

    @staticmethod
    def _take(event: Json, answer: Answer, now_s: float) -> bool:
        """Whether there is more to see."""
        if usage := event.get("usage"):
            answer.num_tokens = usage.get("completion_tokens")
        if not event.get("choices"):
            return False
        choice = event["choices"][0]
        answer.finish_reason = choice.get("finish_reason") or answer.finish_reason
        delta = choice.get("delta") or {}
        content = delta.get("content") or ""
        reasoning = delta.get("reasoning_content") or delta.get("reasoning") or ""
        if answer.first_s is None and (content or reasoning):
            answer.first_s = now_s
        answer.content += content
        answer.reasoning += reasoning
        return bool(content or reasoning)

    def body(self) -> Json:
        """Of the next request."""
        system = [{"role": "system", "content": self.system}] if self.system else []
        return {
            **self.settings,
            "model": self.model,
            "messages": [*system, *self.messages],
            "stream_options": {"include_usage": True},
        }

    def take_back(self) -> str | None:
        """Forget the last answer and what was said before it; returns that, None if nothing was."""
        while self.messages:
            last = self.messages.pop()
            if last["role"] == "user":
                return str(last["content"])
        return None

    def set(self, name: str, value: str) -> None:
        """value: JSON, or a text; "none" leaves it to the server. Raises ConfigError for an unknown name."""
        if name not in SETTINGS:
            near = difflib.get_close_matches(name, SETTINGS, 1)
            hint = f"Did you mean {near[0]}?" if near else f"There are: {', '.join(SETTINGS)}."
            raise ConfigError(f"There is no setting {name!r}. {hint}")
        if value.lower() in ("none", "null", "default"):
            self.settings.pop(name, None)
            return
        try:
            self.settings[name] = json.loads(value)
        except ValueError:
            self.settings[name] = value

    def save(self, path: Path) -> None:
        """All of it, as JSON. Raises ConfigError."""
        value = {"model": self.model, "system": self.system, "settings": self.settings, "messages": self.messages}
        try:
            path.write_text(json.dumps(value, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
        except OSError as error:
            raise ConfigError(f"{str(path)!r} can't be written ({error.strerror}); name another file.") from error

    def load(self, path: Path) -> None:
        """What save() wrote, but for the model, which stays. Raises ConfigError, and then nothing has changed."""
        try:
            value = json.loads(path.read_text(encoding="utf-8"))
            messages = [{"role": str(m["role"]), "content": m["content"]} for m in value["messages"]]
            system, settings = str(value.get("system") or ""), dict(value.get("settings") or {})
        except OSError as error:
            raise ConfigError(f"{str(path)!r} can't be read ({error.strerror}); check the name.") from error
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise ConfigError(f"{str(path)!r} is no conversation that /save wrote.") from error
        self.messages, self.system, self.settings = messages, system, settings
