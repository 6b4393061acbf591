"""One more storage, made of three ports: each change is an entry of the log first, and then done, by everybody.

Without it a queue, a store and a pub/sub could not carry jobs without losing some. All calls that are made at the same
time in one process become one entry. Whoever fails anywhere leaves either no entry, and nothing has happened, or one,
and everybody will do what it says.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final
from uuid import uuid4

import msgspec

from treadle.concurrency.group_commit import GroupCommit, Request
from treadle.concurrency.spawn import started
from treadle.core import clock
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
from treadle.errors import StorageError, StorageUnavailable
from treadle.ports import Ports
from treadle.storage.composed import compaction, log_entries
from treadle.storage.composed.log import AHEAD, Log, as_text, pieces
from treadle.storage.composed.log_entries import Draft, Entry, Op
from treadle.storage.composed.port_calls import PATIENCE, Port, here, soon
from treadle.storage.composed.replica import Replica
from treadle.storage.composed.wakeups import Wakeups
from treadle.storage.messages import LimitChanges
from treadle.storage.topic_waiters import TopicWaiters
from treadle.storage.transfer import Chunk, MoveState
from treadle.storage.value_checks import (
    check_ask,
    check_beat,
    check_changes,
    check_jobs,
    guarded_settle,
    guarded_settle_claim,
)

logger = logging.getLogger("treadle")

EVERY: Final = 4096  # entries behind a base until the next one is written; more where there are more rows than that
PIECE: Final = (
    192 * 1024
)  # characters in one value of the store; systems take a megabyte, a character has up to 4 bytes
SKEW: Final = 5.0  # s the clocks of processes may differ without the log's going back
RELOADS: Final = 100  # looks for a base whose parts are there; each time another process may just have replaced it
SYNC: Final = 30.0  # s for which the store's clock, once read, is followed by our own

Look = Callable[[Replica, float], Any]
_encode = msgspec.json.Encoder().encode


class _Asked(Request):
    """A call that waits: what it wants in the log, when it wants that, and how it is answered without."""

    __slots__ = ("look", "op", "text", "wants")

    def __init__(self, op: Op | None, look: Look | None, wants: Callable[[Replica, float], bool] | None) -> None:
        super().__init__()
        self.op, self.look, self.wants = op, look, wants
        self.text = _encode(op) if op is not None else b""

    def writes(self, replica: Replica, now: float) -> bool:
        return self.op is not None and (self.wants is None or self.wants(replica, now))


class ComposedStorage:
    """Jobs in somebody's own systems.

    ports      queue, pub/sub and store; the jobs are in the store
    namespace  in front of all keys and channels, so that programs can share the three
    now        the storage's clock; None: the store's if it has one, else this machine's
    every      entries of the log until all rows are written down anew
    patience   s for an answer of a port
    """

    def __init__(
        self,
        ports: Ports,
        *,
        namespace: str = "treadle",
        now: clock.Clock | None = None,
        every: int = EVERY,
        piece: int = PIECE,
        patience: float = PATIENCE,
    ) -> None:
        self.ports, self.namespace = ports, namespace
        self._clock, self._every, self._piece = now, every, piece
        self._store, self._pubsub = Port(ports.store, "store", patience), Port(ports.pubsub, "pub/sub", patience)
        self._queue = Port(ports.queue, "queue", patience)
        self._waiters = TopicWaiters()
        self._log, self._replica = Log(self._store, namespace), Replica(self._waiters)
        self._groups = GroupCommit[_Asked](f"the jobs of {namespace!r}", self._step, self._together)
        self._is_open = False
        self._read_at: tuple[float, float] | None = None  # our monotonic clock, and the store's, at one moment
        self._begin()

    def _begin(self) -> None:
        """Nothing is under way: an event loop that was closed may have left tasks in the middle."""
        self._closing: asyncio.Task[None] | None = None  # while it is being closed
        self._beside: set[asyncio.Task[Any]] = set()
        self._wakeups = self._new_bells()
        self._end_listening: Any = None
        self._telling = self._hearing = self._tidying = self._listening = False

    def _new_bells(self) -> Wakeups:
        return Wakeups(self._queue, self._row, self._waiters.speak, lambda: self._replica.at)

    def _row(self, id: str) -> Record | None:
        return self._replica.copy.tables.jobs.get(id)

    # --- life

    async def open(self) -> None:
        """Read the rows as they are, and listen for what happens to them."""
        while self._closing is not None and self._closing.get_loop() is asyncio.get_running_loop():
            await asyncio.wait([self._closing])  # or it would close what is opened here
        if self._is_open:
            return
        self._begin()
        await self._reload()
        await self._catch_up()
        self._is_open = True
        await self._listen()

    async def close(self) -> None:
        """Stop, and let the ports close what they have open. Where the caller is cancelled, closing goes on; the next
        `open` or `close` waits for it."""
        if self._closing is None or self._closing.get_loop() is not asyncio.get_running_loop():
            if not self._is_open:
                return
            self._is_open = False
            self._closing = started(self._finish())
        await asyncio.shield(self._closing)

    async def _finish(self) -> None:
        try:
            await self._stop()
        finally:
            self._closing = None

    async def _stop(self) -> None:
        await self._wakeups.close()
        beside = here(self._beside)
        for task in beside:
            task.cancel()
        await self._groups.idle()
        if beside:
            await asyncio.wait(beside)
        ending, self._end_listening = self._end_listening, None
        if ending is not None:
            await soon(self._pubsub(ending))
        for port in (self._queue, self._pubsub, self._store):
            if port.has("close"):
                await soon(port(port.port.close))

    async def abandon(self) -> None:
        """Stop as if the process had died: nothing is finished, given back or said. For tests."""
        self._is_open = False
        await self._wakeups.abandon()
        for task in self._beside:
            task.cancel()
        await self._groups.stop()
        await asyncio.gather(*self._beside, return_exceptions=True)

    # --- the verbs

    async def enqueue(self, jobs: Sequence[NewJob]) -> list[Record]:
        if not jobs:
            return []
        check_jobs(jobs)
        answer: list[Record] = await self._ask(log_entries.Enqueue(tuple(jobs)))
        return answer

    async def claim(self, ask: Claim) -> Claimed:
        check_ask(ask)
        self._wakeups.serve((queue for queue, _ in ask.queues), ask.tasks)
        claimed: Claimed | None = None
        while claimed is None:  # past very many who are blocked it goes in steps, each an entry
            claimed = await self._ask(
                log_entries.Claiming(ask),
                lambda replica, now: replica.copy.look(ask, now),
                lambda replica, now: replica.copy.claims(ask, now),
            )
        if not claimed.records:
            self._wakeups.listen()  # once for each claim that finds nothing: the user sets what idle polling costs
        return claimed

    async def heartbeat(self, worker: Presence, holds: Sequence[Hold], lease: float) -> Held:
        check_beat(worker, holds, lease)
        held: Held = await self._ask(log_entries.Beat(worker, tuple(holds), lease))
        return held

    @guarded_settle
    async def settle(self, outcomes: Sequence[Outcome]) -> list[Settled]:
        if not outcomes:
            return []
        settled: list[Settled] = await self._ask(log_entries.Settling(tuple(outcomes)))
        return settled

    @guarded_settle_claim
    async def settle_claim(self, outcomes: Sequence[Outcome], ask: Claim) -> tuple[list[Settled], Claimed]:
        if not outcomes:
            return [], await self.claim(ask)
        self._wakeups.serve((queue for queue, _ in ask.queues), ask.tasks)
        settled: list[Settled]
        claimed: Claimed | None
        settled, claimed = await self._ask(log_entries.SettleClaim(tuple(outcomes), ask))
        return settled, await self.claim(ask) if claimed is None else claimed

    async def get(self, ids: Sequence[str]) -> list[Record | None]:
        found: list[Record | None] = await self._look(lambda replica, now: [self._row(id) for id in ids])
        return found

    async def find(self, query: Query) -> Page:
        page: Page = await self._look(lambda replica, now: replica.reads(replica.copy.find(query), now))
        return page

    async def stats(self) -> Stats:
        stats: Stats = await self._look(lambda replica, now: replica.reads(replica.copy.stats(), now))
        return stats

    async def limits(self, use: bool = True) -> tuple[LimitUse, ...]:
        found: tuple[LimitUse, ...] = await self._look(
            lambda replica, now: replica.reads(replica.copy.limits(use), now)
        )
        return found

    async def set_limits(self, changes: Sequence[LimitChange]) -> None:
        check_changes(changes)
        await self._ask(log_entries.Limits(LimitChanges.of(changes)))

    async def prune(self, limit: int) -> int:
        gone: int = await self._ask(
            log_entries.Prune(limit), lambda replica, now: 0, lambda replica, now: replica.copy.prunes(now)
        )
        return gone

    async def watch(self, topics: Sequence[str], timeout: float) -> set[str]:
        if self._end_listening is None:
            self._start(self._listen)
        return await self._waiters.wait(topics, timeout)

    # --- moving house

    async def read_mark(self) -> MoveState | None:
        mark: MoveState | None = await self._look(lambda replica, now: replica.copy.mark)
        return mark

    async def set_mark(self, mark: MoveState) -> None:
        await self._ask(log_entries.SetMark(mark))

    async def unload(self, cursor: str | None, limit: int) -> Chunk:
        load: Chunk = await self._look(lambda replica, now: replica.reads(replica.copy.unload(cursor, limit), now))
        return load

    async def load(self, load: Chunk, mark: MoveState) -> None:
        await self._ask(log_entries.Arrive(load, mark))

    # --- one entry after the other

    async def _look(self, look: Look) -> Any:
        return await self._ask(None, look)

    async def _ask(
        self, op: Op | None, look: Look | None = None, wants: Callable[[Replica, float], bool] | None = None
    ) -> Any:
        return await self._groups.ask(_Asked(op, look, wants))

    def _together(self, waiting: deque[_Asked]) -> list[_Asked]:
        """The calls that go into one entry: as many as fit into one value; one that does not goes alone."""
        asked = [waiting.popleft()]
        size = len(asked[0].text)
        while waiting and size + len(waiting[0].text) <= self._piece:
            asked.append(waiting.popleft())
            size += len(asked[-1].text)
        return asked

    async def _step(self, asked: list[_Asked]) -> None:
        """Put what these calls want into the log, and answer all of them from the rows behind it."""
        replica, log, at_end = self._replica, self._log, False
        beside: tuple[str, int] | None = None
        while True:
            now = await self._time()
            writing = [each for each in asked if each.writes(replica, now)]
            if not writing and at_end:
                break
            if writing:
                if beside is None and len(writing[0].text) > 2 * self._piece:  # such a call goes by itself
                    beside = await self._set_beside(writing[0])
                    replica = self._replica
                ops = tuple(msgspec.Raw(each.text) for each in writing) if beside is None else ()
                draft = Draft(uuid4().hex, now, log_entries.RULES, replica.last, ops, beside)
                text = as_text(draft)
                place = replica.position + 1
                if await log.append(place, text, draft.id):
                    await self._won(place)
                    entry = Entry(draft.id, now, log_entries.RULES, draft.after, parts=beside)
                    for each, answer in zip(writing, self._apply_own(entry, writing), strict=True):
                        each.reply(answer)
                    asked, at_end = [each for each in asked if each not in writing], True
                    continue
            await self._catch_up()
            replica, at_end = self._replica, True
        for each in asked:
            each.reply(_seen(each, replica, now))

    async def _won(self, place: int) -> None:
        """A place can be won that was deleted meanwhile, or that comes after what the store has forgotten: then nobody
        will heed what is there."""
        overtaken, before = await asyncio.gather(self._log.overtaken(place - 1), self._log.id_at(place - 1))
        if overtaken or before != self._replica.last:
            await self._reload()
            raise StorageUnavailable(
                "this process stood still while the log went on, or the store has forgotten the end of it; it is not "
                "known whether the last call was applied"
            )

    def _apply_own(self, entry: Entry, writing: list[_Asked]) -> list[Any]:
        replica, tables = self._replica, self._replica.copy.tables
        tables.called.clear()
        answers = replica.apply(entry, tuple(each.op for each in writing if each.op is not None))
        self._wakeups.ring(tables.called)
        tables.called.clear()
        self._wakeups.took(sum(map(_taken, answers)))
        self._tell()
        self._tidy_up()
        return answers

    async def _set_beside(self, asked: _Asked) -> tuple[str, int]:
        """What is too long for one value, stored beside the log before the entry that needs it."""
        name, parts = uuid4().hex, pieces(f"[{asked.text.decode()}]", self._piece)
        await self._append_now(log_entries.Announce(name, len(parts)))
        await self._log.write_parts(name, parts)
        return name, len(parts)

    async def _append_now(self, op: Op) -> None:
        """An entry of our own, made within a step."""
        while True:
            entry = Entry(uuid4().hex, await self._time(), log_entries.RULES, self._replica.last, (op,))
            if await self._log.append(self._replica.position + 1, as_text(entry), entry.id):
                await self._won(self._replica.position + 1)
                self._replica.apply(entry)
                return
            await self._catch_up()

    # --- following the log

    async def _catch_up(self) -> None:
        """Take every entry there is."""
        width = 1
        while True:
            found = await self._log.read_on(self._replica.position, width)
            lost = not await self._take(found)
            self._replica.copy.tables.called.clear()  # whoever wrote the entry rings
            if lost or (len(found) < width and await self._log.overtaken(self._replica.position)):
                await self._reload()
                width = 1
            elif len(found) == width:
                width = min(2 * width, AHEAD)
            elif width == 1:
                return
            else:
                width = 1

    async def _take(self, entries: list[Entry]) -> bool:
        """Apply these. False: what the copy stands on is not in the log any more."""
        replica = self._replica
        for entry in entries:
            if entry.after != replica.last and await self._log.id_at(replica.position) != replica.last:
                return False
            replica.apply(entry)
        return True

    async def _reload(self) -> None:
        """Begin again with the newest base."""
        for _ in range(RELOADS):
            number, base = await self._log.find_base()
            text = await self._log.read_parts(base.name, base.parts) if number else ""
            if text is not None:
                break
            await asyncio.sleep(0)  # there is a newer one by now
        else:
            raise StorageUnavailable(
                f"the newest base of {self.namespace!r} (number {number}) names parts that the store does not have; "
                "it has lost acknowledged values, or its keys expire: restore it from a backup"
            )
        fresh = Replica(self._waiters)
        if number:
            fresh.read(text, base)
        self._log.number, self._log.base, self._replica = number, base, fresh
        self._waiters.speak(list(self._waiters.topics))  # nobody knows what happened in between

    def _tidy_up(self) -> None:
        behind = self._replica.position - self._log.base.position
        if behind >= max(self._every, len(self._replica.copy.tables.jobs)) and not self._tidying:
            self._tidying = True
            self._start(self._rebase)

    async def _rebase(self) -> None:
        try:
            await compaction.rebase(self._log, self._replica, self._ask, self._piece)
        finally:
            self._tidying = False

    # --- telling others

    @property
    def _channel(self) -> str:
        return f"{self.namespace}:log"

    def _tell(self) -> None:
        if not self._telling:
            self._telling = True
            self._start(self._publish)

    async def _publish(self) -> None:
        self._telling = False  # what happens from now on is told again
        await self._pubsub(self._pubsub.port.publish, self._channel, str(self._replica.position))

    async def _listen(self) -> None:
        """Be told when others go on with the log. Tried again by whoever watches, until it comes off."""
        if self._end_listening is not None or self._listening:
            return
        self._listening = True
        try:
            self._end_listening = await self._pubsub(self._pubsub.port.subscribe, self._channel, self._hear)
        except StorageUnavailable as error:
            logger.warning("nobody tells this process of new jobs, it looks for itself: %s", error)
        finally:
            self._listening = False

    def _hear(self, text: str) -> None:
        """Somebody went on with the log. A text that is no place in it is not from us."""
        if self._is_open and not self._hearing and text.isdigit() and int(text) > self._replica.position:
            self._hearing = True
            self._start(self._follow)

    async def _follow(self) -> None:
        try:
            await self._look(lambda replica, now: None)
        finally:
            self._hearing = False

    def _start(self, work: Callable[[], Awaitable[None]]) -> None:
        task = started(_quietly(work))  # or a task that is cancelled before it began would be "under way" for ever
        self._beside.add(task)
        task.add_done_callback(self._beside.discard)

    # --- time

    async def _time(self) -> float:
        """Now, and never a little earlier than the last entry: clocks differ by moments."""
        own = self._clock() if self._clock is not None else await self._store_time()
        last = self._replica.at
        return last if own < last <= own + SKEW else own

    async def _store_time(self) -> float:
        if not self._store.has("now"):
            return clock.wall()
        here = clock.monotonic()
        if self._read_at is None or here - self._read_at[0] > SYNC:
            there = float(await self._store(self._store.port.now))
            self._read_at = (here + clock.monotonic()) / 2, there
        return self._read_at[1] + clock.monotonic() - self._read_at[0]


def _seen(asked: _Asked, replica: Replica, now: float) -> Any:
    try:
        return asked.look(replica, now) if asked.look is not None else None
    except StorageError as error:
        return error
    except Exception as error:  # a wrong cursor, and the like
        return error


def _taken(answer: Any) -> int:
    """How many jobs an answer handed out."""
    claimed = answer[1] if isinstance(answer, tuple) and len(answer) == 2 else answer
    return len(claimed.records) if isinstance(claimed, Claimed) else 0


async def _quietly(work: Callable[[], Awaitable[None]]) -> None:
    try:
        await work()
    except StorageError as error:
        logger.debug("beside the calls: %s", error)
