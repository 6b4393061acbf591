"""Generates the OpenAPI 3.1 document from the operations and their types, and serves it with a viewer."""

from __future__ import annotations

import functools
import importlib.metadata
import re
from collections.abc import Sequence
from importlib import resources
from typing import Any, Final

import msgspec
from starlette.requests import Request
from starlette.responses import HTMLResponse, Response
from starlette.routing import Route

from treadle.server.middleware import caller
from treadle.server.operation import NO_BODY, Operation
from treadle.storage import messages

WORDS: Final = {
    200: "Done.",
    201: "Stored.",
    202: "Begun.",
    204: "Done.",
    400: "The body is not JSON, or is incomplete.",
    401: "The token is unknown.",
    403: "The token lacks a right.",
    404: "Not found.",
    405: "The path does not support the method.",
    408: "Not in time.",
    409: "The state has changed, or another job holds the key.",
    410: "The jobs were moved to another storage.",
    413: "The body is too large.",
    415: "The body is not application/json.",
    422: "The JSON does not have the expected form.",
    429: "Too many requests, or the queue is full. Retry-After, if it is given, says when to try again.",
    501: "A package that this call needs is not installed on the server.",
    503: "The storage is unavailable; it is unknown whether the call was carried out.",
}
ALWAYS: Final = (401, 403, 410, 422, 429, 503)
WITH_BODY: Final = (400, 413, 415)
REF: Final = "#/components/schemas/{name}"


def description(operations: Sequence[Operation], tokens: bool) -> list[Route]:
    """The routes of the document and of a page that shows it. The page loads nothing from other hosts."""

    @functools.cache
    def document() -> bytes:
        return msgspec.json.encode(describe(operations, version(), tokens))

    async def openapi(request: Request) -> Response:
        caller(request, bare=False)
        return Response(document(), media_type="application/json")

    async def page(request: Request) -> Response:
        text = resources.files("treadle.server").joinpath("viewer.html").read_bytes()
        policy = (
            "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; connect-src 'self'; "
            "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
        )
        return HTMLResponse(text, headers={"Content-Security-Policy": policy})

    return [Route("/v1/openapi.json", openapi), Route("/docs", page)]


def version() -> str:
    return importlib.metadata.version("treadle")


def describe(operations: Sequence[Operation], release: str, tokens: bool) -> dict[str, Any]:
    """The document. `tokens`: whether calls need a token."""
    kinds = [
        kind
        for call in operations
        for kind in (call.takes, call.query, call.gives, call.instead)
        if kind is not NO_BODY
    ]
    schemas, components = msgspec.json.schema_components([*kinds, messages.Problem], ref_template=REF)
    of = dict(zip(map(id, [*kinds, messages.Problem]), schemas, strict=True))
    paths: dict[str, dict[str, Any]] = {}
    for operation in operations:
        paths.setdefault(operation.path, {})[operation.method.lower()] = _operation(operation, of, components)
    document: dict[str, Any] = {
        "openapi": "3.1.0",
        "info": {"title": "Treadle", "version": release, "description": "Background jobs that cannot be lost."},
        "paths": paths,
        "components": {"schemas": components},
    }
    if tokens:
        document["components"]["securitySchemes"] = {"token": {"type": "http", "scheme": "bearer"}}
        document["security"] = [{"token": []}]
    return document


def _operation(operation: Operation, of: dict[int, Any], components: dict[str, Any]) -> dict[str, Any]:
    statuses = {operation.status, *operation.others, *ALWAYS}
    name = operation.name or re.sub(
        r"\W+", "_", f"{operation.method.lower()}{operation.path.removeprefix('/v1')}"
    ).strip("_")
    described: dict[str, Any] = {"operationId": name, "summary": operation.summary, "tags": [operation.tag]}
    if operation.scope:
        scopes = " or ".join(f"`{scope}`" for scope in operation.scope.split("|"))
        described["description"] = f"Needs the scope {scopes}."
    parameters = [
        {"name": part, "in": "path", "required": True, "schema": {"type": "string", "minLength": 1}}
        for part in re.findall(r"\{(\w+)\}", operation.path)
    ]
    parameters += _query(of[id(operation.query)], components)
    if parameters:
        described["parameters"] = parameters
    if operation.takes is not NO_BODY:
        statuses |= set(WITH_BODY)
        content = {"application/json": {"schema": of[id(operation.takes)]}}
        described["requestBody"] = {"required": operation.empty is None, "content": content}
    described["responses"] = {str(status): _response(status, operation, of) for status in sorted(statuses)}
    return described


def _response(status: int, operation: Operation, of: dict[int, Any]) -> dict[str, Any]:
    if status >= 400:
        return {"description": WORDS[status], "content": {"application/json": {"schema": of[id(messages.Problem)]}}}
    if status == 204:
        return {"description": WORDS[status]}
    gives = operation.instead if status == 200 and operation.instead is not NO_BODY else operation.gives
    schema = of[id(gives)] if operation.media == "application/json" else {"type": "string"}
    return {"description": WORDS[status], "content": {operation.media: {"schema": schema}}}


def _query(schema: dict[str, Any], components: dict[str, Any]) -> list[dict[str, Any]]:
    """The fields of a query type as parameters."""
    named = components.get(schema.get("$ref", "").rpartition("/")[2], schema)
    return [
        {"name": name, "in": "query", "required": False, "schema": _given(field)}
        for name, field in named.get("properties", {}).items()
    ]


def _given(schema: dict[str, Any]) -> dict[str, Any]:
    """The schema of a query parameter without "null", which stands for a parameter that is left out."""
    choices = [choice for choice in schema.get("anyOf", ()) if choice != {"type": "null"}]
    if not choices:
        return schema
    return choices[0] if len(choices) == 1 else {**schema, "anyOf": choices}
