"""The response object, and an answer as one: whole, or as the events of a stream. Keeps it if it is to be kept."""

from __future__ import annotations

import time
from collections.abc import Mapping

import msgspec

from anllm.core.request import FinishReason
from anllm.parsers.pieces import Content
from anllm.server.answers import new_id
from anllm.server.generation import Answer, Generation, Usage
from anllm.server.responses.convert import ResponsePlan
from anllm.server.responses.events import ResponseEvents
from anllm.server.responses.output import COMPLETED, IN_PROGRESS, INCOMPLETE, Output
from anllm.server.responses.store import Item, ResponseStore, StoredResponse


class ResponseAnswer:
    """client: whose it is."""

    def __init__(self, plan: ResponsePlan, generation: Generation, store: ResponseStore, client: str) -> None:
        self._plan = plan
        self._generation = generation
        self._store = store
        self._client = client
        self._id = new_id("resp_")
        self._created = int(time.time())
        reasoning, include = plan.request.reasoning, plan.request.include or ()
        self.output = Output(
            plan.tools,
            has_summary=reasoning is not None and bool(reasoning.summary or reasoning.generate_summary),
            is_encrypted="reasoning.encrypted_content" in include,
        )

    @property
    def id(self) -> str:
        return self._id

    def whole(self, answers: list[Answer]) -> bytes:
        (answer,) = answers
        pieces = answer.pieces or [Content(answer.text)]
        for _ in (*self.output.add(pieces, answer.tokens), *self.output.finish(answer.finish_reason)):
            pass
        return self.kept(self.finished(answer.finish_reason))

    def chunks(self) -> ResponseEvents:
        return ResponseEvents(self)

    def begun(self) -> dict[str, object]:
        """Before there is anything of it."""
        return self._object(IN_PROGRESS)

    def finished(self, reason: FinishReason) -> dict[str, object]:
        """With all that it has."""
        is_cut = reason is FinishReason.LENGTH
        return self._object(
            INCOMPLETE if is_cut else COMPLETED,
            completed_at=None if is_cut else int(time.time()),
            incomplete_details={"reason": "max_output_tokens"} if is_cut else None,
            output=self._items(),
            usage=_usage_fields(self._generation.usage),
        )

    def failed(self, error: Mapping[str, object]) -> dict[str, object]:
        """With what came before it failed. error: OpenAI's error object."""
        self.output.fail()
        told = {"code": error["code"] or error["type"], "message": error["message"]}
        return self._object("failed", error=told, output=self._items(), usage=_usage_fields(self._generation.usage))

    def kept(self, response: Mapping[str, object]) -> bytes:
        """In JSON; from now on it can be asked for, if it is one to be kept."""
        body = msgspec.json.encode(response)
        if self._plan.is_kept:
            stored = StoredResponse(
                self._id, body, self._plan.input_items, tuple(self._items()), self._plan.request.previous_response_id
            )
            self._store.put(self._client, stored)
        return body

    def _items(self) -> list[Item]:
        return [item.so_far() for item in self.output.items]

    def _object(
        self,
        status: str,
        *,
        completed_at: int | None = None,
        error: Mapping[str, object] | None = None,
        incomplete_details: Mapping[str, object] | None = None,
        output: list[Item] | None = None,
        usage: Mapping[str, object] | None = None,
    ) -> dict[str, object]:
        plan, request, sampling = self._plan, self._plan.request, self._plan.prompts.sampling
        return {
            "id": self._id,
            "object": "response",
            "created_at": self._created,
            "completed_at": completed_at,
            "status": status,
            "background": False,
            "error": error,
            "incomplete_details": incomplete_details,
            "instructions": request.instructions,
            "max_output_tokens": request.max_output_tokens,
            "max_tool_calls": request.max_tool_calls,
            "model": request.model,
            "output": output or [],
            "parallel_tool_calls": request.parallel_tool_calls is not False,
            "previous_response_id": request.previous_response_id,
            "prompt_cache_key": request.prompt_cache_key,
            "reasoning": plan.echoed_reasoning,
            "safety_identifier": request.safety_identifier,
            "service_tier": "default",
            "store": plan.is_kept,
            "temperature": sampling.temperature,
            "text": plan.echoed_text,
            "tool_choice": "auto" if request.tool_choice is None else request.tool_choice,
            "tools": plan.echoed_tools,
            "top_logprobs": request.top_logprobs or 0,
            "top_p": sampling.top_p,
            "presence_penalty": sampling.presence_penalty,
            "frequency_penalty": sampling.frequency_penalty,
            "truncation": request.truncation or "disabled",
            "usage": usage,
            "user": request.user,
            "metadata": request.metadata or {},
        }


def _usage_fields(usage: Usage) -> dict[str, object]:
    return {
        "input_tokens": usage.prompt_tokens,
        "input_tokens_details": {"cached_tokens": usage.cached_tokens, "cache_write_tokens": 0},
        "output_tokens": usage.completion_tokens,
        "output_tokens_details": {"reasoning_tokens": usage.reasoning_tokens},
        "total_tokens": usage.prompt_tokens + usage.completion_tokens,
    }
