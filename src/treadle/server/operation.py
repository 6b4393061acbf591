"""Declares each call of the API as data: its path, scope, request type and response type.

The routes and the OpenAPI document are made of the same declarations.
"""

from __future__ import annotations

import functools
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any, Final, Generic, TypeVar, get_origin

import msgspec
from msgspec import UNSET, Struct
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from treadle.admin import Audit
from treadle.admin.audit import Receipt
from treadle.admin.known_names import Heard, heard
from treadle.core.clock import monotonic
from treadle.core.payload_redaction import Redaction
from treadle.server import audited
from treadle.server.auth.tokens import Token
from treadle.server.errors import Refused
from treadle.server.long_lists import encoded
from treadle.server.middleware import allowed, caller, unchanged
from treadle.server.request_body import BODY, body, spelled
from treadle.storage import messages

B = TypeVar("B")
Q = TypeVar("Q")

NO_BODY: Final = UNSET
SLOW: Final = 1.0  # s of a body after which the rights of the caller are checked again


class Call(Generic[B, Q]):
    """An accepted request: its decoded body and query, its token, and the parts of its path.

    redaction  what the answer must hide from this caller
    receipt    of the entry of the audit log; None: the call is not recorded
    """

    __slots__ = ("body", "query", "receipt", "redaction", "request", "token")

    def __init__(self, request: Request, token: Token, body: B, query: Q, redaction: Redaction) -> None:
        self.request, self.token, self.body, self.query, self.redaction = request, token, body, query, redaction
        self.receipt: Receipt | None = None

    def part(self, name: str) -> str:
        """A part of the path, such as the id."""
        found: str = self.request.path_params[name]
        return found

    def allowed(self, queues: Sequence[str]) -> None:
        """Raise Refused (403) unless the token has a right to all of these queues."""
        allowed(self.token, queues)

    def heard(self) -> AbstractContextManager[Heard]:
        """Collect warnings about mistyped names for the response. They name only queues of this token."""
        token = self.token
        return heard((lambda queue: token.serves([queue]) is None) if token.queues else None)


class Operation(Struct, frozen=True, kw_only=True):
    """One method on one path.

    run     returns a value of `gives`, or a Response
    name    its operationId; "": made of method and path
    scope   the scope that the caller needs; "": any valid token
    takes   the type of the JSON body; NO_BODY: none
    empty   the body that a request without one stands for; None: such a request is refused
    most    bytes of the body, if the settings allow them; None: the maximum of the settings
    raw     a type of the body's fields that are kept as text, see body()
    query   the type of the query parameters, all optional; one whose type is a tuple may be repeated
    at_once the answer must not wait for the storage, not even to warn that its jobs have moved
    bare    whether answers have payloads as they are stored; refused to tokens without a right to payloads
    audit   the name of the act in the audit log; "": the call is not recorded
    details the fields of the body that the entry has
    instead the type of the response with status 200, if `status` is another one and both are possible
    others  further statuses that it may return, besides those of every call (see openapi.py)
    """

    method: str
    path: str
    run: Callable[[Call[Any, Any]], Awaitable[object]]
    summary: str
    tag: str
    name: str = ""
    scope: str = ""
    bare: bool = False
    takes: Any = NO_BODY
    empty: bytes | None = None
    most: int | None = BODY
    raw: Any = None
    query: Any = messages.Nothing
    gives: Any = messages.Nothing
    instead: Any = NO_BODY
    status: int = 200
    audit: str = ""
    details: tuple[str, ...] = ()
    others: tuple[int, ...] = ()
    media: str = "application/json"
    at_once: bool = False


Old = Callable[[], Awaitable[str | None]]
"""Returns a warning if the jobs of this storage have been moved elsewhere, otherwise None."""


def routes(operations: Sequence[Operation], most: int, old: Old, redaction: Redaction, audit: Audit) -> list[Route]:
    """Starlette's routes, one per path, so that a wrong method returns 405 and not 404.

    Servers decode a path before it is matched, so names and ids may contain slashes. Paths with more behind the name
    are matched first: `GET /v1/jobs/a/b/history` is the history of `a/b`.
    """
    paths: dict[str, dict[str, Operation]] = {}
    for operation in operations:
        paths.setdefault(operation.path, {})[operation.method] = operation
    return [
        Route(path.replace("}", ":path}"), Endpoint(methods, most, old, redaction, audit), methods=list(methods))
        for path, methods in sorted(paths.items(), key=lambda each: each[0].endswith("}"))
    ]


class Endpoint:
    """The methods of one path, as an ASGI application.

    Starlette wraps functions in two layers for exceptions. They cost 10 us per request, and the guard replaces them.
    """

    def __init__(self, methods: dict[str, Operation], most: int, old: Old, redaction: Redaction, audit: Audit) -> None:
        self._methods, self._most, self._old, self._audit = methods, most, old, audit
        self._redactions = {True: redaction, False: redaction.as_shapes()}  # by the token's right to payloads

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        request = Request(scope, receive)
        for name, text in scope["path_params"].items():
            # No name begins with a space: clients send "%20.." for "..", which a URL cannot have as a part.
            scope["path_params"][name] = text.strip()
            if not text.strip():
                raise Refused(404, "not_found", f"unknown path {request.url.path}: a {name} is missing")
        operation = self._methods["GET" if request.method == "HEAD" else request.method]
        token = caller(request, operation.scope, operation.bare)
        query = _query(request, operation.query)
        given: object = None
        if operation.takes is not NO_BODY:
            most = self._most if operation.most is None else min(self._most, operation.most)
            began = monotonic()
            given = await body(request, operation.takes, most, operation.empty, operation.raw)
            if monotonic() - began > SLOW:
                await unchanged(request)
        answer = await self._run(operation, Call(request, token, given, query, self._redactions[token.payloads]))
        if not isinstance(answer, Response):
            answer = Response(await encoded(answer), operation.status, media_type="application/json")
        if operation.method == "GET" and not operation.at_once and (words := await self._old()) is not None:
            answer.headers["Treadle-Warning"] = words.encode("ascii", "replace").decode()
        await answer(scope, receive, send)

    async def _run(self, operation: Operation, call: Call[Any, Any]) -> object:
        if operation.audit and (operation.audit != audited.ENQUEUE or audited.by_person(call.request)):
            async with audited.audited(self._audit, operation.audit, operation.details, call) as receipt:
                call.receipt = receipt
                answer = await operation.run(call)
                audited.take(receipt, answer, call)
                return answer
        if operation.method != "GET":
            return await operation.run(call)
        with heard():  # the header and the log already warn of old rows
            return await operation.run(call)


def _query(request: Request, kind: Any) -> object:
    if not request.scope["query_string"]:  # saves building request.url: 10 us
        return kind()
    given: dict[str, Any] = dict(request.query_params)
    for name in _repeated(kind):
        if name in given:
            given[name] = request.query_params.getlist(name)
    try:
        return msgspec.convert(given, kind, strict=False)
    except msgspec.ValidationError as error:
        raise Refused(422, "wrong_query", f"invalid query: {spelled(error, given)}") from None


@functools.cache
def _repeated(kind: Any) -> tuple[str, ...]:
    """The parameters of a query type that may be repeated."""
    found = [(field.encode_name, field.type) for field in msgspec.structs.fields(kind)]
    return tuple(name for name, of in found if get_origin(getattr(of, "__origin__", of)) is tuple)
