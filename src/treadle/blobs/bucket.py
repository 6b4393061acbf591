"""A bucket of S3-compatible storage: puts, fetches, copies and deletes objects, with retries for transient errors."""

from __future__ import annotations

import asyncio
import hashlib
import os
import random
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from datetime import datetime
from email.utils import parsedate_to_datetime
from typing import IO, Final, TypeVar
from urllib.parse import parse_qsl, unquote, urlsplit

import aiohttp
from msgspec import Struct
from yarl import URL

from treadle.blobs.credentials import Source, source_of
from treadle.blobs.signing import NOTHING, escaped, query_string, sign
from treadle.core.clock import wall
from treadle.core.errors import BadUrl, StorageError, StorageFull, StorageUnavailable
from treadle.core.redaction import shown

T = TypeVar("T")

PIECE: Final = 256 * 1024  # bytes sent or written at once
TRIES: Final = 4
FIRST_PAUSE: Final = 0.2  # s; doubled each time
LONGEST: Final = 2**20  # bytes of a response that is not an object
SILENCE: Final = 60.0  # s without a byte
PASSING: Final = frozenset({408, 409, 429, 500, 502, 503, 504})  # transient errors, which are retried
STALLED: Final = "RequestTimeout"  # S3 answers it with 400, and expects a retry
MISSING: Final = "NoSuchKey"  # the only 404 that says that there is no object: others come from gateways, or no bucket
ERROR: Final = 10_000  # bytes of an error that are read
FULL: Final = frozenset({"InsufficientCapacity", "QuotaExceeded", "XMinioStorageFull", "EntityTooLarge"})
NAME: Final = re.compile(r"[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]")
CODE: Final = re.compile(rb"<Code>([^<]{1,100})</Code>")
REGION: Final = re.compile(rb"<Region>([a-z0-9-]{1,50})</Region>")
ITEM: Final = re.compile(
    rb"<Contents>(?=.*?<Key>([^<]*)</Key>)(?=.*?<LastModified>([^<]*)<)(?=.*?<Size>(\d+)<).*?</Contents>", re.DOTALL
)


class BucketAddress(Struct, frozen=True, kw_only=True):
    """The location of a bucket, and the prefix of its objects' names."""

    endpoint: str  # scheme and host, without the bucket
    bucket: str
    prefix: str
    region: str
    by_path: bool  # the bucket is part of the path, not of the host name


class Head(Struct, frozen=True):
    """Facts about an object; `age`: seconds since it was written, by the server's clock."""

    size: int
    etag: str
    age: float


class _Refused(Exception):
    def __init__(self, status: int, code: str, advice: str = "") -> None:
        super().__init__(f"{status} {code}".strip() + advice)
        self.status, self.code = status, code

    @property
    def missing(self) -> bool:
        """Whether S3 says that the bucket has no such object."""
        return self.status == 404 and self.code == MISSING


def read_url(url: str, environment: Mapping[str, str] = os.environ) -> tuple[BucketAddress, Source]:
    """Parse `s3://bucket/prefix?endpoint=http://host:9000&region=eu-1`. Raises BadUrl.

    The rest comes from the environment: AWS_REGION, AWS_ENDPOINT_URL, and the credentials (see `source_of`).
    """
    parts = urlsplit(url)
    query = dict(parse_qsl(parts.query))
    wrong = set(query) - {"endpoint", "region"}
    if parts.scheme != "s3" or not NAME.fullmatch(parts.netloc) or wrong:
        known = "s3://bucket/prefix?endpoint=http://host:9000&region=..."
        raise BadUrl(f"blobs: expected {known}, found {shown(url)!r}")
    region = query.get("region") or environment.get("AWS_REGION") or environment.get("AWS_DEFAULT_REGION")
    region = region or "us-east-1"
    endpoint = query.get("endpoint") or environment.get("AWS_ENDPOINT_URL_S3") or environment.get("AWS_ENDPOINT_URL")
    if endpoint is not None and urlsplit(endpoint).scheme not in ("http", "https"):
        raise BadUrl(f"blobs: endpoint: expected http://... or https://..., found {shown(endpoint)!r}")
    prefix = parts.path.strip("/")
    place = BucketAddress(
        endpoint=(endpoint or f"https://s3.{region}.amazonaws.com").rstrip("/"),
        bucket=parts.netloc,
        prefix=f"{prefix}/" if prefix else "",
        region=region,
        by_path=endpoint is not None or "." in parts.netloc,
    )
    return place, source_of(environment)


class Bucket:
    """The objects under one prefix. Raises StorageUnavailable, StorageFull, and StorageError for other refusals."""

    def __init__(self, place: BucketAddress, who: Source) -> None:
        self._place, self._who = place, who
        self._session: aiohttp.ClientSession | None = None

    def fresh(self) -> Bucket:
        """The same bucket with connections of its own, for another event loop."""
        return Bucket(self._place, self._who)

    async def close(self) -> None:
        session, self._session = self._session, None
        if session is not None:
            await session.close()

    def __str__(self) -> str:
        return f"s3://{self._place.bucket}/{self._place.prefix}"

    # --- objects

    async def head(self, name: str) -> Head | None:
        """The size and ETag of an object; None if it does not exist."""

        async def ask() -> Head | None:
            async with self._request("HEAD", name) as answer:
                if answer.status == 404:
                    await self._not_found(name)
                    return None
                await self._check(answer)
                headers = answer.headers
                age = _time(headers.get("Date")) - _time(headers.get("Last-Modified"))
                return Head(int(headers.get("Content-Length", 0)), headers.get("ETag", ""), max(0.0, age))

        return await self._again(ask)

    async def put(self, name: str, content: IO[bytes], size: int, digest: str) -> None:
        """Store a file as an object, atomically. The server verifies the digest."""

        async def pieces() -> AsyncIterator[bytes]:
            await asyncio.to_thread(content.seek, 0)
            while piece := await asyncio.to_thread(content.read, PIECE):
                yield piece

        async def send() -> None:
            headers = {"content-length": str(size), "content-type": "application/octet-stream"}
            async with self._request("PUT", name, headers, digest, pieces()) as answer:
                await self._check(answer)

        await self._again(send)

    async def fetch(self, name: str, into: IO[bytes]) -> tuple[str, str] | None:
        """Read an object into a file -> the SHA-256 of its bytes and its ETag; None if it does not exist."""

        async def bring() -> tuple[str, str] | None:
            await asyncio.to_thread(into.seek, 0)
            await asyncio.to_thread(into.truncate)
            sha = hashlib.sha256()
            async with self._request("GET", name) as answer:
                if not await self._exists(answer):
                    return None
                if "ETag" not in answer.headers:  # for example the page of a gateway that asks for a login
                    raise _Refused(answer.status, "without an ETag: no response of S3")
                async for piece in answer.content.iter_chunked(PIECE):
                    sha.update(piece)
                    await asyncio.to_thread(into.write, piece)
                return sha.hexdigest(), answer.headers["ETag"]

        return await self._again(bring)

    async def copy(self, name: str, to: str, etag: str) -> bool:
        """Copy an object if it still has this ETag. Returns False if it has changed or does not exist."""

        async def ask() -> bool:
            source = escaped(f"/{self._place.bucket}/{self._place.prefix}{name}")
            headers = {"x-amz-copy-source": source, "x-amz-copy-source-if-match": etag}
            async with self._request("PUT", to, headers) as answer:
                if answer.status == 412 or not await self._exists(answer):
                    return False
                body = await _read(answer, LONGEST)  # the server sends blanks while it copies
                if b"<Error>" in body:  # errors after the headers arrive with status 200
                    raise _Refused(500, "copy")
                return True

        return await self._again(ask)

    async def delete(self, name: str, etag: str | None = None) -> None:
        """Delete an object; with `etag`, only if it still has it. Servers without conditional deletes ignore that."""

        async def ask() -> None:
            async with self._request("DELETE", name, {} if etag is None else {"if-match": etag}) as answer:
                if answer.status != 412:
                    await self._exists(answer)

        await self._again(ask)

    async def list(self, after: str, limit: int) -> list[tuple[str, int, float]]:
        """The next objects by name: name, bytes, and seconds since they were written. At most 1,000."""
        prefix = self._place.prefix
        query = {"encoding-type": "url", "list-type": "2", "max-keys": str(limit), "prefix": prefix}
        if after:
            query["start-after"] = prefix + after

        async def ask() -> list[tuple[str, int, float]]:
            async with self._request("GET", None, query=query) as answer:
                await self._check(answer)
                now, body = _time(answer.headers.get("Date")), await _read(answer, LONGEST)
            objects = list[tuple[str, int, float]]()
            for key, moment, size in ITEM.findall(body):
                name = unquote(key.decode(errors="replace"))
                age = now - datetime.fromisoformat(moment.decode(errors="replace")).timestamp()
                objects.append((name.removeprefix(prefix), int(size), max(0.0, age)))
            return objects

        return await self._again(ask)

    # --- requests

    @asynccontextmanager
    async def _request(
        self,
        method: str,
        name: str | None,
        headers: Mapping[str, str] | None = None,
        digest: str = NOTHING,
        content: AsyncIterator[bytes] | None = None,
        query: Mapping[str, str] | None = None,
    ) -> AsyncIterator[aiohttp.ClientResponse]:
        """One request for an object; `name` None: for the bucket itself."""
        place, base = self._place, urlsplit(self._place.endpoint)
        host, path = base.netloc, "" if name is None else f"/{place.prefix}{name}"
        if place.by_path:
            path = f"/{place.bucket}{path}"
        else:
            host = f"{place.bucket}.{host}"
        path, query = escaped(f"{base.path}{path or '/'}"), query or {}
        who = await self._who.current()
        signed = sign(method, host, path, query, headers or {}, digest, who, place.region, wall())
        if self._session is None:
            limit = aiohttp.ClientTimeout(total=None, sock_connect=5.0, sock_read=SILENCE)
            self._session = aiohttp.ClientSession(timeout=limit, auto_decompress=False)
        asking = f"?{query_string(query)}" if query else ""
        url = URL(f"{base.scheme}://{host}{path}{asking}", encoded=True)
        async with self._session.request(method, url, headers=signed, data=content, allow_redirects=False) as answer:
            yield answer

    async def _check(self, answer: aiohttp.ClientResponse) -> None:
        if answer.status >= 300:
            body = await _read(answer, ERROR)
            named, place = CODE.search(body), REGION.search(body)
            region = answer.headers.get("x-amz-bucket-region") or (place[1].decode() if place else "")
            elsewhere = region not in ("", self._place.region)
            advice = f"; the bucket is in another region: add region={region} to its URL" if elsewhere else ""
            code = named[1].decode(errors="replace") if named else answer.reason or ""
            raise _Refused(answer.status, code, advice)

    async def _exists(self, answer: aiohttp.ClientResponse) -> bool:
        """False if S3 says that there is no such object. Raises _Refused for every other error."""
        try:
            await self._check(answer)
        except _Refused as error:
            if error.missing:
                return False
            raise
        return True

    async def _not_found(self, name: str) -> None:
        """Raise _Refused unless the object is missing: the response to a HEAD has no code, that to a GET has one."""
        async with self._request("GET", name, {"range": "bytes=0-0"}) as answer:
            if await self._exists(answer):
                raise _Refused(409, "the object was stored meanwhile")

    async def _again(self, trip: Callable[[], Awaitable[T]]) -> T:
        pause = FIRST_PAUSE
        for number in range(TRIES):
            try:
                return await trip()
            except _Refused as error:
                if error.status == 507 or error.code in FULL:
                    raise StorageFull(f"no room for blobs in {self}: {error}") from None
                if error.status not in PASSING and error.code != STALLED:
                    raise StorageError(f"blobs in {self} are refused: {error}") from None
                why: Exception = error
            except (aiohttp.ClientError, TimeoutError) as error:
                why = error
            if number + 1 < TRIES:
                await asyncio.sleep(pause * random.uniform(0.5, 1.0))
                pause *= 2
        raise StorageUnavailable(f"blobs in {self}: {str(why) or 'no response in time'}") from why


async def _read(answer: aiohttp.ClientResponse, most: int) -> bytes:
    """The body, or its beginning if it is longer than `most` by a piece."""
    body = b""
    while len(body) < most and (piece := await answer.content.read(min(PIECE, most))):
        body += piece
    return body


def _time(text: str | None) -> float:
    """The time of an HTTP header, in seconds since 1970; now, by the clock of this machine, if there is none."""
    try:
        return parsedate_to_datetime(text or "").timestamp()
    except ValueError:
        return wall()
