"""Reads and decodes the body of a request, within limits of size and memory."""

from __future__ import annotations

import asyncio
import functools
from collections import deque
from collections.abc import Awaitable, Callable, Hashable
from typing import Any, Final, TypeVar, cast

import msgspec
from msgspec import UNSET
from starlette.requests import ClientDisconnect, Request
from starlette.types import Scope

from treadle.core.long_numbers import unreadable
from treadle.core.plain_json import refuse_deep
from treadle.server.errors import Refused
from treadle.server.long_lists import CONTAINERS, KNOWN_CONTAINERS, SMALL, Misfit, decoded, weigh
from treadle.server.row_checks import given_in, misfit

T = TypeVar("T")
Check = Callable[[bytes | bytearray], Awaitable[None]]

BODY: Final = 2**20  # bytes of a call without rows and without arguments of a job
EACH, ALL = 2, 8  # bodies of the largest size that one caller, and all callers, may have in memory
CLOSE: Final = {"Connection": "close"}  # headers of the response to a body that is not read to its end
PATIENCE: Final = 10.0  # s for which a large body waits for memory


class Bodies:
    """Limits the bytes of large bodies in memory, counted from their first byte to the end of their request.

    Small bodies are bounded by the number of requests. A large body waits unread, so its bytes stay with the client.
    """

    def __init__(self, most: int) -> None:
        self._each, self._all = EACH * most, ALL * most
        self._held: dict[str, int] = {}
        self._waiting: deque[tuple[asyncio.Future[None], Scope, int]] = deque()

    async def enter(self, scope: Scope, size: int) -> None:
        """Reserve `size` bytes until `leave`. Raises Refused (503) if they are not free within 10 s."""
        if size <= SMALL or "treadle.held" in scope:
            return
        if self._took(scope, size):
            return
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        entry = (turn, scope, size)
        self._waiting.append(entry)
        try:
            async with asyncio.timeout(PATIENCE):
                await turn
        except TimeoutError:
            message = f"the server is busy with other large bodies; it has not read these {size:,} bytes"
            raise Refused(503, "too_many", message, {"Retry-After": "1"}) from None
        finally:
            if entry in self._waiting:
                self._waiting.remove(entry)

    def leave(self, scope: Scope) -> None:
        """Release the reservation of a request, and let waiting bodies in."""
        caller, freed = scope.pop("treadle.held")
        self._held[caller] -= freed
        if not self._held[caller]:
            del self._held[caller]
        for entry in list(self._waiting):
            turn, waiting, size = entry
            if not turn.done() and self._took(waiting, size):
                self._waiting.remove(entry)
                turn.set_result(None)

    def _took(self, scope: Scope, size: int) -> bool:
        """Reserve the bytes if they are free -> whether they were."""
        caller = scope.get("treadle.caller", "")
        held = self._held.get(caller, 0)
        if held + size > self._each or sum(self._held.values()) + size > self._all:
            return False
        self._held[caller] = held + size
        scope["treadle.held"] = caller, size
        return True


@functools.cache
def _decoder(kind: Any) -> msgspec.json.Decoder[Any]:
    return msgspec.json.Decoder(kind)


async def raw_body(request: Request, most: int, check: Check | None = None) -> bytes | bytearray:
    """Read the body. Raises Refused (413) beyond `most` bytes, whether Content-Length announces them or not.

    `check` runs each time the received bytes have doubled, so that a bad body is refused early.
    """
    named = request.headers.get("content-length")
    length = int(named) if named is not None and named.isdecimal() else None
    if length is not None and length > most:
        raise Refused(413, "too_large", f"the body has {length:,} bytes, the limit is {most:,}", CLOSE, limit=most)
    bodies: Bodies | None = request.scope.get("treadle.bodies")
    if bodies is not None and length is not None:
        await bodies.enter(request.scope, length)
    content: bytes | bytearray = b""
    next_check = 2**20
    try:
        async for chunk in request.stream():
            if len(content) + len(chunk) > most:
                raise Refused(413, "too_large", f"the body exceeds the limit of {most:,} bytes", CLOSE, limit=most)
            if not content:
                content = chunk
            elif chunk:
                if not isinstance(content, bytearray):
                    content = bytearray(content)  # grows in place; joining pieces would take twice the memory
                content += chunk
            if bodies is not None and length is None and len(content) > SMALL:
                await bodies.enter(request.scope, most)
            if check is not None and len(content) >= next_check:
                await check(content)
                next_check *= 2
    except ClientDisconnect:
        raise Refused(400, "gone", "the client disconnected before the body was complete") from None
    return content


async def body(request: Request, kind: type[T], most: int, empty: bytes | None = None, raw: Any = None) -> T:
    """The decoded body. Raises Refused: 415 not JSON, 413 too large, 400 malformed, 422 JSON of the wrong shape.

    empty  the body that a request without one stands for; None: such a request is malformed
    raw    a type with the fields of `kind` that are kept as undecoded text
    """
    check: Check = functools.partial(weigh, most=KNOWN_CONTAINERS if most > BODY else CONTAINERS)
    content = await raw_body(request, most, check if raw is None else None)
    if content or empty is None:
        _check_type(request)
    try:
        if raw is None:
            await check(content)
            refuse_deep(content)
        elif len(content) > SMALL:
            _check_rest(content, _decoder(raw).decode(content))
        if raw is None and len(content) > SMALL:
            in_parts: T | None = await decoded(content, kind)
            if in_parts is not None:
                return in_parts
        value: T = _decoder(cast("Hashable", kind)).decode(content or empty or b"")
        return value
    except Misfit as error:
        raise Refused(422, "wrong_shape", f"invalid body: {unreadable(error, content)}") from None
    except msgspec.ValidationError as error:
        sent = given_in(content) if len(content) <= SMALL else UNSET
        raise Refused(422, "wrong_shape", f"invalid body: {unreadable(error, content, spelled(error, sent))}") from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise Refused(400, "malformed", f"the body is not JSON: {error}") from None


def spelled(error: msgspec.ValidationError, sent: object) -> str:
    """The error text for a body or a query: the field, the expected and the found value."""
    field, problem = misfit(error, sent)
    return f"{field}: {problem}" if field else problem


def _check_rest(content: bytes | bytearray, raw: msgspec.Struct) -> None:
    """Raise Refused (413) if the body without its raw fields is large."""
    rest = len(content) - sum(len(memoryview(getattr(raw, name) or b"")) for name in raw.__struct_fields__)
    if rest > SMALL:
        message = f"the body without {' and '.join(raw.__struct_fields__)} has {rest:,} bytes, the limit is {SMALL:,}"
        raise Refused(413, "too_large", message, limit=SMALL)


def _check_type(request: Request) -> None:
    """Raise Refused (415) unless the type is JSON, which pages of other sites cannot send without a CORS preflight."""
    named = request.headers.get("content-type")
    kind = (named or "").partition(";")[0].strip().lower()
    if kind != "application/json" and not (kind.startswith("application/") and kind.endswith("+json")):
        raise Refused(415, "wrong_type", f"expected Content-Type application/json, found {named!r}")
