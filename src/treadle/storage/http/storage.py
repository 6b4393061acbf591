"""The contract over HTTP: each verb is one request to a Treadle server, which owns the clock and the rules.

Without it only machines that reach the database could run jobs. Every verb may be repeated, so a connection that
broke before its answer is tried once more here, and beyond that by whoever called.
"""

from __future__ import annotations

import asyncio
import io
import ssl
from collections.abc import Sequence
from typing import Any, Final, TypeVar, cast
from urllib.parse import parse_qsl, urlsplit

import aiohttp
import msgspec
from msgspec.structs import replace

from treadle.core import defaults
from treadle.core.model import (
    Claim,
    Claimed,
    Held,
    Hold,
    LimitChange,
    LimitUse,
    NewJob,
    Outcome,
    Page,
    Presence,
    Query,
    Record,
    Settled,
    Stats,
)
from treadle.core.redaction import origin, shown, target
from treadle.errors import UNREADABLE, AnswerTooLarge, BadUrl, StorageError, StorageUnavailable
from treadle.storage import messages
from treadle.storage.http import response_body
from treadle.storage.transfer import MoveState, Role
from treadle.storage.value_checks import (
    check_ask,
    check_beat,
    check_changes,
    check_jobs,
    guarded_settle,
    guarded_settle_claim,
)

T = TypeVar("T")

TIMEOUT: Final = 30.0  # s for an answer, beyond the time a call asks to wait
CONNECT: Final = 5.0  # s
CONNECTIONS: Final = 32  # at once; further calls wait for one of them
BIGGEST: Final = 16 * 2**20  # bytes of outcomes in one request; half of what a server takes by default
LOOKS: Final = 10_000  # ids, topics, outcomes or leases of one request; a server takes no more
OPTIONS: Final = frozenset({"token", "ca", "max_answer"})

_encode = msgspec.json.Encoder().encode


class HttpStorage:
    """Jobs that live with a Treadle server.

    url    http://host:port or https://host:port, with a path if the server is mounted under one;
           ?token=... names the right to use it, ?ca=file.pem whom to trust instead of the system's authorities,
           ?max_answer=... the most bytes of one answer, 1 MiB or more [256 MiB]
    token  the same, where it is not to be part of the URL
    """

    def __init__(self, url: str, *, token: str | None = None) -> None:
        try:
            parts = urlsplit(url)
            origin(url)
        except ValueError:  # its words may hold a part of the password
            raise BadUrl(f"expected http://host:port, found {shown(url)!r}") from None
        options = dict(parse_qsl(parts.query, keep_blank_values=True))
        others = sorted(options.keys() - OPTIONS)
        if others or parts.fragment:
            what = f"{', '.join(others)}: no such option" if others else "expected http://host:port"
            raise BadUrl(f"{what}, found {shown(url)!r}")
        host = parts.netloc.rpartition("@")[2]
        self._base = f"{parts.scheme}://{host}{parts.path.rstrip('/')}/v1/work/"
        self._token = token or options.get("token") or parts.password
        self._ca = options.get("ca")
        self._answer = _size(options.get("max_answer"), url)
        self._session: aiohttp.ClientSession | None = None
        self._trips: set[asyncio.Timeout] = set()  # under way
        self._most: int | None = None  # bytes of one request, as the server says
        self.queues: tuple[str, ...] = ()  # the only ones the token is for; see `storage.contract.Confined`

    async def open(self) -> None:
        """Ask the server for what it holds, so that a wrong address or token shows now."""
        if self._session is not None:
            return
        trust: ssl.SSLContext | bool = ssl.create_default_context(cafile=self._ca) if self._ca else True
        # Uncompressed: a few bytes of a hostile server would become gigabytes here.
        headers = {"Content-Type": "application/json", "Accept-Encoding": "identity"}
        if self._token:
            headers["Authorization"] = f"Bearer {self._token}"
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=CONNECTIONS, ssl=trust, keepalive_timeout=30),
            headers=headers,
            auto_decompress=False,
        )
        try:
            hello = await self._call("hello", b"{}", messages.Hello)
            self._most, self.queues = hello.max_body, hello.queues
        except BaseException:
            await self.close()
            raise

    async def close(self) -> None:
        """Let go of all connections. A call that is under way raises StorageUnavailable at once: the client library
        closes the connection without an error for the call that reads from it."""
        session, self._session = self._session, None
        for trip in self._trips:
            trip.reschedule(0.0)
        if session is not None:
            await session.close()

    @property
    def _part(self) -> int:
        """Bytes beyond which a call is sent in parts."""
        return BIGGEST if self._most is None else min(BIGGEST, self._most)

    # --- one trip

    async def _call(self, verb: str, body: bytes, answer: type[T], wait: float = 0.0) -> T:
        for last in (False, True):
            try:
                content = await self._trip(verb, body, wait)
                await response_body.weigh(content, self._base + verb)
                return _read(content, answer, self._base + verb)
            except (aiohttp.ServerDisconnectedError, aiohttp.ClientOSError) as error:
                # A kept connection the server has just closed looks like this too; the verb may be repeated.
                if last:
                    raise StorageUnavailable(f"{self._base}: {str(error) or type(error).__name__}") from error
            except (aiohttp.ClientError, TimeoutError) as error:
                if self._session is None:
                    raise StorageUnavailable("the storage was closed in the middle of this call") from error
                raise StorageUnavailable(f"{self._base}: {str(error) or 'no answer in time'}") from error
        raise AssertionError

    async def _trip(self, verb: str, body: bytes, wait: float) -> bytearray:
        if self._session is None:
            raise StorageUnavailable("the storage is not open")
        limit = aiohttp.ClientTimeout(total=None, sock_connect=CONNECT)
        # A large body given as bytes would be warned of: it is in memory already, and sent in one piece all the same.
        data = body if len(body) < 2**20 else io.BytesIO(body)
        async with asyncio.timeout(TIMEOUT + wait) as trip:
            self._trips.add(trip)
            try:
                # A redirect would carry the jobs of this call to a place that the URL does not name.
                async with self._session.post(
                    self._base + verb, data=data, timeout=limit, allow_redirects=False
                ) as response:
                    self._check_way(verb, response)
                    is_long = verb in response_body.WITH_ROWS and response.status == 200
                    most = self._answer if is_long else min(self._answer, response_body.PLAIN)
                    content = await response_body.read(response, self._base + verb, most)
            finally:
                self._trips.discard(trip)
        if response.status == 200:
            return content
        await response_body.weigh(content, self._base + verb)
        raise _refusal(response.status, content, self._base + verb)

    def _check_way(self, verb: str, response: aiohttp.ClientResponse) -> None:
        """Raises StorageUnavailable for an answer of something between here and the server."""
        if 300 <= response.status < 400:
            there = target(self._base, response.headers.get("Location"))
            words = f"a redirect to {there}, which is not followed; give that URL if it is the right one"
            raise StorageUnavailable(f"{self._base} answered {response.status}, {words}")
        if (coding := response.headers.get("Content-Encoding", "identity").lower()) != "identity":
            words = f"expected an uncompressed answer, found Content-Encoding {coding!r}"
            raise StorageUnavailable(f"{self._base}{verb}: {words}; a proxy in between adds it: switch that off")

    # --- the life of a job

    async def enqueue(self, jobs: Sequence[NewJob]) -> list[Record]:
        if not jobs:
            return []
        check_jobs(jobs)
        rows = (await self._call("enqueue", _encode(messages.Enqueue(tuple(jobs))), messages.Records)).records
        return [row for row in rows if row is not None]

    async def claim(self, ask: Claim) -> Claimed:
        check_ask(ask)
        return await self._call("claim", _encode(messages.claim_call(ask, self._answer)), Claimed)

    async def heartbeat(self, worker: Presence, holds: Sequence[Hold], lease: float) -> Held:
        check_beat(worker, holds, lease)
        lost, unsaved = set[str](), set[str]()
        for at in range(0, max(1, len(holds)), LOOKS):
            beat = messages.Beat(worker, tuple(holds[at : at + LOOKS]), lease)
            found = await self._call("heartbeat", _encode(beat), messages.Held)
            lost.update(found.ids)
            unsaved.update(found.unsaved)
        return Held(frozenset(lost), frozenset(unsaved))

    @guarded_settle
    async def settle(self, outcomes: Sequence[Outcome]) -> list[Settled]:
        if not outcomes:
            return []
        body = _encode(messages.Outcomes(tuple(outcomes)))
        # Each outcome stands for itself, so they may go in parts.
        if len(outcomes) > LOOKS or (len(body) > self._part and len(outcomes) > 1):
            half = len(outcomes) // 2
            return [*await self.settle(outcomes[:half]), *await self.settle(outcomes[half:])]
        if self._most is not None and len(body) > self._most:
            what = f"the outcome of job {outcomes[0].id} and the jobs that come of it have {len(body):,} bytes"
            return [Settled("refused", f"{what}; the server takes {self._most:,}: return smaller arguments or results")]
        return list((await self._call("settle", body, messages.AllSettled)).settled)

    @guarded_settle_claim
    async def settle_claim(self, outcomes: Sequence[Outcome], ask: Claim) -> tuple[list[Settled], Claimed]:
        """Both in one trip, unless what is to be settled is very large."""
        message = messages.SettleClaim(tuple(outcomes), messages.claim_call(ask, self._answer))
        body = _encode(message)
        if outcomes and (len(body) > self._part or len(outcomes) > LOOKS):
            return await self.settle(outcomes), await self.claim(ask)
        both = await self._call("settle_claim", body, messages.SettledClaimed)
        return list(both.settled), both.claimed

    # --- looking

    async def get(self, ids: Sequence[str]) -> list[Record | None]:
        if not ids:
            return []
        found: list[Record | None] = []
        for at in range(0, len(ids), LOOKS):
            found += await self._get(tuple(ids[at : at + LOOKS]))
        return found

    async def _get(self, ids: tuple[str, ...]) -> Sequence[Record | None]:
        """In parts where the answer is too large. Raises AnswerTooLarge where one row alone is."""
        try:
            return (await self._call("get", _encode(messages.Ids(ids)), messages.Records)).records
        except AnswerTooLarge:
            half = len(ids) // 2
            if not half:
                raise
        return [*await self._get(ids[:half]), *await self._get(ids[half:])]

    async def find(self, query: Query) -> Page:
        """A shorter page where the answer is too large. Raises AnswerTooLarge where one row alone is."""
        while True:
            try:
                return await self._call("find", _encode(query), Page)
            except AnswerTooLarge:
                if query.limit <= 1:
                    raise
                query = replace(query, limit=query.limit // 2)

    async def stats(self) -> Stats:
        return await self._call("stats", b"{}", Stats)

    async def read_mark(self) -> MoveState | None:
        """The move that the server's storage is part of, as far as a client must know: role and other place."""
        moving = (await self._call("hello", b"{}", messages.Hello)).moving
        return None if moving is None else MoveState(role=cast(Role, moving.role), other=moving.other, move="")

    # --- tending

    async def limits(self, use: bool = True) -> tuple[LimitUse, ...]:
        return (await self._call("limits", _encode(messages.LimitsCall(use)), messages.LimitUses)).limits

    async def set_limits(self, changes: Sequence[LimitChange]) -> None:
        check_changes(changes)
        await self._call("set_limits", _encode(messages.LimitChanges.of(changes)), messages.Nothing)

    async def prune(self, limit: int) -> int:
        went = 0
        while True:
            asked = min(limit - went, LOOKS)
            number = (await self._call("prune", _encode(messages.Prune(asked)), messages.Number)).number
            went += number
            if number < asked or went >= limit:
                return went

    async def watch(self, topics: Sequence[str], timeout: float) -> set[str]:
        if not topics:
            await asyncio.sleep(timeout)
            return set()
        asked = min(timeout, defaults.WATCH)
        # Beyond what one request takes they are not watched: hints may be lost.
        some = messages.Watch(tuple(topics[:LOOKS]), asked)
        found = await self._call("watch", _encode(some), messages.Topics, wait=asked)
        return set(found.topics)


def _size(text: str | None, url: str) -> int:
    """Raises BadUrl."""
    if text is None:
        return response_body.ANSWER
    if not text.isdecimal() or int(text) < 2**20:
        raise BadUrl(f"max_answer: expected a number of bytes from {2**20:,} on, found {text!r:.40} in {shown(url)}")
    return int(text)


def _read(content: bytearray, kind: type[T], place: str) -> T:
    """The answer. Raises StorageError for what is none: a proxy in between may answer with a page of its own."""
    try:
        return msgspec.json.decode(content, type=kind)
    except UNREADABLE as error:
        raise StorageError(f"{place}: not the answer of a Treadle server: {error}") from error


def _refusal(status: int, content: bytearray, place: str) -> Exception:
    """The error the server answered, as the class it was there."""
    try:
        problem = msgspec.json.decode(content, type=messages.Problem)
    except UNREADABLE:
        problem = None
    if problem is None or problem.error not in messages.WORDS:
        said = problem.message if problem is not None else content[:200].decode(errors="replace")
        kind = StorageUnavailable if status in (429, 502, 503, 504) else StorageError
        return kind(f"{place} answered {status}: {said}")
    return messages.error_of(problem)


__all__: list[Any] = ["HttpStorage"]
