"""What /docs and /openapi.json say of bodies that we parse ourselves, and of errors."""

from __future__ import annotations

from typing import Any

from fastapi import FastAPI
from pydantic import BaseModel
from pydantic.json_schema import models_json_schema

from anllm.server.protocol import ErrorResponse

_REF = "#/components/schemas/{model}"

ERROR_RESPONSES: dict[int | str, dict[str, Any]] = {
    400: {"model": ErrorResponse, "description": "The request is wrong; `param` names the field."},
    404: {"model": ErrorResponse, "description": "The model is not served here."},
    408: {"model": ErrorResponse, "description": "The body did not come to its end."},
    413: {"model": ErrorResponse, "description": "The body is too long."},
    415: {"model": ErrorResponse, "description": "The body is not announced as plain JSON."},
    429: {"model": ErrorResponse, "description": "The queue is full; see Retry-After."},
    503: {"model": ErrorResponse, "description": "No engine can take the request now; see Retry-After."},
}


def request_body(model: type[BaseModel]) -> dict[str, Any]:
    """For a route's openapi_extra."""
    schema = {"$ref": _REF.format(model=model.__name__)}
    return {"requestBody": {"required": True, "content": {"application/json": {"schema": schema}}}}


class DocumentedFastAPI(FastAPI):
    """FastAPI with the schemas of `request_models` in its document."""

    request_models: tuple[type[BaseModel], ...] = ()

    def openapi(self) -> dict[str, Any]:
        if self.openapi_schema is None:
            document = super().openapi()
            _, definitions = models_json_schema(
                [(model, "validation") for model in self.request_models], ref_template=_REF
            )
            document.setdefault("components", {}).setdefault("schemas", {}).update(definitions["$defs"])
        return super().openapi()
