"""The body of a request as a typed message; what cannot be read is refused before anything is done.

Without it each call would answer a wrong body in its own way, some of them with a traceback.
"""

from __future__ import annotations

import functools
from collections.abc import Hashable
from typing import Any, TypeVar, cast

import msgspec
from starlette.requests import ClientDisconnect, Request

from treadle.server.faults import Refused

T = TypeVar("T")


@functools.cache
def _decoder(kind: Any) -> msgspec.json.Decoder[Any]:
    return msgspec.json.Decoder(kind)


async def raw_body(request: Request, most: int) -> bytes:
    """The bytes. Raises Refused: 413 beyond `most`, whatever Content-Length said."""
    length = request.headers.get("content-length")
    if length is not None and length.isdecimal() and int(length) > most:
        raise Refused(413, "too_large", f"the body has {int(length):,} bytes, the limit is {most:,}", limit=most)
    chunks, size = [], 0
    try:
        async for chunk in request.stream():
            size += len(chunk)
            if size > most:
                raise Refused(413, "too_large", f"the body is beyond the limit of {most:,} bytes", limit=most)
            chunks.append(chunk)
    except ClientDisconnect:
        raise Refused(400, "gone", "the client went away before its body was complete") from None
    return chunks[0] if len(chunks) == 1 else b"".join(chunks)


async def body(request: Request, kind: type[T], most: int, empty: bytes | None = None) -> T:
    """The message. Raises Refused: 415 not JSON, 413 too large, 400 malformed, 422 JSON of another shape.

    empty  what a request without a body means; None: it is malformed
    """
    content = await raw_body(request, most)
    if content or empty is None:
        _check_type(request)
    try:
        found: T = _decoder(cast("Hashable", kind)).decode(content or empty or b"")
        return found
    except msgspec.ValidationError as error:
        raise Refused(422, "wrong_shape", f"the body does not fit: {error}") from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise Refused(400, "malformed", f"the body is not JSON: {error}") from None


def _check_type(request: Request) -> None:
    named = request.headers.get("content-type")
    kind = (named or "application/json").partition(";")[0].strip().lower()
    if kind != "application/json" and not (kind.startswith("application/") and kind.endswith("+json")):
        raise Refused(415, "wrong_type", f"expected Content-Type application/json, found {named!r}")
