"""Each verb with its request lost, its answer lost, cut in the middle, or never arriving, through the real driver.

A call may lose any of its packets: the caller gets StorageUnavailable or the answer and never waits for ever, and the
repeated call has the effect of one call.
"""

from __future__ import annotations

import asyncio
import itertools
import os
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from tests.faults.stages import SERVED, Stage, be_patient, staged
from treadle import StorageUnavailable
from treadle.core.limit_model import Limit
from treadle.core.model import Claim, HeartbeatResult, LeaseRenewal, NewJob, Outcome, Presence, Record, Settled, State
from treadle.core.query_model import Query
from treadle.storage import connect
from treadle.storage.contract import Storage
from treadle.testing import HandClock
from treadle_testkit.proxy import Proxy

WITHIN = 30.0  # seconds for one call: only a call that hangs takes so long
SHORT = 0.15  # seconds to wait for an answer that does not arrive

HOW = {
    "request": lambda proxy, call: proxy.lose_request(call=call),
    "answer": lambda proxy, call: proxy.lose_answer(call=call),
    "half": lambda proxy, call: proxy.lose_answer(call=call, after=7),
    "silence": lambda proxy, call: proxy.silence(call=call),
}
_names = (f"v{os.getpid()}-{n}" for n in itertools.count())


class Scene:
    """The rows that a verb finds: job `a` runs under version 1, `b` is queued, `old` has ended and may be pruned.

    `storage`    the storage whose network fails
    `beside`     the same storage over a network that works
    """

    def __init__(self, storage: Storage, beside: Storage) -> None:
        self.storage, self.beside = storage, beside
        self.queue = next(_names)
        self.a, self.b, self.c, self.old = (f"{self.queue}-{name}" for name in ("a", "b", "c", "old"))
        self.row: Record

    def job(self, id: str, **options: Any) -> NewJob:
        return NewJob(id=id, task="t", queue=self.queue, **options)

    def ask(self, claim_id: str) -> Claim:
        return Claim(worker=f"{self.queue}#{claim_id}", queues=((self.queue, 1),), lease=1_000.0)

    async def set(self) -> None:
        storage = self.beside
        await storage.enqueue([self.job(self.old)])
        [row] = (await storage.claim(self.ask("old"))).records
        await storage.settle([Outcome(id=row.id, version=row.version, state=State.SUCCEEDED, keep=0.0)])
        await storage.enqueue([self.job(self.a)])
        [self.row] = (await storage.claim(self.ask("a"))).records
        await storage.enqueue([self.job(self.b)])

    def done(self) -> Outcome:
        more = (self.job(self.c),)
        return Outcome(
            id=self.a, version=self.row.version, state=State.SUCCEEDED, attempt=1, result="1", followups=more
        )

    async def states(self) -> dict[str, tuple[State, int]]:
        ids = (self.a, self.b, self.c)
        rows = [row for row in await self.beside.get(ids) if row is not None]
        return {row.id[-1]: (row.state, row.version) for row in rows}


async def enqueue(it: Scene) -> Any:
    rows = await it.storage.enqueue([it.job(it.c, key=it.queue), it.job(f"{it.c}2", after=(it.c,))])
    return [row.id[-1] for row in rows]


async def claim(it: Scene) -> Any:
    return [(row.id[-1], row.version) for row in (await it.storage.claim(it.ask("b"))).records]


async def heartbeat(it: Scene) -> Any:
    renewal = LeaseRenewal(it.a, it.row.version, (("step", "1"),), "half")
    return await it.storage.heartbeat(Presence(worker=it.queue), [renewal], 1_000.0)


async def settle(it: Scene) -> Any:
    return await it.storage.settle([it.done()])


async def settle_claim(it: Scene) -> Any:
    settled, claimed = await it.storage.settle_claim([it.done()], it.ask("b"))  # type: ignore[attr-defined]
    return settled, [(row.id[-1], row.version) for row in claimed.records]


async def get(it: Scene) -> Any:
    return [row and row.id[-1] for row in await it.storage.get([it.a, "nobody", it.b])]


async def find(it: Scene) -> Any:
    page = await it.storage.find(Query(queue=it.queue, state=(State.RUNNING, State.READY), count=True))
    return page.total, sorted(row.id[-1] for row in page.records)


async def stats(it: Scene) -> Any:
    return sorted((str(each.state), each.jobs) for each in (await it.storage.stats()).counts if each.queue == it.queue)


async def set_limits(it: Scene) -> Any:
    await it.storage.set_limits([Limit(it.queue, slots=3)])
    return [use.rule.slots for use in (await it.storage.stats()).limits if use.key == it.queue]


async def prune(it: Scene) -> Any:
    await it.storage.prune(100)
    return await it.storage.get([it.old])


async def watch(it: Scene) -> Any:
    """A hint may be missed, but a wait must not hang or raise another error."""
    await it.storage.watch([f"queue:{it.queue}"], 0.01)


APPLIED = [Settled("applied")]
A, B, C = "a", "b", "c"
READY, RUNNING, SUCCEEDED = State.READY, State.RUNNING, State.SUCCEEDED
BEFORE = {A: (RUNNING, 1), B: (READY, 0)}
AFTER: dict[Callable[[Scene], Awaitable[Any]], tuple[Any, dict[str, Any]]] = {
    enqueue: (["c", "2"], {**BEFORE, C: (READY, 0)}),
    claim: ([("b", 1)], {**BEFORE, B: (RUNNING, 1)}),
    heartbeat: (HeartbeatResult(), BEFORE),
    settle: (APPLIED, {A: (SUCCEEDED, 2), B: (READY, 0), C: (READY, 0)}),
    settle_claim: ((APPLIED, [("b", 1)]), {A: (SUCCEEDED, 2), B: (RUNNING, 1), C: (READY, 0)}),
    get: (["a", None, "b"], BEFORE),
    find: ((2, ["a", "b"]), BEFORE),
    stats: ([("ready", 1), ("running", 1), ("succeeded", 1)], BEFORE),
    set_limits: ([3], BEFORE),
    prune: ([None], BEFORE),
    watch: (None, BEFORE),
}


WAITING = (enqueue, settle_claim, find)  # silence is tested for some verbs only, because each test waits for a timeout


@pytest.mark.parametrize("verb", AFTER, ids=lambda verb: verb.__name__)
@pytest.mark.parametrize("kind", SERVED, ids=lambda kind: kind.name)
async def test_a_call_that_is_cut(
    kind: type[Stage], verb: Callable[[Scene], Awaitable[Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = HandClock()
    async with staged(kind, shared=True) as stage:
        storage, beside = connect(stage.url, now=clock), connect(stage.direct, now=clock)
        await storage.open()
        await beside.open()
        try:
            for how in HOW if verb in WAITING else ("request", "answer", "half"):
                if how == "silence":
                    be_patient(kind, monkeypatch, SHORT)
                    stage.impatient(storage, SHORT)
                packets = 0
                while await cut_at(stage.proxy, how, packets + 1, verb, Scene(storage, beside), clock):
                    packets += 1
                assert packets or verb is watch, "nothing was sent"
        finally:
            await storage.close()
            await beside.close()


async def cut_at(
    proxy: Proxy, how: str, packet: int, verb: Callable[[Scene], Awaitable[Any]], it: Scene, clock: HandClock
) -> bool:
    """Cut one packet of a call, and check that it does no harm. False: the call has fewer packets."""
    await it.set()
    clock.advance(120)  # so that `old` may be pruned
    await it.storage.get([it.a])  # so that there is a connection
    cut = HOW[how](proxy, packet)
    await answers(it, verb)
    proxy.forget()
    await as_if_called_once(it, verb)
    return cut.done


async def answers(it: Scene, verb: Callable[[Scene], Awaitable[Any]]) -> None:
    """Repeat the call until there is an answer, which must be that of one call."""
    async with asyncio.timeout(WITHIN):
        while True:
            try:
                assert await verb(it) == AFTER[verb][0]
                return
            except StorageUnavailable:
                continue


async def as_if_called_once(it: Scene, verb: Callable[[Scene], Awaitable[Any]]) -> None:
    """The stored rows are those of one call, and another call changes nothing."""
    answered, states = AFTER[verb]
    assert await it.states() == states
    assert await verb(it) == answered
    assert await it.states() == states
