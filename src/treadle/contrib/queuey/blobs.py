"""Blobs over HTTP, streamed: PUT /blob, GET and HEAD /blob/{address}, and the equivalent paths of other clients."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Callable
from typing import TYPE_CHECKING

from starlette.requests import ClientDisconnect, Request
from starlette.responses import PlainTextResponse, Response, StreamingResponse
from starlette.routing import BaseRoute, Route

from treadle.blobs import BadAddress, Blobs, Corrupt, NoBlob, TooBig, address_of, sri
from treadle.server.errors import Refused
from treadle.server.longpoll import LongPoll
from treadle.server.middleware import caller
from treadle.server.settings import Settings

if TYPE_CHECKING:
    from treadle.app.core import AppCore

BYTES = "application/octet-stream"
SHA1 = re.compile(r"[0-9a-fA-F]{40}")
# Content types that a page of another site can POST without a CORS preflight; a PUT always needs one.
FORMS = ("", "text/plain", "multipart/form-data", "application/x-www-form-urlencoded")


def blob_routes(blobs: Blobs) -> Callable[[AppCore, Settings, LongPoll], list[BaseRoute]]:
    """The protocol as an argument of `make_site`."""
    protocol = BlobApi(blobs)
    return lambda core, settings, waiting: protocol.routes()


class BlobApi:
    """Serves a blob store. Storing needs the scope "enqueue" or "work", reading "read" or "work"."""

    def __init__(self, blobs: Blobs) -> None:
        self._blobs = blobs

    def routes(self) -> list[BaseRoute]:
        return [
            Route("/blob", self.put, methods=["PUT", "POST"]),
            Route("/blob/{address:path}", self.get, methods=["GET", "HEAD"]),
            Route("/v1/storage/data", self.put_sri, methods=["PUT", "POST"]),
            Route("/v1/storage/data/{address:path}", self.get, methods=["GET", "HEAD"]),
        ]

    async def put(self, request: Request) -> Response:
        """Store a blob -> its address in hex as text; 201 if it is new, 200 if it was known."""
        address, is_new = await self._put(request)
        return PlainTextResponse(address, 201 if is_new else 200)

    async def put_sri(self, request: Request) -> Response:
        """Store a blob -> its address as sha256-<base64>."""
        address, _ = await self._put(request)
        return PlainTextResponse(sri(address), 201)

    async def _put(self, request: Request) -> tuple[str, bool]:
        token = caller(request)
        if not (token.may("enqueue") or token.may("work")):
            raise Refused(403, "forbidden", f"the token {token.name!r} needs the scope 'enqueue' or 'work'")
        named = request.headers.get("content-type", "")
        if request.method == "POST" and named.partition(";")[0].strip().lower() in FORMS:
            raise Refused(415, "wrong_type", f"expected Content-Type {BYTES} or PUT, found {named!r}")

        async def pieces() -> AsyncIterator[bytes]:
            async for piece in request.stream():
                yield piece

        try:
            return await self._blobs.put(pieces())
        except TooBig as error:
            raise Refused(413, "too_large", str(error), limit=error.limit) from None
        except ClientDisconnect:
            raise Refused(400, "gone", "the client disconnected before the blob was complete") from None

    async def get(self, request: Request) -> Response:
        token = caller(request)
        if not (token.may("read") or token.may("work")):
            raise Refused(403, "forbidden", f"the token {token.name!r} needs the scope 'read' or 'work'")
        return await blob_response(self._blobs, request.path_params["address"], request.method)


async def blob_response(blobs: Blobs, named: str, method: str) -> Response:
    """Stream the blob of this address; for HEAD return only its size. Raises Refused: 400, 404, 500 if corrupt."""
    try:
        address = await blobs.find(named.lower()) if SHA1.fullmatch(named) else address_of(named)
    except BadAddress as error:
        raise Refused(400, "malformed_address", str(error)) from None
    if address is None:
        raise Refused(404, "not_found", f"there is no blob with the SHA-1 {named}")
    headers = {"ETag": f'"{address}"', "Cache-Control": "public, max-age=31536000, immutable"}
    if method == "HEAD":
        size = await blobs.size(address)
        if size is None:
            raise Refused(404, "not_found", f"there is no blob {address}")
        return Response(headers={**headers, "Content-Length": str(size)}, media_type=BYTES)
    opened = blobs.read(address)
    try:
        blob = await opened.__aenter__()
    except NoBlob as error:
        raise Refused(404, "not_found", str(error)) from None
    except Corrupt as error:
        raise Refused(500, "corrupt", str(error)) from None

    async def pieces() -> AsyncIterator[bytes]:
        try:
            async for piece in blob:
                yield piece
        finally:
            await opened.__aexit__(None, None, None)

    return StreamingResponse(pieces(), media_type=BYTES, headers={**headers, "Content-Length": str(blob.size)})
