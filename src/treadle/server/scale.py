"""How much work there is for how many slots, for autoscalers. The answer never waits for a slow storage.

An autoscaler that gets no answer in its few seconds stops scaling, so a caller gets the last figures with their age.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from msgspec import Struct

from treadle.core import defaults
from treadle.core.limit_model import LimitUse
from treadle.core.query_model import Glance, Query, QueueGlance
from treadle.core.queue_rules import QueueRules
from treadle.server.auth import rights
from treadle.server.auth.tokens import Token
from treadle.server.errors import Refused
from treadle.server.kept_answer import pace, warn_of_outage
from treadle.server.longpoll import LongPoll
from treadle.storage import capacity

if TYPE_CHECKING:
    from treadle.app.core import AppCore

READING: Final = 30.0  # s of a reading; it continues while callers get the last figures
WAIT: Final = 0.5  # s that a caller waits for newer figures
STALE: Final = 600.0  # s after which figures are refused: the scaler's own fall-back is better then
SOON: Final = 60.0  # jobs due within this many seconds count: a worker takes that long to start
MOST_SOON: Final = 100  # jobs of a queue that are counted as due soon
PAGE: Final = 25  # rows of one page: they carry their payloads
SCAN: Final = 1_000  # rows that are read for one queue: 8 ms on Redis
ASKED: Final = 300.0  # s for which the queues of a caller are read
MOST_ASKED: Final = 100  # queues that are read


class Scale(Struct, frozen=True, kw_only=True):
    """The figures of some queues.

    load      queued + running + due_soon: divided by the slots of one worker, the workers that are wanted
    queued    due jobs that wait for a worker, as many as the limit of their queue lets start within 60 seconds: more
              workers do not help the others
    due_soon  scheduled jobs and retries that are due within 60 seconds, counted up to 100 in each queue, and as many as
              that limit then leaves
    blocked   jobs that a limit blocks, and the queued ones that the limit of their queue leaves out
    oldest    seconds for which the first queued job has been queued; 0: none is queued
    slots     slots of the workers that claim from one of the queues
    workers   the number of these workers
    capped    whether a count stopped at its bound, so that there may be more
    age       seconds since the figures were read
    """

    load: int
    queued: int
    running: int
    due_soon: int
    blocked: int
    oldest: float
    slots: int
    workers: int
    capped: bool
    age: float


class _Reading(Struct, frozen=True, kw_only=True):
    """One reading. `due`: by queue, the jobs that are due soon, and whether there may be more."""

    glance: Glance
    due: dict[str, tuple[int, bool]]
    at: float  # the loop's time
    every: float


class ScaleReader:
    """The figures of one storage, read when callers ask for them."""

    def __init__(self, core: AppCore, waiting: LongPoll) -> None:
        self._core, self._waiting = core, waiting
        self._seen: _Reading | None = None
        self._asked: dict[str, float] = {}  # queues -> the loop's time of the last caller
        self._reading: asyncio.Task[None] | None = None
        self._failing = False

    async def scale(self, token: Token, queues: Sequence[str]) -> Scale:
        """The figures of these queues; without queues, of all that the token sees. Raises Refused (503) if there are
        none, or if they are older than 10 minutes."""
        loop = asyncio.get_running_loop()
        now = loop.time()
        for queue in queues:
            self._asked.pop(queue, None)
            self._asked[queue] = now
        seen = self._seen
        if seen is None or now - seen.at >= seen.every or any(self._is_unread(seen, queue) for queue in queues):
            if self._reading is None or self._reading.done():
                self._reading = loop.create_task(self._read())
            await asyncio.wait((self._reading,), timeout=WAIT)
        seen, age = self._seen, 0.0 if self._seen is None else loop.time() - self._seen.at
        if seen is None or age > STALE:
            reason = "the storage has not answered yet" if seen is None else f"the last figures are {age:.0f} s old"
            raise Refused(503, "storage_unavailable", f"{reason}; the server's log says why", {"Retry-After": "2"})
        return figures(rights.glanced(token, seen.glance), queues or token.queues, seen.due, age)

    @staticmethod
    def _is_unread(seen: _Reading, queue: str) -> bool:
        """Whether the queue has scheduled jobs that were not read, because no recent request named it."""
        return queue not in seen.due and _has_scheduled(seen.glance, queue)

    async def _read(self) -> None:
        loop = asyncio.get_running_loop()
        began = loop.time()
        try:
            async with asyncio.timeout(READING):
                read = await self._waiting.unless_stopped(self._figures())
        except Exception as error:
            if not self._failing:
                warn_of_outage("figures for scaling", error)
            self._failing = True
            return
        if read is not None:  # None: the server stops
            self._failing = False
            glance, due = read
            self._seen = _Reading(glance=glance, due=due, at=began, every=pace(loop.time() - began))

    async def _figures(self) -> tuple[Glance, dict[str, tuple[int, bool]]]:
        await self._core.opened()
        glance = await self._core.storage.glance()
        now = asyncio.get_running_loop().time()
        self._asked = {queue: last for queue, last in self._asked.items() if now - last < ASKED}
        names = list(reversed(self._asked)) + [queue.name for queue in glance.queues]
        wanted = [queue for queue in dict.fromkeys(names) if _has_scheduled(glance, queue)]
        return glance, {queue: await self._due_soon(queue, glance.at + SOON) for queue in wanted[:MOST_ASKED]}

    async def _due_soon(self, queue: str, until: float) -> tuple[int, bool]:
        """How many scheduled jobs of a queue are due until then, and whether there may be more."""
        count, scanned, cursor = 0, 0, None
        while count < MOST_SOON and scanned < SCAN:
            page = await self._core.storage.find(
                Query(queue=queue, ready="scheduled", order="due", limit=PAGE, scan=SCAN - scanned, cursor=cursor)
            )
            soon = sum(row.due_at is not None and row.due_at <= until for row in page.records)
            count, scanned, cursor = count + soon, scanned + max(page.scanned or 0, PAGE), page.cursor
            if soon < len(page.records) or cursor is None:
                return count, False
        return count, True


def _has_scheduled(glance: Glance, queue: str) -> bool:
    if queue == defaults.SYSTEM_QUEUE:
        return False  # its jobs are ticks, which are always due soon
    return "scheduled" in glance.capped or any(counts.name == queue and counts.scheduled for counts in glance.queues)


def figures(glance: Glance, queues: Sequence[str], due: dict[str, tuple[int, bool]], age: float = 0.0) -> Scale:
    """The figures of these queues; without queues, of all but Treadle's own."""

    def wanted(queue: str) -> bool:
        return queue in queues if queues else queue != defaults.SYSTEM_QUEUE

    glances = {counts.name: counts for counts in glance.queues if wanted(counts.name)}
    names = glances.keys() | {queue for queue in due if wanted(queue)}
    workers = [worker for worker in glance.workers if not worker.draining and any(map(wanted, worker.queues))]
    rules = QueueRules(glance.limits)
    parts = [
        _part(glances.get(name) or QueueGlance(name=name), due.get(name, (0, False)), rules.of(name), glance.at)
        for name in names
    ]
    queued, running = sum(part.queued for part in parts), sum(counts.running for counts in glances.values())
    due_soon = sum(part.due_soon for part in parts)
    return Scale(
        load=queued + running + due_soon,
        queued=queued,
        running=running,
        due_soon=due_soon,
        blocked=sum(part.blocked for part in parts),
        oldest=round(max((counts.oldest or 0.0 for counts in glances.values()), default=0.0), 3),
        slots=sum(worker.slots for worker in workers),
        workers=len(workers),
        capped="running" in glance.capped or any(part.capped for part in parts),
        age=round(age, 3),
    )


class _Part(Struct, frozen=True):
    """The figures of one queue, as `Scale` describes them."""

    queued: int
    due_soon: int
    blocked: int
    capped: bool


def _part(queue: QueueGlance, due: tuple[int, bool], use: LimitUse | None, now: float) -> _Part:
    """due: the jobs that are due soon, and whether there may be more. use: the limit that the queue obeys."""
    soon, more = due
    room = _room(use, queue.running, now)
    queued = queue.queued if room is None else min(queue.queued, room)
    later = soon if room is None else min(soon, room - queued)
    return _Part(
        queued=queued,
        due_soon=later,
        blocked=queue.blocked + queue.queued - queued,
        # a count that stopped at its bound is exact if the limit lets fewer jobs start
        capped=(queue.queued_capped and queued == queue.queued) or (more and later == soon),
    )


def _room(use: LimitUse | None, running: int, now: float) -> int | None:
    """How many jobs more the limit of a queue lets start within SOON seconds; None: any number."""
    if use is None:
        return None
    rooms = [] if use.rule.slots is None else [max(0, use.rule.slots - running)]
    if use.rule.rate is not None:
        rooms.append(_starts(use, use.rule.rate, now))
    return min(rooms, default=None)


def _starts(use: LimitUse, rate: int, now: float) -> int:
    """The most starts that the rate of a limit can admit within SOON seconds."""
    rule, rounds = use.rule, SOON / use.rule.per
    if use.next_start is not None and use.next_start - now >= SOON:
        return 0
    free = max(0, capacity(rule) - use.starts)
    if rule.how == "bucket":
        return free + math.ceil(rate * rounds)
    # Starts that leave the window within SOON seconds make room again. If the window is longer than that, these are at
    # most the starts that are in it now.
    again = use.starts if rounds < 1 else math.ceil(rate * rounds)
    return free + again
