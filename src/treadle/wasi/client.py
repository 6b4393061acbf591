"""The queue and the blobs of a server, as a runner and the commands see them: tried again until they answer.

Without it an outage of either would lose a result that took an hour to compute.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import random
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

import aiohttp
import msgspec
from msgspec import Struct

from treadle.blobs import Corrupt, NoBlob, address_of
from treadle.errors import StorageUnavailable, TreadleError

log = logging.getLogger("treadle")

PIECE: Final = 256 * 1024  # bytes
ANSWER: Final = 30.0  # s for an answer of the queue
TRANSFER: Final = 300.0  # s without a byte of a blob
LONGEST_PAUSE: Final = 5.0  # s between two tries
AGE: Final = "Treadle-Abandoned-After"  # a header of claims: seconds of silence that mean gone
HERE: Final = (400, 404, 409)  # what the queue says of a job that is not ours any more


class Denied(TreadleError):
    """The server will not do this, however often it is asked."""

    def __init__(self, status: int, message: str) -> None:
        self.status = status
        super().__init__(f"{status}: {message}")


class Gone(TreadleError):
    """The job is not this runner's any more."""


class QueueJob(Struct, frozen=True, kw_only=True):
    """What a runner needs of a job."""

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


Find = Callable[[], Awaitable[tuple[str, str] | None]]


class Client:
    """One server with the queue face and blobs.

    patient  wait for it while it is away, else StorageUnavailable
    find     asked for the URLs of queue and store while they do not answer: they may have moved
    """

    def __init__(
        self, url: str, token: str | None = None, store: str | None = None, patient: bool = True,
        find: Find | None = None,
    ) -> None:  # fmt: skip
        self._url, self._store = url.rstrip("/"), (store or url).rstrip("/")
        self._token, self._patient, self._find = token, patient, find
        self.abandoned_age: float | None = None  # s, as the queue said at the last claim
        self._session: aiohttp.ClientSession | None = None

    async def __aenter__(self) -> Self:
        headers = {"Authorization": f"Bearer {self._token}"} if self._token else {}
        limit = aiohttp.ClientTimeout(total=None, sock_connect=5.0, sock_read=TRANSFER)
        self._session = aiohttp.ClientSession(headers=headers, timeout=limit)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None
    ) -> None:
        session, self._session = self._session, None
        if session is not None:
            await session.close()

    # --- the queue

    async def create(self, binary: str, given: str | None) -> QueueJob:
        """Send a job; repeated, it is the same one."""
        body = {"binary_addr": binary, "input_addr": given}
        found = await self._ask("POST", "/jobs/create", body, {"Idempotency-Key": uuid.uuid4().hex})
        return msgspec.json.decode(found, type=QueueJob)

    async def claim(self, runner: str, wait: float) -> QueueJob | None:
        """The oldest pending job; repeated after a lost answer, the same one."""
        key = {"Idempotency-Key": uuid.uuid4().hex}
        found = await self._ask("POST", f"/jobs/claim?wait={wait:g}", {"runner_id": runner}, key, wait)
        return msgspec.json.decode(found, type=QueueJob) if found else None

    async def tickle(self, job: str, runner: str) -> None:
        """A sign of life. Raises Gone; tries once: the next one is due soon."""
        try:
            await self._once("POST", f"/jobs/{job}/tickle", {"runner_id": runner}, {}, 0.0)
        except Denied as error:
            if error.status in HERE:
                raise Gone(str(error)) from None
            raise

    async def complete(self, job: str, runner: str, status: str, output: str | None) -> None:
        """What became of it. Raises Gone."""
        try:
            body = {"status": status, "output_addr": output, "runner_id": runner}
            await self._ask("POST", f"/jobs/{job}/complete", body)
        except Denied as error:
            if error.status in HERE:
                raise Gone(str(error)) from None
            raise

    async def release(self, job: str, runner: str) -> None:
        """Hand a job back to its turn. Raises Gone, or Denied by a queue that does not know the call."""
        try:
            await self._once("POST", f"/jobs/{job}/release", {"runner_id": runner}, {}, 0.0)
        except Denied as error:
            if error.status in HERE:
                raise Gone(str(error)) from None
            raise

    async def ping(self) -> str:
        """What it says to a ping."""
        return (await self._ask("GET", "/ping")).decode()

    async def get(self, job: str) -> QueueJob:
        return msgspec.json.decode(await self._ask("GET", f"/jobs/{job}"), type=QueueJob)

    async def list(self, status: str | None) -> list[QueueJob]:
        found: list[QueueJob] = []
        after = ""
        while True:
            query = "&".join(part for part in (f"status={status}" if status else "", after, "limit=500") if part)
            page = msgspec.json.decode(await self._ask("GET", f"/jobs?{query}"))
            found += msgspec.convert(page["jobs"], list[QueueJob])
            if page["after"] is None:
                return found
            after = f"after={page['after']}"

    # --- blobs

    async def put(self, file: Path) -> str:
        """Keep a file -> its address. Raises Denied, Corrupt if the store kept something else."""
        mine = await asyncio.to_thread(digest_of, file)

        async def send() -> str:
            assert self._session is not None
            async with self._session.put(f"{self._store}/blob", data=_pieces(file)) as answer:
                return (await _content(answer)).decode()

        address = address_of(await self._patiently(send))
        if address != mine:
            raise Corrupt(f"the store calls {mine} {address}")
        return address

    async def fetch(self, address: str, file: Path) -> None:
        """Bring the bytes into a file, checked. Raises NoBlob, Corrupt, BadAddress."""
        wanted = address_of(address)

        async def bring() -> str:
            assert self._session is not None
            sha = hashlib.sha256()
            async with self._session.get(f"{self._store}/blob/{wanted}") as answer:
                if answer.status != 200:
                    await _content(answer)
                with file.open("wb") as out:
                    async for piece in answer.content.iter_chunked(PIECE):
                        sha.update(piece)
                        await asyncio.to_thread(out.write, piece)
            return sha.hexdigest()

        try:
            found = await self._patiently(bring)
        except Denied as error:
            if error.status == 404:
                raise NoBlob(f"there is no blob {wanted}") from None
            raise Corrupt(str(error)) from None
        if found != wanted:
            raise Corrupt(f"what came for {wanted} is {found}")

    # --- trips

    async def _ask(
        self, method: str, path: str, body: Any = None, headers: dict[str, str] | None = None, wait: float = 0.0
    ) -> bytes:
        content: bytes = await self._patiently(lambda: self._once(method, path, body, headers or {}, wait))
        return content

    async def _once(self, method: str, path: str, body: Any, headers: dict[str, str], wait: float) -> bytes:
        assert self._session is not None
        limit = aiohttp.ClientTimeout(total=ANSWER + wait, sock_connect=5.0)
        async with self._session.request(method, self._url + path, json=body, headers=headers, timeout=limit) as answer:
            with suppress(KeyError, ValueError):
                self.abandoned_age = float(answer.headers[AGE])
            return await _content(answer)

    async def _patiently(self, trip: Any) -> Any:
        pause, said = 0.2, False
        while True:
            try:
                return await trip()
            except (aiohttp.ClientError, TimeoutError, StorageUnavailable) as error:
                if not self._patient:
                    raise StorageUnavailable(f"{self._url}: {str(error) or 'no answer in time'}") from error
                if not said:
                    log.warning("%s does not answer (%s); trying again until it does", self._url, error)
                said = True
            await asyncio.sleep(pause * random.uniform(0.5, 1.0))
            await self._look_around()
            pause = min(2 * pause, LONGEST_PAUSE)

    async def _look_around(self) -> None:
        """Take the addresses that are announced now, if there are any."""
        with suppress(TreadleError):
            found = await self._find() if self._find is not None else None
            if found is not None:
                self._url, self._store = (each.rstrip("/") for each in found)


async def _content(answer: aiohttp.ClientResponse) -> bytes:
    """The body of a good answer. Raises Denied, and StorageUnavailable for what may pass."""
    content = await answer.read()
    if answer.status < 300:
        return content
    try:
        message = str(msgspec.json.decode(content)["message"])
    except (msgspec.MsgspecError, KeyError, TypeError):
        message = content[:200].decode(errors="replace")
    if answer.status in (429, 502, 503, 504):
        raise StorageUnavailable(message)
    raise Denied(answer.status, message)


async def _pieces(file: Path) -> AsyncIterator[bytes]:
    with file.open("rb") as source:
        while piece := await asyncio.to_thread(source.read, PIECE):
            yield piece


def digest_of(file: Path) -> str:
    with file.open("rb") as source:
        return hashlib.file_digest(source, "sha256").hexdigest()
