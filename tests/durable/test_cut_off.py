"""Waits that are cancelled in the moment in which their entry is being stored: nothing that they took is lost."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from tests.durable.kit import AGAIN
from tests.kit import Spy, work
from tests.waiting import turn
from treadle import App, Signalled, State, current
from treadle.storage.contract import Storage
from treadle.testing import HandClock, drain
from treadle_testkit.shows import shows

WAITS: dict[str, Callable[[], Any]] = {
    "receive": lambda: current().receive("a"),
    "wait_for": lambda: current().wait_for("a"),
    "receive_ask": lambda: current().receive_ask("a"),
    "first": lambda: current().first(a=current().receive("a"), late=current().sleep(3600)),
    "first of first": lambda: current().first(b=current().first(a=current().receive("a")), late=current().sleep(3600)),
}


class Storing:
    """Stops the first call that stores an entry of a wait: `begun` is set in this call, which continues when the
    branch that it cuts off is cancelled."""

    def __init__(self, spy: Spy, patch: pytest.MonkeyPatch, key: str, first: bool) -> None:
        """`first`: the call has stored the entry when `begun` is set."""
        self.begun, self.cut = asyncio.Event(), asyncio.Event()
        around = spy.around

        async def stopped(verb: str, call: Callable[[Storage], Any]) -> Any:
            if verb != "heartbeat" or self.begun.is_set() or not self._is_of(key):
                return await around(verb, call)
            answer = await around(verb, call) if first else None
            self.begun.set()
            await self.cut.wait()
            return answer if first else await around(verb, call)

        self._is_of = lambda key: any(key in entry for entry in self.unsaved)
        self.unsaved: dict[str, str] = {}
        patch.setattr(spy, "around", stopped)

    async def cut_off(self, work: Any) -> None:
        """Await this in a group whose other branch fails while the entry is being stored."""
        if not self.begun.is_set():
            self.unsaved = current()._durably().checkpoints.unsaved

        is_again = self.begun.is_set()

        async def fails() -> None:
            await turn(50 if is_again else 0)  # a later run has the time to take another path
            await self.begun.wait()
            raise ValueError("the other branch")

        async def cut() -> None:
            try:
                await work
            except asyncio.CancelledError:
                self.cut.set()
                raise

        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(cut())
                group.create_task(fails())
        except* ValueError:
            pass


@shows("a message is not lost if its receive is cancelled while it is being stored")
@pytest.mark.parametrize("first", [True, False], ids=["stored", "not stored"])
@pytest.mark.parametrize("kind", WAITS)
async def test_a_message_is_left_for_the_next_receive(
    app: App, spy: Spy, clock: HandClock, kind: str, first: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    key = "first" if "first" in kind else "wait:a" if kind == "wait_for" else "receive:a"
    storing = Storing(spy, monkeypatch, key, first)
    seen: list[Any] = []

    @app.task(retry=AGAIN)
    async def t() -> list[Any]:
        here = current()
        await storing.cut_off(WAITS[kind]())
        await here.sleep(60)
        seen.append("again")
        again = [await here.wait_for("a") if kind == "wait_for" else await here.receive("a")]
        if kind != "wait_for":
            again.append(await here.receive("a"))
        await here.sleep(60)
        return again

    job = await t.enqueue()
    if kind == "wait_for":
        await app.jobs.signal(job, "a", 1)
    else:
        await app.jobs.send(job, "a", 1)
        await app.jobs.send(job, "a", 2)
    await drain(app)
    if kind == "wait_for":
        with pytest.raises(Signalled):
            await app.jobs.signal(job, "a", 2)
    for _ in range(2):
        clock.advance(61)
        await drain(app)
    assert await job.result(0) == ([1] if kind == "wait_for" else [1, 2])
    assert len(seen) == 2


async def test_a_message_is_left_for_a_receive_of_the_next_round(
    app: App, spy: Spy, clock: HandClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    storing = Storing(spy, monkeypatch, "receive:a", True)

    @app.task
    async def t(begun: bool = False) -> int:
        here = current()
        if not begun:
            await storing.cut_off(here.receive("a"))
            await here.restart(True)
        return int(await here.receive("a"))

    job = await t.enqueue()
    await app.jobs.send(job, "a", 1)
    await drain(app)
    assert await job.result(0) == 1


async def test_a_message_is_left_if_another_branch_has_received_the_next_one(
    app: App, spy: Spy, clock: HandClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    storing = Storing(spy, monkeypatch, "receive:a", True)

    @app.task
    async def t() -> list[int]:
        here = current()
        waits = [here.receive("a") for _ in range(40)]

        async def others() -> list[int]:
            await storing.begun.wait()
            return [await wait for wait in waits[1:]]

        _, received = await asyncio.gather(storing.cut_off(waits[0]), others())
        await here.sleep(60)
        return [*received, await here.receive("a")]

    job = await t.enqueue()
    for number in range(40):
        await app.jobs.send(job, "a", number)
    await drain(app)
    clock.advance(61)
    while await spy.inner.prune(1_000):
        pass
    await drain(app)
    assert await job.result(0) == [*range(1, 40), 0]


@shows("two branches that receive from one mailbox at the same time receive different messages")
async def test_two_branches_receive_different_messages(app: App) -> None:
    @app.task
    async def t() -> list[int]:
        here = current()
        waits = [here.receive("a"), here.receive("a"), here.wait_for("a")]
        return list(await asyncio.gather(*waits))

    job = await t.enqueue()
    for number in (1, 2, 3):
        await app.jobs.send(job, "a", number)
    await drain(app)
    assert sorted(await job.result(0)) == [1, 2, 3]


async def test_the_result_of_a_child_that_is_being_stored(
    app: App, spy: Spy, clock: HandClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The cut is decided once: a later run is cut off again, although its child has ended."""
    storing = Storing(spy, monkeypatch, "call:", True)

    @app.task
    async def child() -> int:
        return 1

    @app.task
    async def t() -> str:
        here = current()
        await storing.cut_off(here.call(child.job()))
        await here.sleep(60)
        return "cut off"

    job = await t.enqueue()
    await drain(app)
    clock.advance(61)
    await drain(app)
    assert await job.result(0) == "cut off"


async def test_a_look_that_ends_after_its_wait_was_cut_off(
    app: App, spy: Spy, clock: HandClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run that keeps its slot looks at its waits. A look must not receive a message for a wait that has gone."""
    parked, cut, looks, sent = asyncio.Event(), asyncio.Event(), asyncio.Event(), asyncio.Event()
    around = spy.around

    async def stopped(verb: str, call: Callable[[Storage], Any]) -> Any:
        answer = await around(verb, call)
        if verb == "get" and not parked.is_set():
            parked.set()  # the first look has found nothing
        if verb == "get" and sent.is_set() and not cut.is_set():
            looks.set()
            await cut.wait()
        return answer

    monkeypatch.setattr(spy, "around", stopped)

    async def cut_off() -> int:
        here = current()

        async def fails() -> None:
            await looks.wait()
            raise ValueError

        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(here.receive("a"))
                group.create_task(fails())
        except* ValueError:
            pass
        await here.step("decided", cut.set)
        await here.sleep(60)
        return int(await here.receive("a"))

    @app.task
    async def t() -> int:
        both = await asyncio.gather(cut_off(), current().sleep(10, name="other"))
        return both[0]

    async with work(app, concurrency=1):
        job = await t.enqueue()
        await parked.wait()
        await app.jobs.send(job, "a", 1)
        sent.set()
        await spy.until(cut.is_set, "the cut is decided")
    clock.advance(61)
    await drain(app)
    row = await app.jobs.get(job)
    assert row.state is State.SUCCEEDED, row
    assert await job.result(0) == 1


async def test_a_branch_is_cut_off_again_although_its_time_has_passed_since(app: App, clock: HandClock) -> None:
    failing = True

    async def fail() -> None:
        if failing:
            raise ValueError

    @app.task(retry=AGAIN)
    async def t() -> list[str]:
        here, seen = current(), list[str]()

        async def waits() -> None:
            try:
                async with here.timeout(30):
                    await here.wait_for("never")
            except TimeoutError:
                seen.append("late")
                await here.step("late", seen.append, "step")

        async def fails() -> None:
            await turn(0 if failing else 50)  # a later run has the time to take another path
            await here.step("fail", fail)

        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(waits())
                group.create_task(fails())
        except* ValueError:
            seen.append("cut off")
        await here.sleep(60)
        return seen

    job = await t.enqueue()
    await drain(app)
    failing = False
    clock.advance(61)
    await drain(app)
    assert await job.result(0) == ["cut off"]


async def test_a_time_limit_that_passes_while_its_block_is_cut_off(
    app: App, spy: Spy, clock: HandClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    storing = Storing(spy, monkeypatch, "timeout", True)

    @app.task(retry=AGAIN)
    async def t() -> list[str]:
        here, seen = current(), list[str]()

        async def waits() -> None:
            try:
                async with here.timeout(0):
                    await here.wait_for("never")
            except TimeoutError:
                seen.append("late")

        await storing.cut_off(waits())
        await here.sleep(60)
        return seen

    job = await t.enqueue()
    await drain(app)
    clock.advance(61)
    await drain(app)
    assert await job.result(0) == []
