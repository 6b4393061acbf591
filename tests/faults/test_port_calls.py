"""Every single call of a port fails once, in every way, during every transition of a job.

The result must be the same as without any fault: the same rows, with the same versions and times. The caller repeats
its call, as the engine does; if the process dies, another one continues with the contents of the store.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import msgspec
import pytest

from tests.faults.breaking_ports import HOWS, Breaking, How
from treadle.core.limit_model import Limit
from treadle.core.model import State
from treadle.core.query_model import Query
from treadle.errors import StorageUnavailable
from treadle.ports import memory_backend
from treadle.storage.composed import ComposedStorage, log
from treadle.storage.contract import Storage
from treadle.storage.memory import MemoryStorage
from treadle.testing import HandClock
from treadle_testkit.conformance.kit import back, beat, claim_one, done, failed, job, jobs, out, renewal, row, settle
from treadle_testkit.shows import shows

pytestmark = pytest.mark.slow

PATIENCE = 0.01  # seconds; only a lost answer takes this long

Scenario = Callable[[Any, HandClock], Awaitable[None]]


async def enqueue(storage: Any, clock: HandClock) -> None:
    """Enqueue many jobs at once, with keys and edges among them: all or none."""
    await storage.enqueue([*jobs("a b c", key="k", key_conflict="replace"), job("d", after=("a", "c"))])
    await storage.enqueue(jobs("e f", delay=30, payload='"' + "long" * 300 + '"'))


async def claim(storage: Any, clock: HandClock) -> None:
    await storage.set_limits([Limit("one", slots=1)])
    await storage.enqueue(jobs("a b c", limits=(("one", 1),)))
    first = await claim_one(storage)
    await beat(storage, renewal(first, note="half"))
    await settle(storage, done(first))
    await claim_one(storage)


async def retry(storage: Any, clock: HandClock) -> None:
    await storage.enqueue([job("a")])
    await settle(storage, back(await claim_one(storage), 5, attempt=1, error="boom"))
    clock.advance(5)
    await settle(storage, done(await claim_one(storage), attempt=1, result="1"))


async def defer(storage: Any, clock: HandClock) -> None:
    await storage.enqueue([job("a", key="k")])
    await settle(storage, back(await claim_one(storage), 60))
    clock.advance(60)
    await settle(storage, back(await claim_one(storage)))
    await settle(storage, done(await claim_one(storage)))


async def children(storage: Any, clock: HandClock) -> None:
    await storage.enqueue([job("p")])
    parent = await claim_one(storage)
    born = tuple(jobs("x y", parent="p", root="p"))
    await settle(storage, out(parent, State.WAITING, function_done=True, followups=born, after=("x", "y")))
    await settle(storage, done(await claim_one(storage)), done(await claim_one(storage)))


async def fan_in(storage: Any, clock: HandClock) -> None:
    await storage.enqueue([*jobs("a b c"), job("end", after=("a", "b", "c"), required=2, failures_allowed=1)])
    await settle(storage, done(await claim_one(storage)))
    await settle(storage, failed(await claim_one(storage)))
    await settle(storage, done(await claim_one(storage)))
    await settle(storage, done(await claim_one(storage)))


async def workflow_end(storage: Any, clock: HandClock) -> None:
    await children(storage, clock)
    parent = await claim_one(storage)
    assert parent.job.id == "p"
    assert parent.function_done
    await settle(storage, done(parent, value="[1,2]"))


async def dead_letter(storage: Any, clock: HandClock) -> None:
    await storage.enqueue([job("a", key="k"), job("b", after=("a",)), job("c", after=("b",))])
    await settle(storage, failed(await claim_one(storage), attempt=3))


async def lost_worker(storage: Any, clock: HandClock) -> None:
    await storage.enqueue([job("a")])
    await claim_one(storage, lease=10.0)
    clock.advance(11)
    await settle(storage, done(await claim_one(storage)))


async def retry_of_a_dead_job(storage: Any, clock: HandClock) -> None:
    await dead_letter(storage, clock)
    await settle(storage, back(await row(storage, "a")))
    for _ in "abc":
        await settle(storage, done(await claim_one(storage)))


async def schedule_tick(storage: Any, clock: HandClock) -> None:
    await storage.enqueue([job("cron:s", delay=60)])
    for tick in (1, 2):
        clock.advance(60)
        schedule = await claim_one(storage)
        assert schedule.job.id == "cron:s"
        await settle(
            storage, back(schedule, 60, followups=(job(f"cron:s:{tick}"),), checkpoints=(("cursor", str(tick)),))
        )
        await settle(storage, done(await claim_one(storage)))


async def pruning(storage: Any, clock: HandClock) -> None:
    await storage.enqueue(jobs("a b", keep=60))
    await settle(storage, done(await claim_one(storage)))
    clock.advance(100)
    await storage.prune(10)


SCENARIOS: list[Scenario] = [
    enqueue,
    claim,
    retry,
    defer,
    children,
    fan_in,
    workflow_end,
    dead_letter,
    lost_worker,
    retry_of_a_dead_job,
    schedule_tick,
    pruning,
]


class Caller:
    """Calls the storage like the engine: again if the result of a call is unknown, and on another process after a
    death."""

    def __init__(self, make: Callable[[], ComposedStorage], died: asyncio.Event) -> None:
        self._make, self._died = make, died
        self._storage = make()
        self.deaths = 0

    def __getattr__(self, verb: str) -> Any:
        async def call(*args: Any) -> Any:
            for _ in range(20):
                asked = asyncio.ensure_future(getattr(self._storage, verb)(*args))
                death = asyncio.ensure_future(self._died.wait())
                waited = {asked} if self.deaths else {asked, death}
                await asyncio.wait(waited, return_when=asyncio.FIRST_COMPLETED)
                death.cancel()
                if not asked.done():
                    asked.cancel()
                    await self._die()
                    continue
                try:
                    return asked.result()
                except StorageUnavailable:
                    continue
            raise AssertionError(f"{verb} never succeeded")

        return call

    async def _die(self) -> None:
        """Stop everything of that process, without closing anything."""
        self.deaths += 1
        await abandon(self._storage)
        self._storage = self._make()
        await self._storage.open()


async def abandon(storage: ComposedStorage) -> None:
    """Stop it as if its process had died: finish, release and publish nothing."""
    storage._is_open, storage._notifier._unsubscribe = False, None
    await storage._wakeups.abandon()
    for task in storage._beside:
        task.cancel()
    groups = storage._groups
    waiting, step = groups._waiting, groups._task
    groups._drop()
    groups._refuse(waiting, "its process died")
    if step is not None:
        step.cancel()
        await asyncio.wait([step])
    await asyncio.gather(*storage._beside, return_exceptions=True)


async def rows(storage: Storage | Caller) -> list[Any]:
    page = await storage.find(Query(order="oldest", limit=100))
    return [msgspec.to_builtins(msgspec.structs.replace(record, worker=None)) for record in page.records]


async def expected(scenario: Scenario) -> list[Any]:
    clock = HandClock()
    storage = MemoryStorage(clock)
    await scenario(storage, clock)
    return await rows(storage)


async def with_fault(scenario: Scenario, number: int, how: How, every: int) -> tuple[bool, list[Any]]:
    """Whether that call was ever made, and the rows in the end, as another process reads them."""
    clock = HandClock()
    backend = memory_backend(clock)
    breaking = Breaking(backend, number, how)
    made: list[ComposedStorage] = []

    def make() -> ComposedStorage:
        ports = backend if made else breaking.ports
        made.append(ComposedStorage(ports, now=clock, every=every, piece=700, patience=PATIENCE))
        return made[-1]

    caller = Caller(make, breaking.died)
    await caller.open()
    await scenario(caller, clock)
    seen = await rows(caller)
    looking = ComposedStorage(backend, now=clock)
    await looking.open()
    found = await rows(looking)
    assert found == seen
    await looking.close()
    for each in made:
        await abandon(each)
    return breaking.happened, found


def sweep(scenario: Scenario, every: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(log, "PAUSE", 0.0)
    wanted, cases = asyncio.run(expected(scenario)), 0
    for how in HOWS:
        number, happened = 1, True
        while happened:
            happened, found = asyncio.run(with_fault(scenario, number, how, every))
            assert found == wanted, f"call {number} {how}"
            cases += happened
            number += 1
    with capsys.disabled():
        print(f"\n{scenario.__name__}, a base every {every} entries: {cases} faults", end="")
    assert cases > 50


@shows(
    "any call of a port may fail, hang or be the last of its process, and the jobs end as without the fault",
    area="Ports",
)
@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario.__name__)
def test_jobs_end_once_although_each_call_of_a_port_fails_once(
    scenario: Scenario, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    sweep(scenario, 1000, monkeypatch, capsys)


@pytest.mark.parametrize("scenario", [enqueue, children])
def test_no_job_is_lost_while_the_log_is_written_to_a_base(
    scenario: Scenario, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    sweep(scenario, 2, monkeypatch, capsys)


@pytest.mark.soak
@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario.__name__)
def test_no_job_is_lost_while_every_transition_writes_a_base(
    scenario: Scenario, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    sweep(scenario, 3, monkeypatch, capsys)
