"""An outcome for which the storage raises an error fails alone, with that reason; the other outcomes are stored."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, TypeVar

import pytest

from tests.kit import Spy, Told, work
from tests.served import host
from treadle import App, Flow, JobFailed, JobSpec, Redrive, Retry, StorageError, flow
from treadle.core.model import Claim, Claimed, Outcome, Settled
from treadle.server import Settings
from treadle.storage.contract import Capabilities, Storage
from treadle.testing import HandClock

T = TypeVar("T")


class Choosy(Spy):
    """Raises the error of a server for a value that it cannot store, in each call that has a child of the task
    `poison`."""

    def __init__(self, inner: Storage) -> None:
        super().__init__(inner)
        self.broken = 0  # how many calls fail, whatever they contain

    async def around(self, verb: str, call: Callable[[Storage], Awaitable[T]]) -> T:
        if self.broken > 0 and verb in ("settle", "claim", "get"):
            self.broken -= 1
            raise StorageError("permission denied for table job")
        return await super().around(verb, call)

    async def settle(self, outcomes: Sequence[Outcome]) -> list[Settled]:
        if any(job.task == "poison" for out in outcomes for job in out.followups):
            self.calls["poisoned"] += 1
            raise StorageError("value out of range: poison")
        return await super().settle(outcomes)


class Fusing(Choosy):
    capabilities = Capabilities(settle_claim=True)

    async def settle_claim(self, outcomes: Sequence[Outcome], ask: Claim) -> tuple[list[Settled], Claimed]:
        return await self.settle(outcomes), await self.claim(ask)


@pytest.mark.parametrize("kind", [Choosy, Fusing])
async def test_an_outcome_that_raises_fails_alone(storage: Storage, clock: HandClock, kind: type[Choosy]) -> None:
    choosy = kind(storage)
    async with App(storage=choosy, clock=clock, retry=Retry(attempts=1)) as app:

        @app.task(name="poison")
        async def poison() -> None: ...

        @app.task(name="parent")
        async def parent() -> JobSpec[None]:
            return poison.job()

        @app.task(name="other")
        async def other(n: int) -> int:
            return n

        async with work(app, concurrency=4):
            bad = await parent.enqueue()
            jobs = [await other.enqueue(n) for n in range(8)]
            assert [await job.result(30) for job in jobs] == list(range(8))
            with pytest.raises(JobFailed, match="value out of range: poison"):
                await bad.result(30)
            assert await (await other.enqueue(9)).result(30) == 9
    assert choosy.calls["poisoned"] <= 2  # with others, then alone


async def test_a_storage_that_refuses_everything_for_a_while_costs_no_result(
    storage: Storage, clock: HandClock
) -> None:
    choosy = Choosy(storage)
    async with App(storage=choosy, clock=clock, retry=Retry(attempts=1)) as app:
        told, gate = Told(app), asyncio.Event()

        @app.task(name="waits")
        async def waits() -> str:
            await gate.wait()
            choosy.broken = 9
            return "kept"

        async with work(app, concurrency=2, recovery=Retry(attempts=None, base=0.01, max=0.02)):
            job = await waits.enqueue()
            gate.set()
            await told.until("worker.recovered")
            assert await job.result(30) == "kept"
        assert not told.of("failed")


async def test_over_http_an_outcome_larger_than_a_request_fails_alone_and_is_not_sent() -> None:
    async with App(host().add(App("memory://"), Settings(max_body=40_000)), retry=Retry(attempts=1)) as app:

        @app.task(name="kid")
        async def kid(text: str) -> None: ...

        @app.task(name="parent")
        async def parent() -> Flow[None]:
            return flow([kid.job("x" * 9_000) for _ in range(6)])

        @app.task(name="other")
        async def other(n: int) -> str:
            return "y" * 15_000  # three of them are more than a request may have

        async with work(app, concurrency=4):
            bad = await parent.enqueue()
            jobs = [await other.enqueue(n) for n in range(6)]
            assert [len(await job.result(30)) for job in jobs] == [15_000] * 6
            with pytest.raises(JobFailed, match="the server accepts 40,000"):
                await bad.result(30)


@pytest.mark.parametrize("loop", ["backlog", "redrive"])
async def test_each_outage_in_a_side_loop_is_reported_as_over(app: App, spy: Spy, told: Told, loop: str) -> None:
    gate = asyncio.Event()

    @app.task(name="waits")
    async def waits() -> None:
        await gate.wait()

    verb = "glance" if loop == "backlog" else "find"
    options: dict[str, Any] = {"on_backlog": lambda backlog: None, "backlog_after": 0.01, "backlog_every": 0.01}
    if loop == "redrive":
        options = {"redrive": Redrive(every=0.01)}
    async with work(app, concurrency=1, recovery=Retry(attempts=None, base=0.01), **options):
        if loop == "backlog":
            await app.enqueue([waits.job() for _ in range(4)])
        for times in (1, 2, 3):
            spy.away[verb] = 2
            await told.until("worker.error", times)
            await told.until("worker.recovered", times)
        gate.set()
