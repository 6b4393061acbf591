"""A client of the queue protocol and the blobs of a server, for runners and commands.

It retries until the server answers, so that an outage loses no result.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import random
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self, TypeVar
from urllib.parse import quote

import aiohttp
import msgspec
from msgspec import Struct

from treadle.blobs import Corrupt, NoBlob, TooBig, address_of
from treadle.core.errors import UNREADABLE, AnswerTooLarge, BadUrl, StorageUnavailable, TreadleError
from treadle.core.redaction import origin, shown, target

log = logging.getLogger("treadle")

T = TypeVar("T")

PIECE: Final = 256 * 1024  # bytes
ANSWER: Final = 30.0  # s for a response of the queue
TRANSFER: Final = 300.0  # s without a byte of a blob; a whole transfer may take a second more for every SLOWEST bytes
SLOWEST: Final = 16 * 2**10  # bytes a second
BLOB: Final = 5 * 2**30  # default limit of a fetch in bytes: the largest blob that Treadle's stores accept
LISTED: Final = 500_000  # jobs of one list
PAGES: Final = 10_000  # pages of one list; some may be empty if the storage has other jobs
LONGEST_PAUSE: Final = 5.0  # s between retries
AGE: Final = "Treadle-Abandoned-After"  # header of claims: seconds without a tickle after which a job is abandoned
HERE: Final = (400, 404, 409)  # statuses of the queue for a job that this runner has lost
ANSWERS: Final = 16 * 2**20  # bytes of one response of the queue: a page of 500 jobs has 0.3 MB


class Denied(TreadleError):
    """The server refuses the request; a retry would not help."""

    def __init__(self, status: int, message: str) -> None:
        self.status = status
        super().__init__(f"{status}: {message}")


class Gone(TreadleError):
    """The runner has lost the job."""


@contextmanager
def _lost_if_denied() -> Iterator[None]:
    """Raise Gone in place of a Denied that means that the runner has lost its job."""
    try:
        yield
    except Denied as error:
        if error.status in HERE:
            raise Gone(str(error)) from None
        raise


class QueueJob(Struct, frozen=True, kw_only=True):
    """The fields of a job that runners and commands use."""

    job_id: str
    binary_addr: str
    status: str
    input_addr: str | None = None
    output_addr: str | None = None
    run_attempts: int = 0
    runner_id: str | None = None
    created_at: int = 0
    updated_at: int = 0
    completed_at: int | None = None


class JobPage(Struct, frozen=True):
    jobs: list[QueueJob]
    after: str | None = None


Claimed: Any = QueueJob | None
Find = Callable[[], Awaitable[tuple[str, str] | None]]


class Client:
    """A client of one server with the queue protocol and blobs.

    token        for the queue, and for a store of the same origin; not sent to other origins
    store_token  for the store, whatever its origin
    patient      whether to retry during an outage; else calls raise StorageUnavailable
    find         returns new URLs of queue and store during an outage, in case they have moved. The new URLs get the
                 tokens, too, so pass no `find` on an untrusted network
    """

    def __init__(
        self,
        url: str,
        token: str | None = None,
        store: str | None = None,
        patient: bool = True,
        find: Find | None = None,
        store_token: str | None = None,
    ) -> None:
        for base in filter(None, (url, store)):
            try:
                origin(base)
            except ValueError:
                raise BadUrl(f"expected a URL such as http://host:1717, found {shown(base)!r}") from None
        self._url, self._store = url.rstrip("/"), (store or url).rstrip("/")
        self._token, self._store_token, self._patient, self._find = token, store_token, patient, find
        self.abandoned_age: float | None = None  # s, from the last response with the header AGE
        self._session: aiohttp.ClientSession | None = None

    async def __aenter__(self) -> Self:
        limit = aiohttp.ClientTimeout(total=None, sock_connect=5.0, sock_read=TRANSFER)
        # No compression: a hostile server could expand a few bytes to gigabytes.
        headers = {"Accept-Encoding": "identity"}
        self._session = aiohttp.ClientSession(headers=headers, timeout=limit, auto_decompress=False)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None
    ) -> None:
        session, self._session = self._session, None
        if session is not None:
            await session.close()

    # --- the queue

    async def create(self, binary: str, input: str | None) -> QueueJob:
        """Enqueue a job. Retries of this call store it once."""
        body = {"binary_addr": binary, "input_addr": input}
        return await self._ask(QueueJob, "POST", "/jobs/create", body, {"Idempotency-Key": uuid.uuid4().hex})

    async def claim(self, runner: str, wait: float, key: str | None = None) -> QueueJob | None:
        """Claim the oldest pending job. Retries of this call, and calls with the same `key`, return the same job."""
        headers = {"Idempotency-Key": key or uuid.uuid4().hex}
        return await self._ask(Claimed, "POST", f"/jobs/claim?wait={wait:g}", {"runner_id": runner}, headers, wait)

    async def tickle(self, job: str, runner: str) -> None:
        """Renew the lease of a job. Raises Gone. It does not retry, because the next tickle follows soon."""
        with _lost_if_denied():
            await self._once("POST", f"/jobs/{job}/tickle", {"runner_id": runner}, {}, 0.0)

    async def complete(self, job: str, runner: str, status: str, output: str | None) -> None:
        """Settle a job. Raises Gone."""
        with _lost_if_denied():
            body = {"status": status, "output_addr": output, "runner_id": runner}
            await self._ask(bytes, "POST", f"/jobs/{job}/complete", body)

    async def release(self, job: str, runner: str) -> None:
        """Release a job. Raises Gone, or Denied from a queue without this call."""
        with _lost_if_denied():
            await self._once("POST", f"/jobs/{job}/release", {"runner_id": runner}, {}, 0.0)

    async def ping(self) -> str:
        """The queue's response to a ping."""
        return (await self._ask(bytes, "GET", "/ping")).decode(errors="replace")

    async def get(self, job: str) -> QueueJob:
        return await self._ask(QueueJob, "GET", f"/jobs/{quote(job, safe='')}")

    async def list(self, status: str | None) -> list[QueueJob]:
        """All jobs of a status, or of the queue. Raises AnswerTooLarge beyond 500,000 jobs or 10,000 pages."""
        jobs: list[QueueJob] = []
        after = ""
        for _ in range(PAGES):
            query = "&".join(part for part in (f"status={status}" if status else "", after, "limit=500") if part)
            page = await self._ask(JobPage, "GET", f"/jobs?{query}")
            jobs += page.jobs
            if page.after is None:
                return jobs
            after = f"after={quote(page.after, safe='')}"
            if len(jobs) > LISTED:
                raise AnswerTooLarge(f"{shown(self._url)}/jobs", LISTED, "jobs", "name a status")
        raise AnswerTooLarge(f"{shown(self._url)}/jobs", PAGES, "pages", "name a status")

    # --- blobs

    async def put(self, file: Path) -> str:
        """Store a file -> its address. Raises Denied; Corrupt if the store returns another address."""
        mine = await asyncio.to_thread(digest_of, file)
        size = (await asyncio.to_thread(file.stat)).st_size

        async def send() -> str:
            assert self._session is not None
            put = self._session.put(
                f"{self._store}/blob", data=_pieces(file), headers=self._store_right(), allow_redirects=False
            )
            async with asyncio.timeout(TRANSFER + size / SLOWEST), put as answer:
                content = await _content(answer)
            try:
                return address_of(content.decode())
            except ValueError:  # the response may come from a proxy
                raise _odd(f"{shown(self._store)}/blob", "no address") from None

        address = await self._patiently(send)
        if address != mine:
            raise Corrupt(f"the store returned the address {address} for the blob {mine}")
        return address

    async def fetch(self, address: str, file: Path, most: int = BLOB) -> None:
        """Fetch and verify a blob into a file. Raises NoBlob, Corrupt, BadAddress; TooBig beyond `most` bytes."""
        wanted = address_of(address)

        async def bring() -> str:
            assert self._session is not None
            sha, size, begun = hashlib.sha256(), 0, asyncio.get_running_loop().time()
            get = self._session.get(f"{self._store}/blob/{wanted}", headers=self._store_right(), allow_redirects=False)
            async with asyncio.timeout(TRANSFER) as limit, get as answer:
                if answer.status != 200 or "Content-Encoding" in answer.headers:
                    await _content(answer)
                    raise _odd(f"{shown(self._store)}/blob", f"{answer.status} without a blob")
                with file.open("wb") as out:
                    async for piece in answer.content.iter_chunked(PIECE):
                        size += len(piece)
                        limit.reschedule(begun + TRANSFER + size / SLOWEST)
                        if size > most:
                            raise TooBig(f"the blob {wanted}", size, most)
                        sha.update(piece)
                        await asyncio.to_thread(out.write, piece)
            return sha.hexdigest()

        try:
            digest = await self._patiently(bring)
        except Denied as error:
            if error.status == 404:
                raise NoBlob(f"there is no blob {wanted}") from None
            raise Corrupt(str(error)) from None
        if digest != wanted:
            raise Corrupt(f"the blob {wanted} arrived with the SHA-256 {digest}")

    # --- requests

    async def _ask(
        self,
        kind: type[T],
        method: str,
        path: str,
        body: Any = None,
        headers: dict[str, str] | None = None,
        wait: float = 0.0,
    ) -> T:
        """The response decoded as `kind`; bytes: undecoded.

        A response that does not come from a queue is retried, because a proxy or a captive portal may return 200 with a
        page of its own.
        """

        async def trip() -> T:
            content = await self._once(method, path, body, headers or {}, wait)
            if kind is bytes:
                return content  # type: ignore[return-value]
            try:
                return msgspec.json.decode(content or b"null", type=kind)
            except UNREADABLE:
                raise _odd(f"{shown(self._url)}{path.partition('?')[0]}", "another response") from None

        return await self._patiently(trip)

    async def _once(self, method: str, path: str, body: Any, headers: dict[str, str], wait: float) -> bytes:
        assert self._session is not None
        limit = aiohttp.ClientTimeout(total=ANSWER + wait, sock_connect=5.0)
        right = {"Authorization": f"Bearer {self._token}"} if self._token else {}
        async with self._session.request(
            method, self._url + path, json=body, headers={**headers, **right}, timeout=limit, allow_redirects=False
        ) as answer:
            with suppress(KeyError, ValueError):
                self.abandoned_age = float(answer.headers[AGE])
            return await _content(answer)

    def _store_right(self) -> dict[str, str]:
        """The Authorization header for the store. A token is sent only to the origin that it belongs to."""
        token = self._store_token
        if token is None and origin(self._store) == origin(self._url):
            token = self._token
        return {"Authorization": f"Bearer {token}"} if token else {}

    async def _patiently(self, trip: Callable[[], Awaitable[T]]) -> T:
        pause, is_logged = 0.2, False
        while True:
            try:
                return await trip()
            except (aiohttp.ClientError, TimeoutError, StorageUnavailable) as error:
                if not self._patient:
                    raise StorageUnavailable(f"{shown(self._url)}: {str(error) or 'no response in time'}") from error
                if not is_logged:
                    log.warning("%s is unavailable (%s); retrying until it responds", shown(self._url), error)
                is_logged = True
            await asyncio.sleep(pause * random.uniform(0.5, 1.0))
            await self._look_around()
            pause = min(2 * pause, LONGEST_PAUSE)

    async def _look_around(self) -> None:
        """Switch to the URLs that `find` returns, if there are any."""
        with suppress(TreadleError):
            urls = await self._find() if self._find is not None else None
            if urls is not None:
                self._url, self._store = (base.rstrip("/") for base in urls)


async def _content(answer: aiohttp.ClientResponse) -> bytes:
    """The body of a successful response. Raises Denied; StorageUnavailable for transient errors."""
    place = shown(str(answer.url))
    if "Content-Encoding" in answer.headers:
        raise _odd(place, "a compressed response")
    content = bytearray()
    while piece := await answer.content.read(PIECE):
        content += piece
        if len(content) > ANSWERS:
            raise AnswerTooLarge(place, ANSWERS)
    if answer.status < 300:
        return bytes(content)
    if answer.status < 400:
        there = target(str(answer.url), answer.headers.get("Location"))
        raise _odd(place, f"{answer.status}, a redirect to {there}, which Treadle does not follow")
    try:
        message = str(msgspec.json.decode(content)["message"])
    except (KeyError, TypeError, *UNREADABLE):
        message = content[:200].decode(errors="replace")
    if answer.status in (429, 500, 502, 503, 504, 507):
        raise StorageUnavailable(message)
    raise Denied(answer.status, message)


def _odd(place: str, response: str) -> StorageUnavailable:
    return StorageUnavailable(f"expected a queue with its blobs, found {response} at {place}")


async def _pieces(file: Path) -> AsyncIterator[bytes]:
    with file.open("rb") as source:
        while piece := await asyncio.to_thread(source.read, PIECE):
            yield piece


def digest_of(file: Path) -> str:
    with file.open("rb") as source:
        return hashlib.file_digest(source, "sha256").hexdigest()
