"""Reads the overview once for all open pages of a process, at most 2 % of the time, and not while no page is open.

A reader gets the newest look when it can take one, so a slow reader skips looks and holds nothing back.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

import msgspec
from msgspec import Struct

from treadle.admin.known_names import heard
from treadle.core.clock import wall
from treadle.core.query_model import Count, Glance
from treadle.server.auth.tokens import Token
from treadle.server.doctor.common import Check, others, warnings
from treadle.server.errors import Refused
from treadle.server.kept_answer import pace, warn_of_outage
from treadle.server.longpoll import BEAT, LongPoll
from treadle.server.overview.activity import Activity, Recent
from treadle.server.overview.compose import compose
from treadle.server.overview.filling import exact_filling
from treadle.server.overview.look import Look
from treadle.server.overview.views import Overview
from treadle.storage import Risk, risks_of
from treadle.worker.leader import ID, leader_of

if TYPE_CHECKING:
    from treadle.app.core import AppCore

log = logging.getLogger("treadle.server")

TIMEOUT: Final = 10.0  # s of a look
RARE: Final = 30.0  # s between two looks at all schedules, and at the counts by task
READERS: Final = 1_000  # streams of one process; each costs 30 us a look
PENDING: Final = 1_000  # events that wait for one slow reader; newer ones replace those with their key
AT_ONCE: Final = 20  # rows of metrics between two turns of the loop: 4 ms

Sees = Callable[[Token], bool]
_encode = msgspec.json.Encoder().encode


class _Reader:
    """One stream: the events that wait for it, by key."""

    def __init__(self, token: Token) -> None:
        self.token, self.events = token, dict[str, bytes]()


class Rare(Struct, frozen=True, kw_only=True):
    """The data that are read every RARE seconds. `Look` describes the fields; warnings: of the doctor."""

    failing: Sequence[str] = ()
    counts: Sequence[Count] = ()
    warnings: int = 0
    emptied: str | None = None
    risks: Sequence[Risk] = ()


class _Seen:
    """One look, encoded once for each set of queues."""

    def __init__(self, look: Look) -> None:
        self.look = look
        self._texts: dict[tuple[str, ...], bytes] = {}

    def text(self, token: Token) -> bytes:
        queues = tuple(sorted(token.queues))
        if queues not in self._texts:
            self._texts[queues] = _event("overview", compose(self.look, token))
        return self._texts[queues]


class Looks:
    """The looks of one app. `rest` is for tests."""

    def __init__(self, core: AppCore, waiting: LongPoll, rest: Callable[[float], Any] = asyncio.sleep) -> None:
        self._core, self._waiting, self._rest = core, waiting, rest
        self._recent, self._rare = Recent(), Rare()
        self._rare_at: float | None = None
        self._others = 0  # warnings of the doctor that the counts do not show, as of its last call
        self._readers: set[_Reader] = set()
        self._seen: _Seen | None = None
        self._at = 0.0  # the loop's time of `_seen`
        self._outage: float | None = None  # the loop's time since when the storage does not answer
        self._looking: asyncio.Task[None] | None = None
        self._once = asyncio.Lock()
        self._news = asyncio.Event()  # replaced at each event and each look

    # --- one answer

    async def overview(self, token: Token) -> Overview:
        """The overview, not older than the pace of the looks."""
        async with self._once:
            if self._fresh() <= 0:
                await self._look()
        assert self._seen is not None
        return compose(self._seen.look, token)

    # --- streams

    def check_room(self) -> None:
        """Raise Refused (503) if there are too many streams already."""
        if len(self._readers) >= READERS:
            message = f"{READERS:,} pages follow the overview already: read /v1/overview now and then"
            raise Refused(503, "too_many", message, {"Retry-After": "5"})

    async def follow(self, token: Token) -> AsyncGenerator[bytes, None]:
        """The events of one reader, until its token has ended or the server stops."""
        reader, shown = _Reader(token), None
        self._readers.add(reader)
        if self._looking is None:
            self._looking = asyncio.create_task(self._run())
        try:
            yield b"retry: 2000\n\n"
            while not token.ended(wall()):
                if self._waiting.stopping.is_set():
                    yield b"event: bye\ndata: {}\n\n"
                    return
                news = self._news
                events, reader.events = reader.events, {}
                for text in events.values():
                    yield text
                if self._seen is not shown and self._seen is not None:
                    shown = self._seen
                    yield shown.text(token)
                elif not events and not await self._heard(news, token):
                    yield b": still here\n\n"
        finally:
            self._readers.discard(reader)
            if not self._readers and self._looking is not None:
                looking, self._looking = self._looking, None
                looking.cancel()
                with suppress(asyncio.CancelledError):
                    await looking

    async def _heard(self, news: asyncio.Event, token: Token) -> bool:
        """Wait until something is new, the token ends or the server stops; False after BEAT seconds without any."""
        wait_time = BEAT if token.expires is None else min(BEAT, max(0.0, token.expires - wall()))
        with suppress(TimeoutError):
            async with asyncio.timeout(wait_time):
                await self._waiting.unless_stopped(news.wait())
                return True
        return wait_time < BEAT

    def publish(self, name: str, key: str, value: object, sees: Sees) -> None:
        """Send an event to the readers whose token sees it. Of several events with one key, a reader that is behind
        gets the last one."""
        text = _event(name, value)
        for reader in self._readers:
            if sees(reader.token):
                reader.events.pop(key, None)
                if len(reader.events) < PENDING:
                    reader.events[key] = text
        self._tell()

    def _tell(self) -> None:
        self._news.set()
        self._news = asyncio.Event()

    # --- looking

    async def _run(self) -> None:
        """Read while a page is open."""
        while True:
            if (rest := self._fresh()) > 0:
                await self._rest(rest)
            async with self._once:
                await self._look()
            self._tell()

    def _fresh(self) -> float:
        """Seconds until the next look."""
        if self._seen is None:
            return 0.0
        return self._at + self._seen.look.every - asyncio.get_running_loop().time()

    async def _look(self) -> None:
        """Look once. If the storage does not answer, the look has the last numbers and the duration of the outage."""
        loop = asyncio.get_running_loop()
        began = loop.time()
        try:
            async with asyncio.timeout(TIMEOUT):
                with heard():  # the overview itself says when the jobs have moved
                    look = await self._read()
        except Exception as error:  # also of a fault of ours: the stream continues
            if self._outage is None:
                self._outage = began
                warn_of_outage("overview", error)
            last = self._seen.look if self._seen is not None else Look(glance=Glance(at=self._core.now()))
            look = msgspec.structs.replace(last, outage=loop.time() - self._outage)
        else:
            if self._outage is not None:
                log.warning("overview: storage available again")
            self._outage = None
        cost = loop.time() - began
        self._seen = _Seen(msgspec.structs.replace(look, cost=cost, every=pace(cost)))
        self._at = loop.time()

    async def _read(self) -> Look:
        storage, is_bound = self._core.storage, bool(self._core.storage.capabilities.queues)
        glance = await storage.glance()
        [row] = await storage.get([ID]) if not is_bound else [None]
        activity = await self._activity(glance.at) if not is_bound else None  # rows of metrics cover all queues
        await self._read_rare(is_bound)
        moved = await self._core.moved.words()
        return Look(
            glance=glance,
            leader=None if row is None else leader_of(row),
            activity=activity,
            failing=self._rare.failing,
            exact=await exact_filling(storage, glance),
            counts=self._rare.counts,
            health=self._rare.warnings + max(self._others, len(self._rare.risks)) + (moved is not None),
            moved=moved,
            emptied=self._rare.emptied,
            risks=self._rare.risks,
        )

    async def _activity(self, now: float) -> Activity | None:
        """The rates and times of the last minutes; None if no worker has stored any."""
        rows = await self._core.storage.read_metrics(self._recent.since(now), now + 60.0)
        for number, row in enumerate(rows, 1):
            self._recent.add(row, now)
            if not number % AT_ONCE:
                await asyncio.sleep(0)
        return self._recent.activity(now) if self._recent.has_any else None

    async def _read_rare(self, is_bound: bool) -> None:
        now = asyncio.get_running_loop().time()
        if self._rare_at is None or now - self._rare_at >= RARE:
            stats = await self._core.queues.stats()
            schedules = [] if is_bound else await self._core.schedules.list()
            self._rare = Rare(
                failing=tuple(schedule.name for schedule in schedules if schedule.error is not None),
                counts=stats.counts,
                warnings=warnings(self._core, stats),
                emptied=None if is_bound else await self._core.emptied.look(),
                risks=await risks_of(self._core.storage),
            )
            self._rare_at = now

    def examined(self, checks: Sequence[Check]) -> None:
        """The doctor has made all its checks: later looks count the warnings of this examination."""
        self._others, self._rare_at = others(checks), None


def _event(name: str, value: object) -> bytes:
    return b"event: %s\ndata: %s\n\n" % (name.encode(), _encode(value))
