"""One call of the API as data: its path, the right it needs, what it takes and gives.

Routes and OpenAPI are made of it. Without it the description and the behaviour would be two things that drift apart.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any, Final, Generic, TypeVar

import msgspec
from msgspec import UNSET, Struct
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from treadle.admin.known_names import Heard, heard
from treadle.server.auth.tokens import Token
from treadle.server.errors import Refused
from treadle.server.long_lists import encoded
from treadle.server.middleware import allowed, caller
from treadle.server.request_body import BODY, body, spelled
from treadle.storage import messages

B = TypeVar("B")
Q = TypeVar("Q")

NO_BODY: Final = UNSET


class Call(Generic[B, Q]):
    """A request that was let in: the typed body and query, who sent it, and the parts of the path."""

    __slots__ = ("body", "query", "request", "token")

    def __init__(self, request: Request, token: Token, body: B, query: Q) -> None:
        self.request, self.token, self.body, self.query = request, token, body, query

    def part(self, name: str) -> str:
        """A part of the path, such as the id."""
        found: str = self.request.path_params[name]
        return found

    def allowed(self, queues: Sequence[str]) -> None:
        """Raises Refused (403) unless the caller's token has a right to all of these queues."""
        allowed(self.token, queues)

    def heard(self) -> AbstractContextManager[Heard]:
        """Collect the warnings of mistyped names for the answer. They name the queues of this token only."""
        token = self.token
        return heard((lambda queue: token.serves([queue]) is None) if token.queues else None)


class Operation(Struct, frozen=True, kw_only=True):
    """One method on one path.

    run     answers a value of `gives`, or a Response
    scope   the right its caller needs; "": any known token
    takes   the type of the JSON body; NO_BODY: there is none
    empty   what a request without a body means; None: it is refused
    most    bytes of its body, as far as the settings allow them; None: as many as those allow
    raw     a type of the fields of the body that are kept as text, see body()
    query   the type of the query parameters, all optional
    others  further statuses it may answer, beside those every call may (see openapi.py)
    """

    method: str
    path: str
    run: Callable[[Call[Any, Any]], Awaitable[object]]
    summary: str
    tag: str
    scope: str = ""
    takes: Any = NO_BODY
    empty: bytes | None = None
    most: int | None = BODY
    raw: Any = None
    query: Any = messages.Nothing
    gives: Any = messages.Nothing
    status: int = 200
    others: tuple[int, ...] = ()
    media: str = "application/json"


Old = Callable[[], Awaitable[str | None]]
"""What a person must know of a storage whose jobs live elsewhere; None: nothing."""


def routes(operations: Sequence[Operation], most: int, old: Old) -> list[Route]:
    """Starlette's routes, one for each path, so that a wrong method is told apart from a wrong path."""
    paths: dict[str, dict[str, Operation]] = {}
    for operation in operations:
        paths.setdefault(operation.path, {})[operation.method] = operation
    return [Route(path, Endpoint(methods, most, old), methods=list(methods)) for path, methods in paths.items()]


class Endpoint:
    """The methods of one path. An ASGI application, not a function: Starlette would put two layers for exceptions
    around that, which cost a request 10 us and which the guard makes needless."""

    def __init__(self, methods: dict[str, Operation], most: int, old: Old) -> None:
        self._methods, self._most, self._old = methods, most, old

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        request = Request(scope, receive)
        operation = self._methods["GET" if request.method == "HEAD" else request.method]
        token = caller(request, operation.scope)
        query = _query(request, operation.query)
        given: object = None
        if operation.takes is not NO_BODY:
            most = self._most if operation.most is None else min(self._most, operation.most)
            given = await body(request, operation.takes, most, operation.empty, operation.raw)
        answer = await self._run(operation, Call(request, token, given, query))
        if not isinstance(answer, Response):
            answer = Response(await encoded(answer), operation.status, media_type="application/json")
        if operation.method == "GET" and (words := await self._old()) is not None:
            answer.headers["Treadle-Warning"] = words.encode("ascii", "replace").decode()
        await answer(scope, receive, send)

    async def _run(self, operation: Operation, call: Call[Any, Any]) -> object:
        if operation.method != "GET":
            return await operation.run(call)
        with heard():  # that rows are old stands in the header, and once in the log
            return await operation.run(call)


def _query(request: Request, kind: Any) -> object:
    if not request.scope["query_string"]:  # request.url would be built for it: 10 us
        return kind()
    given = dict(request.query_params)
    try:
        return msgspec.convert(given, kind, strict=False)
    except msgspec.ValidationError as error:
        raise Refused(422, "wrong_query", f"the query does not fit: {spelled(error, given)}") from None
