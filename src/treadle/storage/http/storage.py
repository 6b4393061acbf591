"""The contract over HTTP: each verb is one request to a Treadle server, which owns the clock and the rules.

Every verb may be repeated: if the connection breaks before the response, the request is sent once more here; after that
the caller has to repeat it.
"""

from __future__ import annotations

import asyncio
import io
import ssl
from collections.abc import Sequence
from typing import Final, TypeVar, cast
from urllib.parse import parse_qsl, urlsplit

import aiohttp
import msgspec
from msgspec.structs import replace

from treadle.core import defaults
from treadle.core.errors import UNREADABLE, AnswerTooLarge, BadUrl, StorageError, StorageUnavailable
from treadle.core.limit_model import LimitChange, LimitUse
from treadle.core.model import Claim, Claimed, HeartbeatResult, LeaseRenewal, NewJob, Outcome, Presence, Record, Settled
from treadle.core.open_entry import HEADER, open_entry
from treadle.core.query_model import CountDrift, Glance, MetricsRow, Page, Query, Stats
from treadle.core.redaction import origin, shown, target
from treadle.storage import messages
from treadle.storage.contract import Capabilities
from treadle.storage.http import response_body
from treadle.storage.transfer import MoveState, Role
from treadle.storage.value_checks import (
    check_ask,
    check_beat,
    check_changes,
    check_jobs,
    check_rows,
    guarded_settle,
    guarded_settle_claim,
)

T = TypeVar("T")

TIMEOUT: Final = 30.0  # s for a response, on top of the time that a call asks to wait
RECOUNT: Final = 600.0  # s more, for a call that reads all rows
CONNECT: Final = 5.0  # s
CONNECTIONS: Final = 32  # open at once; further calls wait for a free one
BIGGEST: Final = 16 * 2**20  # bytes of outcomes in one request; half of what a server accepts by default
LOOKS: Final = 10_000  # ids, topics, outcomes or leases in one request; the most that a server accepts
OPTIONS: Final = frozenset({"token", "ca", "max_answer"})

_encode = msgspec.json.Encoder().encode


class HttpStorage:
    """Jobs stored by a Treadle server.

    url    http://host:port or https://host:port, with a path if the server is mounted under one;
           ?token=... is the access token, ?ca=file.pem the certificate authority to trust instead of the system's,
           ?max_answer=... the most bytes of one response, 1 MiB or more [256 MiB]
    token  the same access token, to keep it out of the URL
    """

    capabilities = Capabilities(settle_claim=True, marks=True, remote=True)

    def __init__(self, url: str, *, token: str | None = None) -> None:
        try:
            parts = urlsplit(url)
            origin(url)
        except ValueError:  # its message may contain part of the password
            raise BadUrl(f"expected http://host:port, found {shown(url)!r}") from None
        options = dict(parse_qsl(parts.query, keep_blank_values=True))
        others = sorted(options.keys() - OPTIONS)
        if others or parts.fragment:
            what = (
                f"{', '.join(others)}: no such option (expected {', '.join(sorted(OPTIONS))})"
                if others
                else "expected http://host:port"
            )
            raise BadUrl(f"{what}, found {shown(url)!r}")
        host = parts.netloc.rpartition("@")[2]
        self._base = f"{parts.scheme}://{host}{parts.path.rstrip('/')}/v1/work/"
        self._token = token or options.get("token") or parts.password
        self._ca = options.get("ca")
        self._answer = _size(options.get("max_answer"), url)
        self._session: aiohttp.ClientSession | None = None
        self._trips: set[asyncio.Timeout] = set()  # round trips in progress
        self._most: int | None = None  # bytes of one request that the server accepts, as it reported

    async def open(self, look: bool = False) -> None:
        """Call `hello`, so that a wrong address or token fails here; it also returns the server's body limit and
        queues. It changes nothing, so `look` makes no difference: the server has its storage open."""
        if self._session is not None:
            return
        trust: ssl.SSLContext | bool = ssl.create_default_context(cafile=self._ca) if self._ca else True
        # Uncompressed: a hostile server could expand a few bytes to gigabytes here.
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
            self._most = hello.max_body
            self.capabilities = replace(type(self).capabilities, queues=hello.queues, reads_texts=hello.texts)
        except BaseException:
            await self.close()
            raise

    async def close(self) -> None:
        """Close all connections. A call in progress raises StorageUnavailable at once: aiohttp closes the connection
        without an error for the call that reads from it."""
        session, self._session = self._session, None
        for trip in self._trips:
            trip.reschedule(0.0)
        if session is not None:
            await session.close()

    @property
    def _part(self) -> int:
        """The most bytes of a request that is not split."""
        return BIGGEST if self._most is None else min(BIGGEST, self._most)

    # --- one round trip

    async def _call(self, verb: str, body: bytes, answer: type[T], wait: float = 0.0) -> T:
        for last in (False, True):
            try:
                content = await self._trip(verb, body, wait)
                await response_body.weigh(content, self._base + verb)
                return _read(content, answer, self._base + verb)
            except (aiohttp.ClientError, TimeoutError) as error:
                if self._session is None:
                    raise StorageUnavailable("the storage was closed during this call") from error
                # A kept-alive connection that the server has just closed raises one of these.
                if last or not isinstance(error, aiohttp.ServerDisconnectedError | aiohttp.ClientOSError):
                    kind = "no response in time" if isinstance(error, TimeoutError) else type(error).__name__
                    raise StorageUnavailable(f"{self._base}: {str(error) or kind}") from error
        raise AssertionError

    async def _trip(self, verb: str, body: bytes, wait: float) -> bytearray:
        if self._session is None:
            raise StorageUnavailable("the storage is not open; call open() first")
        limit = aiohttp.ClientTimeout(total=None, sock_connect=CONNECT)
        # aiohttp warns about a large body given as bytes. It is in memory already, and is sent in one piece either way.
        data = body if len(body) < 2**20 else io.BytesIO(body)
        async with asyncio.timeout(TIMEOUT + wait) as trip:
            self._trips.add(trip)
            try:
                # A redirect would send the jobs of this call to a host that the URL does not name.
                entry = open_entry.get()
                async with self._session.post(
                    self._base + verb,
                    data=data,
                    timeout=limit,
                    allow_redirects=False,
                    headers=None if entry is None else {HEADER: entry},
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
        """Raises StorageUnavailable for a redirect or a compressed response, which comes from a proxy in between."""
        if 300 <= response.status < 400:
            location = target(self._base, response.headers.get("Location"))
            finding = f"a redirect to {location}, which Treadle does not follow; use that URL if it is the right one"
            raise StorageUnavailable(f"{self._base} answered {response.status}, {finding}")
        if (coding := response.headers.get("Content-Encoding", "identity").lower()) != "identity":
            finding = f"expected an uncompressed response, found Content-Encoding {coding!r}"
            raise StorageUnavailable(f"{self._base}{verb}: {finding}; switch off compression in the proxy in between")

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

    async def heartbeat(self, worker: Presence, renewals: Sequence[LeaseRenewal], lease: float) -> HeartbeatResult:
        check_beat(worker, renewals, lease)
        lost, unsaved = set[str](), set[str]()
        for start in range(0, max(1, len(renewals)), LOOKS):
            beat = messages.Beat(worker, tuple(renewals[start : start + LOOKS]), lease)
            result = await self._call("heartbeat", _encode(beat), messages.HeartbeatResult)
            lost.update(result.ids)
            unsaved.update(result.unsaved)
        return HeartbeatResult(frozenset(lost), frozenset(unsaved))

    @guarded_settle
    async def settle(self, outcomes: Sequence[Outcome]) -> list[Settled]:
        if not outcomes:
            return []
        body = _encode(messages.Outcomes(tuple(outcomes)))
        # Outcomes are independent of each other, so they may be split over several requests.
        if len(outcomes) > LOOKS or (len(body) > self._part and len(outcomes) > 1):
            half = len(outcomes) // 2
            return [*await self.settle(outcomes[:half]), *await self.settle(outcomes[half:])]
        if self._most is not None and len(body) > self._most:
            what = f"the outcome of job {outcomes[0].id} and its follow-up jobs have {len(body):,} bytes"
            return [Settled("refused", f"{what}; the server accepts {self._most:,}: use smaller arguments or results")]
        return list((await self._call("settle", body, messages.AllSettled)).settled)

    @guarded_settle_claim
    async def settle_claim(self, outcomes: Sequence[Outcome], ask: Claim) -> tuple[list[Settled], Claimed]:
        """One round trip for both, unless the outcomes are too large for one request."""
        message = messages.SettleClaim(tuple(outcomes), messages.claim_call(ask, self._answer))
        body = _encode(message)
        if outcomes and (len(body) > self._part or len(outcomes) > LOOKS):
            return await self.settle(outcomes), await self.claim(ask)
        both = await self._call("settle_claim", body, messages.SettledClaimed)
        return list(both.settled), both.claimed

    # --- reading

    async def get(self, ids: Sequence[str]) -> list[Record | None]:
        if not ids:
            return []
        rows: list[Record | None] = []
        for start in range(0, len(ids), LOOKS):
            rows += await self._get(tuple(ids[start : start + LOOKS]))
        return rows

    async def _get(self, ids: tuple[str, ...]) -> Sequence[Record | None]:
        """Splits the request if the response is too large. Raises AnswerTooLarge if a single row is."""
        try:
            return (await self._call("get", _encode(messages.Ids(ids)), messages.Records)).records
        except AnswerTooLarge:
            half = len(ids) // 2
            if not half:
                raise
        return [*await self._get(ids[:half]), *await self._get(ids[half:])]

    async def find(self, query: Query) -> Page:
        """Requests a shorter page if the response is too large. Raises AnswerTooLarge if a single row is."""
        while True:
            try:
                return await self._call("find", _encode(query), Page)
            except AnswerTooLarge:
                if query.limit <= 1:
                    raise
                query = replace(query, limit=query.limit // 2)

    async def stats(self) -> Stats:
        return await self._call("stats", b"{}", Stats)

    async def glance(self, most: int = 10_000) -> Glance:
        return await self._call("glance", _encode(messages.GlanceCall(most)), Glance)

    async def recount(self, repair: bool = False) -> tuple[CountDrift, ...]:
        """The server reads all rows: some 5 s for a million."""
        return (await self._call("recount", _encode(messages.Recount(repair)), messages.Drifts, wait=RECOUNT)).drifts

    async def read_metrics(self, since: float, until: float) -> list[MetricsRow]:
        message = messages.ReadMetrics(since, until)
        return list((await self._call("read_metrics", _encode(message), messages.MetricsRows)).rows)

    async def read_mark(self) -> MoveState | None:
        """The move that the server's storage takes part in, or None. Only its role and the other storage are set."""
        moving = (await self._call("hello", b"{}", messages.Hello)).moving
        return None if moving is None else MoveState(role=cast(Role, moving.role), other=moving.other, move="")

    # --- operating

    async def limits(self, use: bool = True) -> tuple[LimitUse, ...]:
        return (await self._call("limits", _encode(messages.LimitsCall(use)), messages.LimitUses)).limits

    async def set_limits(self, changes: Sequence[LimitChange]) -> None:
        check_changes(changes)
        await self._call("set_limits", _encode(messages.LimitChanges.of(changes)), messages.Nothing)

    async def prune(self, limit: int) -> int:
        deleted = 0
        while True:
            size = min(limit - deleted, LOOKS)
            number = (await self._call("prune", _encode(messages.Prune(size)), messages.Number)).number
            deleted += number
            if number < size or deleted >= limit:
                return deleted

    async def store_metrics(self, rows: Sequence[MetricsRow], remove: Sequence[MetricsRow] = ()) -> None:
        check_rows(rows, remove)
        await self._call("store_metrics", _encode(messages.StoreMetrics(tuple(rows), tuple(remove))), messages.Nothing)

    async def watch(self, topics: Sequence[str], timeout: float) -> set[str]:
        if not topics:
            await asyncio.sleep(timeout)
            return set()
        seconds = min(timeout, defaults.WATCH)
        # Topics beyond the limit of one request are not watched: hints may be lost.
        message = messages.Watch(tuple(topics[:LOOKS]), seconds)
        result = await self._call("watch", _encode(message), messages.Topics, wait=seconds)
        return set(result.topics)


def _size(text: str | None, url: str) -> int:
    """The limit of `max_answer`, or its default. Raises BadUrl."""
    if text is None:
        return response_body.ANSWER
    if not text.isdecimal() or int(text) < 2**20:
        raise BadUrl(
            f"max_answer: expected a number of bytes of at least {2**20:,}, found {text!r:.40} in {shown(url)}"
        )
    return int(text)


def _read(content: bytearray, kind: type[T], place: str) -> T:
    """The decoded response. Raises StorageError if it is not one: a proxy may respond with a page of its own."""
    try:
        return msgspec.json.decode(content, type=kind)
    except UNREADABLE as error:
        raise StorageError(f"{place}: expected the response of a Treadle server: {error}") from error


def _refusal(status: int, content: bytearray, place: str) -> Exception:
    """The error that the server returned, as an instance of the same class."""
    try:
        problem = msgspec.json.decode(content, type=messages.Problem)
    except UNREADABLE:
        problem = None
    if problem is None or problem.error not in messages.WORDS:
        text = problem.message if problem is not None else content[:200].decode(errors="replace")
        kind = StorageUnavailable if status in (429, 502, 503, 504) else StorageError
        return kind(f"{place} answered {status}: {text}")
    return messages.error_of(problem)
