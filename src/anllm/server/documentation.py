"""What /docs and /openapi.json say of bodies that we parse ourselves, and of errors."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from fastapi import FastAPI
from pydantic import BaseModel
from pydantic.json_schema import models_json_schema

from anllm.server.protocol import ErrorResponse

_REF = "#/components/schemas/{model}"

ERROR_RESPONSES: dict[int | str, dict[str, Any]] = {
    400: {"model": ErrorResponse, "description": "The request is wrong; `param` names the field."},
    401: {"model": ErrorResponse, "description": "The server has API keys, and this is none of them."},
    403: {"model": ErrorResponse, "description": "A foreign Host header, or a web page of a foreign origin."},
    404: {"model": ErrorResponse, "description": "The model is not served here."},
    408: {"model": ErrorResponse, "description": "The body did not come to its end."},
    413: {"model": ErrorResponse, "description": "The body is too long."},
    415: {"model": ErrorResponse, "description": "The body is not announced as plain JSON."},
    429: {
        "model": ErrorResponse,
        "description": "The queue is full, or the API key has its share; see Retry-After.",
    },
    500: {"model": ErrorResponse, "description": "The server failed; the message names the request."},
    503: {"model": ErrorResponse, "description": "No engine can take the request now; see Retry-After."},
}


def request_body(model: type[BaseModel]) -> dict[str, Any]:
    """For a route's openapi_extra."""
    schema = {"$ref": _REF.format(model=model.__name__)}
    return {"requestBody": {"required": True, "content": {"application/json": {"schema": schema}}}}


class DocumentedFastAPI(FastAPI):
    """FastAPI with the schemas of `request_models` in its document, and with `limits` in them: field -> JSON type ->
    what is said of values of that type."""

    request_models: tuple[type[BaseModel], ...] = ()
    limits: Mapping[str, Mapping[str, Mapping[str, object]]] = MappingProxyType({})

    def openapi(self) -> dict[str, Any]:
        if self.openapi_schema is None:
            document = super().openapi()
            _, definitions = models_json_schema(
                [(model, "validation") for model in self.request_models], ref_template=_REF
            )
            document.setdefault("components", {}).setdefault("schemas", {}).update(definitions["$defs"])
            _drop_422(document)
            for schema in definitions["$defs"].values():
                for name in self.limits.keys() & schema.get("properties", {}).keys():
                    _put_limits(schema["properties"][name], self.limits[name])
        return super().openapi()


def _drop_422(document: dict[str, Any]) -> None:
    """The framework's own answer to what it finds wrong: 400 here, with the error object."""
    for path in document["paths"].values():
        for operation in path.values():
            operation["responses"].pop("422", None)
    for name in ("HTTPValidationError", "ValidationError"):
        document["components"]["schemas"].pop(name, None)


def _put_limits(schema: dict[str, Any], limits: Mapping[str, Mapping[str, object]]) -> None:
    schema.update(limits.get(schema.get("type", ""), {}))
    for branch in (*schema.get("anyOf", ()), *schema.get("oneOf", ())):
        _put_limits(branch, limits)
