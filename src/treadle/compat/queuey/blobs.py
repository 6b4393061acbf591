"""Blobs over HTTP: PUT /blob, GET and HEAD /blob/{address}, streamed both ways; and the names others know them by.

Without it a runner would need the disk of the sender.
"""

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
    from treadle.app import App

BYTES = "application/octet-stream"
SHA1 = re.compile(r"[0-9a-fA-F]{40}")
# A web page of another site may POST these, and a body of no type, without asking first. It has to ask for a PUT.
FORMS = ("", "text/plain", "multipart/form-data", "application/x-www-form-urlencoded")


def blob_face(blobs: Blobs) -> Callable[[App, Settings, LongPoll], list[BaseRoute]]:
    """The face as `make_site` takes it."""
    face = BlobApi(blobs)
    return lambda app, settings, waiting: face.routes()


class BlobApi:
    """A store of blobs, for whoever may enqueue (to put) or work or read (to get)."""

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
        """The address in hex, as text: 201 if the bytes are new, 200 if they were known."""
        address, is_new = await self._put(request)
        return PlainTextResponse(address, 201 if is_new else 200)

    async def put_sri(self, request: Request) -> Response:
        """The same, answering the address as sha256-<base64>."""
        address, _ = await self._put(request)
        return PlainTextResponse(sri(address), 201)

    async def _put(self, request: Request) -> tuple[str, bool]:
        token = caller(request)
        if not (token.may("enqueue") or token.may("work")):
            raise Refused(403, "forbidden", f"the token {token.name!r} may neither enqueue nor work")
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
            raise Refused(400, "gone", "the client went away before the blob was complete") from None

    async def get(self, request: Request) -> Response:
        token = caller(request)
        if not (token.may("read") or token.may("work")):
            raise Refused(403, "forbidden", f"the token {token.name!r} may neither read nor work")
        return await blob_response(self._blobs, request.path_params["address"], request.method)


async def blob_response(blobs: Blobs, named: str, method: str) -> Response:
    """The blob of that address, streamed; for HEAD its size only. Raises Refused: 400, 404, 500 for a spoiled one."""
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
