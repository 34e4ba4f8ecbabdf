"""What /openapi.json says, held against what the server does, with requests that schemathesis draws from it.

A small and always equal draw by default. `make fuzz` draws anew and more: a quarter of FUZZ_EXAMPLES of each
operation, since each takes long to draw.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, assume, given, settings
from jsonschema_rs import validator_for
from schemathesis import Case, GenerationMode
from schemathesis.schemas import APIOperation

from anllm.config import ServerConfig
from server_harness import MODEL, Server, chunks, message_events, named_events

EXAMPLES = os.environ.get("FUZZ_EXAMPLES")
GENERATING = ("ChatCompletionRequest", "CompletionRequest", "ResponsesRequest", "MessagesRequest")
ANSWERS = ("Answer", "Choice", "Completion", "Details", "List", "Logprob", "Logprobs", "Message", "Model", "Token")

# Refusals of what a schema can't say: rules between fields, what is not built, and what depends on the model.
DOCUMENTED = {None, "invalid_grammar", "unsupported_parameter", "unsupported_value", "context_length_exceeded"}
MESSAGES_DOCUMENTED = (  # the same for an error object that has no code
    "this server can't do it yet",
    "maximum context length",
    "is only allowed when",
    "is not allowed together",
    "must give at least one token",
    "The chat template refuses",
    "'input_schema'",  # of a tool_choice that names no tool
    "the name of another one",
    "the id of a tool_use in an earlier message",
    "Invalid 'output_format",
    "Invalid 'output_config.format",
    "Invalid 'guided_",
    "Invalid 'structured_outputs",
)
READERS = {"/v1/responses": named_events, "/v1/messages": message_events}
OF_ONE = ("/v1/models/{model_id}", "/v1/responses/{response_id}")  # nobody draws an id that there is


def document_of(server: Server) -> dict[str, Any]:
    """The page with two facts of this one model in it, and strict about keys of answers."""
    document = server.app.openapi()
    schemas = document["components"]["schemas"]
    for name in (*GENERATING, "CountTokensRequest"):
        schemas[name]["properties"]["model"] = {"const": MODEL}
    schemas["ResponsesRequest"]["properties"]["previous_response_id"] = {"type": "null"}  # none is known
    for name in ("TokenizeRequest", "DetokenizeRequest"):
        schemas[name]["properties"]["model"] = {"enum": [MODEL, None]}
    for name, schema in schemas.items():
        if name.endswith(ANSWERS) and name != "Message":
            schema["additionalProperties"] = False
    for schema in token_ids_in(schemas):
        schema["maximum"] = server.tokenizer.vocab_size - 1
    keys = schemas["ChatCompletionRequest"]["properties"]["logit_bias"]["anyOf"][0]["propertyNames"]
    keys["pattern"] = "^(25[0-7]|1?[0-9]{1,2})$"
    for name in GENERATING:
        schemas[name]["properties"]["logit_bias"]["anyOf"][0]["propertyNames"] = keys
    return document


def token_ids_in(schemas: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """The schemas of items that are token ids."""

    def walk(value: Any) -> Iterator[dict[str, Any]]:
        if isinstance(value, dict):
            if value.get("items") == {"type": "integer", "minimum": 0}:
                yield value["items"]
            for inner in value.values():
                yield from walk(inner)
        elif isinstance(value, list):
            for inner in value:
                yield from walk(inner)

    for name in (*GENERATING, "DetokenizeRequest"):
        yield from walk(schemas[name])


SERVER = Server(ServerConfig(host="0.0.0.0"))
document_of(SERVER)
SCHEMA = schemathesis.openapi.from_asgi("/openapi.json", SERVER.app)
SCHEMA.config.max_stream_events = 100_000  # streams are read to their end
OPERATIONS = [found.ok() for found in SCHEMA.get_all_operations()]
WITH_BODY = [operation for operation in OPERATIONS if operation.body]


def is_as_described(case: Case) -> bool:
    """Whether the body is right after all: schemathesis takes 10.0 for no integer, which JSON schema does not."""
    body = case.operation.definition.raw["requestBody"]["content"]["application/json"]["schema"]
    return bool(validator_for({**body, "components": SERVER.app.openapi()["components"]}).is_valid(case.body))


def name_of(operation: APIOperation) -> str:
    return f"{operation.method} {operation.path}"


def drawn(operation: APIOperation, mode: GenerationMode, check: Any) -> None:
    """check(case) for each request drawn."""

    @settings(
        max_examples=int(EXAMPLES) // 4 if EXAMPLES else 60,
        deadline=None,
        derandomize=EXAMPLES is None,
        database=None,
        suppress_health_check=list(HealthCheck),
        phases=[Phase.generate, Phase.shrink],
    )
    @given(case=operation.as_strategy(generation_mode=mode))
    def run(case: Case) -> None:
        SERVER.client.requests.clear()
        check(case)

    run()


def answer_of(case: Case) -> Any:
    """The response: as the page says, in status, type and body, and never a failure of the server."""
    response = case.call()
    assert response.status_code < 500, response.text
    case.validate_response(
        response,
        checks=[
            schemathesis.checks.CHECKS.get_one(name)
            for name in ("status_code_conformance", "content_type_conformance", "response_schema_conformance")
        ],
    )
    return response


@pytest.mark.parametrize("operation", OPERATIONS, ids=name_of)
def test_requests_as_the_page_describes_them_are_taken(operation: APIOperation) -> None:
    statuses: list[int] = []

    def check(case: Case) -> None:
        response = answer_of(case)
        statuses.append(response.status_code)
        if response.status_code == 400:
            error = response.json()["error"]
            if "code" not in error:
                assert any(words in error["message"] for words in MESSAGES_DOCUMENTED), response.text
                return
            names_no_tool = error["param"] in ("tool_choice", "function_call")
            names_one_twice = "the name of another one" in error["message"]
            is_between_fields = error["code"] == "invalid_value" and (names_no_tool or names_one_twice)
            assert error["code"] in DOCUMENTED or is_between_fields, response.text
        elif response.status_code == 404:
            assert operation.path.startswith(OF_ONE)
        elif response.status_code == 429:  # more answers at once than the queue takes
            assert int(response.headers["retry-after"][0]) >= 1
        elif response.status_code != 200:
            pytest.fail(response.text)
        elif response.headers.get("content-type", [""])[0].startswith("text/event-stream"):
            READERS.get(operation.path, chunks)(response.text)

    drawn(operation, GenerationMode.POSITIVE, check)
    if not operation.path.startswith(OF_ONE):
        assert statuses.count(200) * 4 > len(statuses), "most were refused by rules that the page does not have"


@pytest.mark.parametrize("operation", WITH_BODY, ids=name_of)
def test_other_requests_are_refused(operation: APIOperation) -> None:
    def check(case: Case) -> None:
        response = answer_of(case)
        if response.status_code == 200:
            assume(not is_as_described(case))
        assert 400 <= response.status_code < 500, case.body

    drawn(operation, GenerationMode.NEGATIVE, check)
