"""Declares each call of the API at the function that answers it: its path, scope, types and audit name.

The routes and the OpenAPI document are made of the same declarations.
"""

from __future__ import annotations

import functools
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AbstractContextManager
from types import MethodType, NoneType
from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar, get_args, get_origin, get_type_hints

import msgspec
from msgspec import UNSET, Struct
from msgspec.structs import replace
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from treadle.admin.audit import Receipt, Source
from treadle.admin.known_names import Heard, heard
from treadle.core.clock import monotonic
from treadle.core.payload_redaction import Redaction
from treadle.server.auth.tokens import ANYBODY, Token
from treadle.server.errors import Refused
from treadle.server.long_lists import encoded
from treadle.server.middleware import allowed, caller, unchanged
from treadle.server.request_body import BODY, body, spelled
from treadle.server.routes.job_messages import Acted
from treadle.server.settings import Settings
from treadle.storage.messages import Nothing

if TYPE_CHECKING:
    from treadle.app.core import AppCore

B = TypeVar("B")
Q = TypeVar("Q")

NO_BODY: Final = UNSET
LONGEST_KEY: Final = 255  # characters of an Idempotency-Key
SLOW: Final = 1.0  # s of a body after which the rights of the caller are checked again
ENQUEUE: Final = "job.enqueue"  # recorded only if a person at a browser sent it: programs send jobs too often


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
        value: str = self.request.path_params[name]
        return value

    @property
    def by(self) -> str:
        """The name of the caller for the audit log: its token's, or without tokens its address."""
        if self.token is not ANYBODY:
            return self.token.name
        address = self.request.scope.get("treadle.caller")
        return f"anybody at {address}" if address else "anybody"

    @property
    def source(self) -> Source:
        """Where the call came from: "api", or the program that makes calls within this process."""
        source: Source = self.request.scope.get("treadle.source", "api")
        return source

    @property
    def idempotency_key(self) -> str | None:
        """The header of that name. Raises Refused (422)."""
        key = self.request.headers.get("idempotency-key")
        if key is not None and not 0 < len(key) <= LONGEST_KEY:
            raise Refused(422, "wrong_header", f"Idempotency-Key: expected 1 to {LONGEST_KEY} characters")
        return key

    def allowed(self, queues: Sequence[str]) -> None:
        """Raise Refused (403) unless the token has a right to all of these queues."""
        allowed(self.token, queues)

    def heard(self) -> AbstractContextManager[Heard]:
        """Collect warnings about mistyped names for the response. The warnings name only queues of this token."""
        token = self.token
        return heard(lambda queue: token.serves([queue]) is None)


Run = Callable[..., Awaitable[object]]


class Operation(Struct, frozen=True):
    """One method on one path. It decorates the function that answers the call:

        @Operation("POST /v1/jobs/{id}/retry", tag="jobs", scope="operate", audit="job.retry")
        async def retry(self, call: Call[None, Nothing]) -> Acted:
            \"\"\"Reopen a failed or cancelled job.\"\"\"

    Its annotations are the types of body (None: it has none), query and answer. A parameter of the query whose type is
    a tuple may be repeated. The first paragraph of its docstring is the summary.

    route   the method and the path
    scope   the scope that the caller needs, "a|b" is one of the two; "": any valid token
    name    its operationId; "": made of method and path
    empty   the body that a request without one stands for; None: such a request is refused
    most    bytes of the body, if the settings allow them; None: the maximum of the settings
    raw     a type of the body's fields that are kept as text, see body()
    gives   the type of the answer of a function that returns a Response
    instead the type of the response with status 200, if `status` is another one and both are possible
    others  further statuses that it may return, besides those of every call (see openapi.py)
    audit   the name of the act in the audit log; "": the call is not recorded
    details the fields of the body that the entry has
    at_once the answer must not wait for the storage, not even to warn that its jobs have moved
    bare    whether answers have payloads as they are stored; refused to tokens without a right to payloads

    The last four fields come from the function.
    """

    route: str
    tag: str
    scope: str = ""
    name: str = ""
    empty: bytes | None = None
    most: int | None = BODY
    raw: Any = None
    gives: Any = None
    instead: Any = NO_BODY
    status: int = 200
    others: tuple[int, ...] = ()
    media: str = "application/json"
    audit: str = ""
    details: tuple[str, ...] = ()
    at_once: bool = False
    bare: bool = False
    run: Run = NotImplemented
    summary: str = ""
    takes: Any = NO_BODY
    query: Any = Nothing

    @property
    def method(self) -> str:
        return self.route.partition(" ")[0]

    @property
    def path(self) -> str:
        return self.route.partition(" ")[2]

    def __call__(self, run: Run) -> Operation:
        types = get_type_hints(run)
        takes, query = get_args(types["call"])
        answer = types["return"] if issubclass(types["return"], Struct) else Nothing
        return replace(
            self,
            run=run,
            summary=" ".join((run.__doc__ or "").partition("\n\n")[0].split()).removesuffix("."),
            takes=NO_BODY if takes is NoneType else takes,
            query=query,
            gives=self.gives or answer,
        )


def operations_in(*groups: object) -> list[Operation]:
    """The operations that the classes of these objects declare, as operations on the objects."""
    return [
        replace(operation, run=MethodType(operation.run, group))
        for group in groups
        for operation in vars(type(group)).values()
        if isinstance(operation, Operation)
    ]


def routes(operations: Sequence[Operation], core: AppCore, settings: Settings) -> list[Route]:
    """Starlette's routes, one per path, so that a wrong method returns 405 and not 404.

    Servers decode a path before it is matched, so names and ids may contain slashes. Paths with more after the name are
    matched first: `GET /v1/jobs/a/b/history` is the history of `a/b`.
    """
    paths: dict[str, dict[str, Operation]] = {}
    for operation in operations:
        paths.setdefault(operation.path, {})[operation.method] = operation
    return [
        Route(path.replace("}", ":path}"), Endpoint(methods, core, settings), methods=list(methods))
        for path, methods in sorted(paths.items(), key=lambda item: (item[0].endswith("}"), -item[0].count("/")))
    ]


class Endpoint:
    """The methods of one path, as an ASGI application.

    Starlette wraps functions in two layers for exceptions. They cost 10 us per request, and the guard replaces them.
    """

    def __init__(self, methods: dict[str, Operation], core: AppCore, settings: Settings) -> None:
        self._methods, self._core, self._most = methods, core, settings.max_body
        redaction = core.redactor.also(settings.redact, settings.reveal).redaction
        self._redactions = {True: redaction, False: redaction.as_shapes()}  # by the token's right to payloads

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        request = Request(scope, receive)
        for name, text in scope["path_params"].items():
            # No name begins with a space: clients send "%20.." for "..", which a URL cannot have as a part.
            scope["path_params"][name] = text.strip()
            if not text.strip():
                raise Refused(404, "not_found", f"unknown path {request.url.path}: a {name} is missing")
        method = "GET" if request.method == "HEAD" else request.method
        operation = self._methods[method]
        token = caller(request, operation.scope, operation.bare)
        # Without a query nothing is read: request.url takes 10 us to build.
        reads_query = scope["query_string"] or _is_needed(operation.query)
        query = _query(request, operation.query) if reads_query else operation.query()
        content: object = None
        if operation.takes is not NO_BODY:
            most = self._most if operation.most is None else min(self._most, operation.most)
            began = monotonic()
            content = await body(request, operation.takes, most, operation.empty, operation.raw)
            if monotonic() - began > SLOW:
                await unchanged(request)
        call = Call(request, token, content, query, self._redactions[token.payloads])
        if method == "GET":
            with heard():  # the header and the log already warn of old rows
                answer = await operation.run(call)
        elif operation.audit and (operation.audit != ENQUEUE or _by_person(request)):
            answer = await self._recorded(operation, call)
        else:
            answer = await operation.run(call)
        if not isinstance(answer, Response):
            answer = Response(await encoded(answer), operation.status, media_type="application/json")
        if method == "GET" and not operation.at_once and (warning := await self._core.moved.words()) is not None:
            answer.headers["Treadle-Warning"] = warning.encode("ascii", "replace").decode()
        await answer(scope, receive, send)

    async def _recorded(self, operation: Operation, call: Call[Any, Any]) -> object:
        """Run a call, with an entry in the audit log."""
        parts = call.request.path_params
        target = str(parts.get("id") or parts.get("name") or getattr(call.body, "task", ""))
        details = _details(call.body, operation.details) if operation.details else None
        record = self._core.audit.record(operation.audit, target, filter=details, by=call.by, source=call.source)
        async with record as receipt:
            call.receipt = receipt
            answer = await operation.run(call)
            if isinstance(answer, Acted):
                receipt.done = answer.jobs
                if answer.jobs and "id" in parts:
                    receipt.ids = [parts["id"]]
            return answer


def _by_person(request: Request) -> bool:
    """Whether a person at a browser sent the request: by a session, or from a page."""
    return request.scope.get("treadle.auth") in ("session", "host") or "sec-fetch-site" in request.headers


def _details(body: Struct, names: Sequence[str]) -> str | None:
    """The fields of a body that have a value, as text."""
    fields = [(name, value) for name in names if (value := getattr(body, name)) not in (None, UNSET)]
    return ", ".join(f"{name}={msgspec.json.encode(value).decode()}" for name, value in fields) or None


def _query(request: Request, kind: Any) -> object:
    parameters: dict[str, Any] = dict(request.query_params)
    for name in _repeated(kind):
        if name in parameters:
            parameters[name] = request.query_params.getlist(name)
    try:
        return msgspec.convert(parameters, kind, strict=False)
    except msgspec.ValidationError as error:
        raise Refused(422, "wrong_query", f"invalid query: {spelled(error, parameters)}") from None


@functools.cache
def _is_needed(kind: Any) -> bool:
    """Whether a parameter of this query type must be sent."""
    return any(field.required for field in msgspec.structs.fields(kind))


@functools.cache
def _repeated(kind: Any) -> tuple[str, ...]:
    """The parameters of a query type that may be repeated."""
    fields = [(field.encode_name, field.type) for field in msgspec.structs.fields(kind)]
    return tuple(name for name, of in fields if get_origin(getattr(of, "__origin__", of)) is tuple)
