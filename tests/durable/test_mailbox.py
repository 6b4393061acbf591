"""Mailboxes: messages in order, each received once; keys, bounds, questions with answers, and published values."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel

from tests import waiting
from tests.durable.kit import AGAIN, error_of
from tests.fixtures import KINDS, a_url
from tests.kit import Spy, work
from treadle import (
    App,
    AskRefused,
    BadOption,
    BadStep,
    IdTaken,
    MailboxFull,
    Retry,
    Stale,
    State,
    TooLarge,
    UnknownJob,
    current,
    flow,
)
from treadle.core import ids
from treadle.core.model import APPLIED, Outcome, Settled
from treadle.core.query_model import Query
from treadle.policy.cleanups import is_cleanup
from treadle.storage.contract import Storage
from treadle.storage.proxy import StorageProxy
from treadle.storage.urls import connect
from treadle.testing import HandClock, drain
from treadle.workflow.mailbox import ANSWER
from treadle.workflow.signals import SIGNAL, signal_id
from treadle_testkit.shows import shows


class Mood(Enum):
    CALM = "calm"


@dataclass
class Sum:
    total: int


class Approval(BaseModel):
    by: str


def adder(app: App, kind: str = "async") -> Any:
    """A task that receives numbers until one is 0, and returns all of them."""

    async def add() -> list[int]:
        here, numbers = current(), list[int]()
        while number := await here.receive("add", returns=int):
            numbers.append(number)
        return numbers

    def add_in_thread() -> list[int]:
        here, numbers = current().sync, list[int]()
        while number := here.receive("add", returns=int):
            numbers.append(number)
        return numbers

    return app.task(name="add")(add if kind == "async" else add_in_thread)


@shows("a job receives the messages of a mailbox in the order in which they were sent, each once")
@pytest.mark.parametrize("kind", ["async", "thread"])
async def test_messages_arrive_in_order_before_between_and_during_runs(app: App, kind: str) -> None:
    job = await adder(app, kind).enqueue()
    for number in range(1, 13):  # more than one read returns
        await app.jobs.send(job, "add", number)
    await drain(app)
    assert (await app.jobs.get(job)).state is State.WAITING
    for number in (13, 14):
        await app.jobs.send(job, "add", number)
    await drain(app)
    await app.jobs.send(job, "add", 15)
    await app.jobs.send(job, "add", 0)
    await drain(app)
    assert await job.result(0) == list(range(1, 16))


async def test_messages_are_received_once_over_failed_attempts_and_retries(app: App) -> None:
    @app.task(retry=AGAIN)
    async def t() -> list[int]:
        here = current()
        numbers = [await here.receive("a"), await here.receive("a")]
        if len(tries) < 2:
            tries.append(1)
            raise ValueError
        return [*numbers, await here.receive("a")]

    tries: list[int] = []
    job = await t.enqueue()
    for number in range(3):
        await app.jobs.send(job, "a", number)
    await drain(app)
    assert await job.result(0) == [0, 1, 2]


async def test_mailboxes_of_other_names_are_others(app: App) -> None:
    @app.task
    async def t() -> list[str]:
        here = current()
        return [await here.receive("b"), await here.receive("a"), await here.receive("b")]

    job = await t.enqueue()
    await app.jobs.send(job, "a", "a1")
    await drain(app)
    await app.jobs.send(job, "b", "b1")
    await app.jobs.send(job, "b", "b2")
    await drain(app)
    assert await job.result(0) == ["b1", "a1", "b2"]


async def test_a_receive_times_out_and_the_next_one_finds_what_came_in_between(app: App, clock: HandClock) -> None:
    @app.task
    async def t() -> list[Any]:
        here, values = current(), list[Any]()
        for timeout in (0, 60, 60, 0):
            try:
                values.append(await here.receive("a", timeout=timeout))
            except TimeoutError:
                values.append(None)
        return values

    job = await t.enqueue()
    await drain(app)
    clock.advance(61)
    await drain(app)
    await app.jobs.send(job, "a", 1)
    await app.jobs.send(job, "a", 2)
    await drain(app)
    assert await job.result(0) == [None, None, 1, 2]


@shows("a message that is sent again with its key is received once")
@pytest.mark.parametrize("waits", [False, True])
async def test_a_key_makes_a_send_idempotent(app: App, clock: HandClock, waits: bool) -> None:
    job = await adder(app).enqueue()
    if waits:
        await drain(app)
    await app.jobs.send(job, "add", 1, key="k")
    await app.jobs.send(job, "add", 1, key="k")
    await app.jobs.send(job, "add", 2, key="other")
    await drain(app)
    await app.jobs.send(job, "add", 1, key="k")
    await app.jobs.send(job, "add", 3)
    await app.jobs.send(job, "add", 0)
    await drain(app)
    assert await job.result(0) == [1, 2, 3]


@pytest.mark.parametrize("waits", [False, True])
async def test_of_many_concurrent_senders_each_is_received_once(app: App, waits: bool) -> None:
    job = await adder(app).enqueue()
    if waits:
        await drain(app)
    await asyncio.gather(
        *(app.jobs.send(job, "add", number) for number in range(1, 21)),
        *(app.jobs.send(job, "add", 100 + n % 2, key=f"k{n % 2}") for n in range(6)),
    )
    await app.jobs.send(job, "add", 0)
    await drain(app)
    assert sorted(await job.result(0)) == [*range(1, 21), 100, 101]


@shows("a mailbox holds 1,000 messages that wait, then a send raises MailboxFull")
async def test_a_mailbox_is_bounded(app: App, spy: Spy, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("treadle.core.defaults.MAX_MESSAGES", 70)
    job = await adder(app).enqueue()
    for number in range(1, 71):
        await app.jobs.send(job, "add", number)
    for _ in range(2):
        with pytest.raises(MailboxFull, match=r"the mailbox 'add' of job .* is full: 70 messages wait") as full:
            await app.jobs.send(job, "add", 71)
    assert (full.value.id, full.value.name, full.value.most) == (job.id, "add", 70)
    await drain(app)
    await app.jobs.send(job, "add", 71)
    await app.jobs.send(job, "add", 0)
    await drain(app)
    assert await job.result(0) == list(range(1, 72))


async def test_values_that_cannot_be_sent_are_refused(app: App) -> None:
    job = await adder(app).enqueue()
    with pytest.raises(UnknownJob):
        await app.jobs.send("nobody", "add", 1)
    with pytest.raises(BadStep):
        await app.jobs.send(job, "add#2", 1)
    with pytest.raises(BadOption, match="send"):
        await app.jobs.send(job, "add", object())
    with pytest.raises(BadOption, match=r"no annotation can name Mood here: pass plain data, such as value\.value"):
        await app.jobs.signal(job, "mood", Mood.CALM)
    with pytest.raises(BadOption, match=r"can name Sum here: pass .*, such as msgspec\.to_builtins\(value\)"):
        await app.jobs.send(job, "add", [Sum(1)])
    with pytest.raises(BadOption, match=r"name Approval here: pass .*, such as value\.model_dump\(mode='json'\)"):
        await app.jobs.ask(job, "add", {"by": Approval(by="ada")})
    with pytest.raises(BadOption, match="key"):
        await app.jobs.send(job, "add", 1, key="")
    with pytest.raises(TooLarge, match="the value of the send 'add'"):
        await app.jobs.send(job, "add", "x" * 2**20)
    await app.jobs.send(job, "add", 0)
    await drain(app)
    with pytest.raises(Stale, match="succeeded; it does not wait for 'add' any more"):
        await app.jobs.send(job, "add", 1)


def test_threads_send_and_read() -> None:
    app = App("memory://")
    job = app.sync.enqueue(adder(app).job())
    app.sync.jobs.send(job, "add", 0)
    with pytest.raises(TimeoutError, match="has published no value 'x' yet"):
        app.sync.jobs.value(job, "x")
    with pytest.raises(TimeoutError, match="has not answered 'add' in 0 s"):
        app.sync.jobs.ask(job, "add", 1, timeout=0)
    app.sync.close()


# --- costs


@shows("a send and a receive make the same number of calls however many messages were sent before")
async def test_the_calls_of_a_message_do_not_grow(app: App, spy: Spy) -> None:
    @app.task
    async def t(count: int = 0) -> int:
        here = current()
        for _ in range(40):
            if not await here.receive("a"):
                return count
            count += 1
        await here.restart(count)
        return 0

    async def cost(value: int, backlog: int) -> tuple[int, int]:
        """The calls of a send, and of the runs that receive it, with so many messages before it."""
        before = spy.calls.total()
        await app.jobs.send(job, "a", value)
        sent = spy.calls.total()
        if backlog:
            return sent - before, 0
        await drain(app)
        return sent - before, spy.calls.total() - sent

    job = await t.enqueue()
    await drain(app)
    first = await cost(1, 0)
    for _ in range(300):
        await app.jobs.send(job, "a", 1)
    full, _ = await cost(1, 300)
    await drain(app)
    for _ in range(3):
        assert (await cost(1, 0))[0] == first[0]
    assert full <= 5
    last = await cost(1, 0)
    assert last[1] <= first[1] + 2  # the last one of 32 releases their rows
    await app.jobs.send(job, "a", 0)
    await drain(app)
    assert await job.result(0) == 1 + 300 + 1 + 3 + 1


@shows("a job that lives for months keeps no rows of the messages that it has received")
async def test_received_messages_are_pruned_while_the_job_lives(app: App, spy: Spy, clock: HandClock) -> None:
    @app.task
    async def t(count: int = 0) -> int:
        here = current()
        for _ in range(50):
            if not await here.receive("a"):
                return count
            count += 1
        await here.restart(count)
        return 0

    job = await t.enqueue()
    for turn in range(10):
        for _ in range(30):
            await app.jobs.send(job, "a", 1)
        await drain(app)
        clock.advance(61)
        while await spy.inner.prune(1_000):
            pass
        rows = (await app.jobs.list(workflow=job.id, limit=1_000)).records
        assert len(rows) <= 32 + 2, f"turn {turn}"
    await app.jobs.send(job, "a", 0)
    await drain(app)
    assert await job.result(0) == 300


async def test_messages_that_wait_are_not_pruned(app: App, spy: Spy, clock: HandClock) -> None:
    job = await adder(app).options(delay=90 * 86_400).enqueue()
    await app.jobs.send(job, "add", 1)
    await app.jobs.send(job, "add", 0)
    for _ in range(3):
        clock.advance(30 * 86_400)
        while await spy.inner.prune(1_000):
            pass
    await drain(app)
    assert await job.result(0) == [1]


# --- questions


def cart(app: App, kind: str = "async") -> Any:
    async def cart(items: list[str] | None = None) -> list[str]:
        here, items = current(), items or []
        while True:
            ask = await here.receive_ask("add", returns=str)
            if ask.value == "checkout":
                await ask.answer(len(items))
                return items
            if ask.value in items:
                await ask.refuse(f"{ask.value} is in the cart")
            else:
                items.append(ask.value)
                await ask.answer(len(items))

    def cart_in_thread(items: list[str] | None = None) -> list[str]:
        here, items = current().sync, items or []
        while True:
            ask = here.receive_ask("add", returns=str)
            if ask.value == "checkout":
                ask.answer(len(items))
                return items
            if ask.value in items:
                ask.refuse(f"{ask.value} is in the cart")
            else:
                items.append(ask.value)
                ask.answer(len(items))

    return app.task(name="cart", retry=Retry(attempts=3, base=0))(cart if kind == "async" else cart_in_thread)


@shows("a question to a running job has one answer, a refusal, or an error as soon as the job has ended")
@pytest.mark.parametrize("kind", ["async", "thread"])
async def test_questions_are_answered_or_refused(app: App, kind: str) -> None:
    job = await cart(app, kind).enqueue()
    async with work(app, concurrency=2, poll=0.05):
        assert await app.jobs.ask(job, "add", "tea", timeout=30, returns=int) == 1
        assert await app.jobs.ask(job, "add", "milk", timeout=30, key="k") == 2
        assert await app.jobs.ask(job, "add", "milk", timeout=30, key="k") == 2
        with pytest.raises(AskRefused, match="refused the question 'add': tea is in the cart") as refused:
            await app.jobs.ask(job, "add", "tea", timeout=30)
        assert (refused.value.id, refused.value.name, refused.value.why) == (job.id, "add", "tea is in the cart")
        await app.jobs.send(job, "add", "sugar")
        assert await app.jobs.ask(job, "add", "checkout", timeout=30) == 3
        assert await job.result(30) == ["tea", "milk", "sugar"]
        with pytest.raises(Stale, match="succeeded"):
            await app.jobs.ask(job, "add", "late")


@pytest.mark.parametrize("ends", ["returns", "fails", "is cancelled"])
async def test_a_job_that_ends_without_an_answer_fails_the_asker_at_once(app: App, ends: str) -> None:
    @app.task(retry=Retry(attempts=1))
    async def t() -> None:
        await current().receive_ask("a")
        if ends == "is cancelled":
            await current().wait_for("never")
        if ends == "fails":
            raise ValueError

    job = await t.enqueue()
    async with work(app, concurrency=2, poll=0.05) as worker:
        asking = asyncio.ensure_future(app.jobs.ask(job, "a", timeout=1_000))
        if ends == "is cancelled":
            while "never" not in await app.jobs.signals_of(job):
                await app.storage.watch((f"job:{job.id}",), 0.05)
            await app.jobs.cancel(job)
        with pytest.raises(Stale, match="it has not answered 'a'"):
            await asyncio.wait_for(asking, 60)
    del worker


async def test_an_asker_that_gives_up_leaves_the_question(app: App, clock: HandClock) -> None:
    job = await cart(app).enqueue()
    with pytest.raises(TimeoutError, match="has not answered 'add' in 0 s; it may still receive the message"):
        await app.jobs.ask(job, "add", "tea", timeout=0)
    await drain(app)
    clock.advance(100)
    await app.jobs.send(job, "add", "checkout")
    await drain(app)
    assert await job.result(0) == ["tea"]


class Losing(StorageProxy):
    """The first answer does not reach the storage, as if its worker had died before."""

    lost = 0

    async def settle(self, outcomes: Sequence[Outcome]) -> list[Settled]:
        if not self.lost and outcomes[0].id.startswith(ANSWER):
            self.lost += 1
            return [APPLIED]
        return await self.storage.settle(outcomes)


@shows("a worker that dies between storing and sending an answer leaves the answer as it was")
async def test_an_answer_is_stored_before_it_is_sent(app: App, spy: Spy) -> None:
    """The second run would compute another answer."""
    runs: list[int] = []

    @app.task(retry=AGAIN)
    async def t() -> None:
        runs.append(1)
        ask = await current().receive_ask("a")
        await ask.answer(len(runs))
        if len(runs) == 1:
            raise ValueError
        await current().receive("end")

    job = await t.enqueue()
    with suppress(TimeoutError):
        await app.jobs.ask(job, "a", timeout=0, key="k")
    spy.inner = losing = Losing(spy.inner)
    await drain(app)
    assert (losing.lost, len(runs)) == (1, 2)
    assert await app.jobs.ask(job, "a", timeout=1, key="k") == 1
    await app.jobs.send(job, "end")
    await drain(app)
    assert await job.result(0) is None


async def test_a_message_takes_one_answer(app: App) -> None:
    @app.task(retry=Retry(attempts=1))
    async def t() -> None:
        ask = await current().receive_ask("a")
        await ask.answer(1)
        await ask.answer(2)

    job = await t.enqueue()
    await app.jobs.send(job, "a")
    await drain(app)
    assert "this message has its answer; each takes one" in await error_of(app, job)


# --- jobs that begin with a message


@shows("a job is stored together with its first message, or gets it if it is stored already")
async def test_a_spec_that_is_sent_a_message_begins_with_it(app: App, spy: Spy) -> None:
    add = adder(app)
    spec = add.options(id="cart-7")
    await app.jobs.send(spec.job(), "add", 1)
    assert spy.calls["enqueue"] == 1
    await app.jobs.send(spec.job(), "add", 2, key="k")
    await drain(app)
    await app.jobs.send(spec.job(), "add", 2, key="k")
    await app.jobs.send(spec.job(), "add", 0)
    await drain(app)
    assert await (await app.jobs.handle("cart-7")).result(0) == [1, 2]
    with pytest.raises(Stale):
        await app.jobs.send(spec.job(), "add", 3)

    @app.task
    async def other() -> None: ...

    with pytest.raises(IdTaken):
        await app.jobs.send(other.options(id="cart-7").job(), "add", 3)


async def test_of_many_callers_who_begin_a_job_one_does(app: App) -> None:
    add = adder(app)
    await asyncio.gather(*(app.jobs.send(add.options(id="cart").job(), "add", n) for n in range(1, 9)))
    await app.jobs.send("cart", "add", 0)
    await drain(app)
    assert sorted(await (await app.jobs.handle("cart")).result(0)) == list(range(1, 9))


async def test_a_key_of_a_job_that_is_held_sends_to_the_holder(app: App) -> None:
    add = adder(app)
    holder = await add.options(key="one").enqueue()
    await app.jobs.send(add.options(key="one").job(), "add", 1)
    await app.jobs.send(holder, "add", 0)
    await drain(app)
    assert await holder.result(0) == [1]


async def test_a_question_may_begin_a_job(app: App) -> None:
    spec = cart(app).options(id="cart-8")
    async with work(app, concurrency=2, poll=0.05):
        assert await app.jobs.ask(spec.job(), "add", "tea", timeout=30) == 1
        assert await app.jobs.ask(spec.job(), "add", "checkout", timeout=30, key="k") == 1
        assert await (await app.jobs.handle("cart-8")).result(30) == ["tea"]
        assert await app.jobs.ask(spec.job(), "add", "checkout", timeout=30, key="k") == 1


# --- published values


@shows("a published value is read from outside, also after the job has ended")
async def test_values_are_read_while_the_job_runs_and_after_it(app: App) -> None:
    @app.task
    async def t() -> None:
        here = current()
        await here.publish("status", {"step": 1})
        await here.step("seen", seen)
        await here.publish("status", {"step": 2})
        await here.wait_for("go")
        await here.publish("status", {"step": 3})

    async def seen() -> None:
        values.append(await app.jobs.value(job, "status"))

    values: list[Any] = []
    job = await t.enqueue()
    with pytest.raises(TimeoutError, match="has published no value 'status' yet"):
        await app.jobs.value(job, "status")
    await drain(app)
    assert values == [{"step": 1}]
    assert await app.jobs.value(job, "status") == {"step": 2}
    await app.jobs.signal(job, "go")
    await drain(app)
    assert await app.jobs.value(job, "status", returns=dict[str, int]) == {"step": 3}
    with pytest.raises(Stale, match="it has published no 'other'"):
        await app.jobs.value(job, "other", wait=1_000)
    assert (await app.jobs.history(job)).values == {"status": {"step": 3}}


async def test_a_reader_waits_for_the_first_value(app: App) -> None:
    @app.task
    async def t() -> None:
        await current().publish("status", "begun")
        await current().wait_for("go")

    job = await t.enqueue()
    reading = asyncio.ensure_future(app.jobs.value(job, "status", wait=60))
    await drain(app)
    assert await reading == "begun"


async def test_a_later_run_does_not_publish_earlier_values_again(app: App, spy: Spy) -> None:
    @app.task
    async def t(number: int = 0) -> None:
        here = current()
        await here.publish("status", f"first {number}")
        await here.step("a", int)
        await here.publish("status", f"last {number}")
        await here.receive("go")
        await here.step("b", look)
        if number < 1:
            await here.restart(number + 1)

    async def look() -> None:
        values.append(await app.jobs.value(job, "status"))

    values: list[Any] = []
    job = await t.enqueue()
    await app.jobs.send(job, "go")
    await app.jobs.send(job, "go")
    await drain(app)
    assert values == ["last 0", "last 1"]


async def test_published_values_are_bounded(app: App) -> None:
    @app.task(retry=Retry(attempts=1))
    async def t(names: int, size: int) -> None:
        for number in range(names):
            await current().publish(f"n{number}", "x" * size)

    fits, many, large = await t.enqueue(64, 10), await t.enqueue(65, 1), await t.enqueue(1, 65_536)
    await drain(app)
    assert await fits.result(0) is None
    assert "a job publishes under at most 64 names" in await error_of(app, many)
    assert "the published value 'n0' is 65,538 long, the limit is 65,536" in await error_of(app, large)


@pytest.mark.slow
@shows("10,000 messages go through one job with 200 restarts, and leave few rows")
async def test_ten_thousand_messages_go_through_one_job(app: App, spy: Spy, clock: HandClock) -> None:
    @app.task
    async def t(count: int = 0, total: int = 0) -> tuple[int, int]:
        here = current()
        for _ in range(50):
            total += await here.receive("add", returns=int)
            count += 1
            if count == 10_000:
                return count, total
        await here.restart(count, total)
        return 0, 0

    job = await t.enqueue()
    for start in range(0, 10_000, 500):
        for number in range(start, start + 500, 50):
            await asyncio.gather(*(app.jobs.send(job, "add", number + at) for at in range(50)))
        await drain(app)
        clock.advance(61)
        while await spy.inner.prune(1_000):
            pass
        if start < 9_500:
            row = await app.jobs.get(job)
            assert len(row.checkpoints) < 60
            assert len((await app.jobs.list(workflow=job.id, limit=1_000)).records) < 80
    assert await job.result(0) == (10_000, sum(range(10_000)))


class LateSender(StorageProxy):
    """The sender's settling of its rows arrives between the receiver's look at them and their release."""

    def __init__(self, storage: Storage, is_locked: bool) -> None:
        super().__init__(storage)
        self._late, self._is_locked = list[Outcome](), is_locked

    async def settle(self, outcomes: Sequence[Outcome]) -> list[Settled]:
        if any(out.id.startswith(SIGNAL) and out.keep is None and not out.version for out in outcomes):
            self._late += outcomes
            return [Settled(APPLIED)] * len(outcomes)
        if self._late and any(out.id.startswith(SIGNAL) and out.keep == 0.0 for out in outcomes):
            late, self._late = self._late, []
            await self.storage.settle(late)
            if self._is_locked:  # another transaction has its row
                return [Settled("refused", again=True)] * len(outcomes)
        return await self.storage.settle(outcomes)


@shows("the rows of received messages are released also if their sender ends them in that moment")
@pytest.mark.parametrize("is_locked", [False, True])
async def test_rows_that_their_sender_ends_late_are_released(
    storage: Storage, clock: HandClock, is_locked: bool
) -> None:
    async with App(storage=LateSender(storage, is_locked), clock=clock) as app:

        @app.task
        async def t() -> None:
            while await current().receive("add", returns=int):
                pass

        job = await t.enqueue()
        await asyncio.gather(*(app.jobs.send(job, "add", value) for value in range(1, 41)))
        await drain(app)
        clock.advance(61)
        while await storage.prune(1_000):
            pass
        rows = {row.id for row in (await app.jobs.list(workflow=job.id, limit=100)).records}
        assert rows == {job.id, *(signal_id(job.id, "add", turn) for turn in range(33, 42))}


@shows("messages that one process sends at the same time take a few calls, and keep their order")
async def test_messages_that_are_sent_at_the_same_time_go_together(app: App, spy: Spy) -> None:
    job = await adder(app).enqueue()
    spy.calls.clear()
    await asyncio.gather(*(app.jobs.send(job, "add", number, key=f"k{number % 20}") for number in range(1, 41)))
    assert spy.calls.total() <= 8  # also those of each key of which a message was sent before
    await app.jobs.send(job, "add", 0)
    await drain(app)
    assert await job.result(0) == [*range(1, 21)]


async def test_a_full_mailbox_takes_as_many_of_the_messages_as_fit(app: App) -> None:
    job = await adder(app).enqueue()
    await asyncio.gather(*(app.jobs.send(job, "add", number) for number in range(990)))
    results = await asyncio.gather(*(app.jobs.send(job, "add", 1) for _ in range(20)), return_exceptions=True)
    assert [type(result).__name__ for result in results] == ["NoneType"] * 10 + ["MailboxFull"] * 10


async def test_a_sender_that_is_cancelled_keeps_no_other_from_sending(app: App) -> None:
    job = await adder(app).enqueue()
    sends = [asyncio.create_task(app.jobs.send(job, "add", number)) for number in (1, 2, 3)]
    await waiting.turn(1)
    sends[0].cancel()
    sends[1].cancel()
    await sends[2]
    await app.jobs.send(job, "add", 0)
    await drain(app)
    assert (await job.result(0))[-1] == 3


@shows("senders of several processes that meet in one mailbox pause, and each gets its turn")
async def test_senders_of_several_processes(app: App, storage: Storage, clock: HandClock) -> None:
    job = await adder(app).enqueue()
    others = [App(storage=storage, clock=clock) for _ in range(8)]
    await asyncio.gather(*(other.jobs.send(job.id, "add", number) for number, other in enumerate(others, 1)))
    await app.jobs.send(job, "add", 0)
    await drain(app)
    assert sorted(await job.result(0)) == [*range(1, 9)]


@shows("2 and 8 processes that send to one mailbox need less than two calls of the storage a message")
@pytest.mark.parametrize("number", [2, 8])
@pytest.mark.parametrize("kind", KINDS)
async def test_the_calls_of_senders_of_several_processes(kind: str, number: int, tmp_path: Path) -> None:
    with a_url(kind, tmp_path) as url:
        one = connect(url)
        spies = [Spy(one if kind == "memory" else connect(url)) for _ in range(number)]
        async with AsyncExitStack() as stack:
            apps = [await stack.enter_async_context(App(storage=spy)) for spy in spies]
            adds = adder(apps[0])
            job = await adds.enqueue()

            async def produce(own: App, first: int) -> None:
                for start in range(first, first + 40, 10):
                    each = range(start, start + 10)
                    await asyncio.gather(*(own.jobs.send(job.id, "add", value, key=f"k{value}") for value in each))
                    await own.jobs.send(job.id, "add", 999, key=f"k{start}")

            for spy in spies:
                spy.calls.clear()
            await asyncio.gather(*(produce(own, 1_000 * place) for place, own in enumerate(apps, 1)))
            assert sum(spy.calls.total() for spy in spies) < 2 * 44 * number
            await apps[0].jobs.send(job, "add", 0)
            await drain(apps[0])
            received = await job.result(0)
            for place in range(1, number + 1):  # each once, and in the order of their sender
                own = [value for value in received if value // 1_000 == place]
                assert own == [*range(1_000 * place, 1_000 * place + 40)]
            assert len(received) == 40 * number


@shows("a sender of one message at a time makes three calls of the storage for each")
async def test_the_calls_of_one_sender(app: App, spy: Spy) -> None:
    job = await adder(app).enqueue()
    await app.jobs.send(job, "add", 1)
    spy.calls.clear()
    for value in range(2, 12):
        await app.jobs.send(job, "add", value)
    assert spy.calls == {"get": 10, "enqueue": 10, "settle": 10}


async def test_a_sender_that_has_sent_to_a_mailbox(app: App, spy: Spy, clock: HandClock) -> None:
    """The job is another one of the same id, or waits for a row that an operator has deleted."""
    adds = adder(app)
    for _ in range(2):
        job = await adds.options(id="cart").enqueue()
        for value in (1, 2):
            await app.jobs.send(job, "add", value)
        await app.jobs.cancel(job)
        clock.advance(400 * 86_400)
        while await spy.inner.prune(1_000):
            pass
    job = await adds.options(id="cart").enqueue()
    await app.jobs.send(job, "add", 1)
    await app.jobs.delete(signal_id("cart", "add", 1))
    clock.advance(120)
    while await spy.inner.prune(1_000):
        pass
    await drain(app)
    for value in (2, 3, 0):
        await app.jobs.send(job, "add", value)
    await drain(app)
    assert await job.result(0) == [2, 3]


@pytest.mark.parametrize("id", ["a b", "", "a\n", "treadle:signal:1"])
def test_no_job_has_an_id_with_a_space(id: str) -> None:
    """The id of a mailbox is a hash of the job's id, a space, and the name: the first space ends the id."""
    assert ids.problem(id)
    assert signal_id("a", "b c", 1) != signal_id("a-b", "c", 1)


@shows("messages and signals to rows of Treadle's own are refused")
async def test_rows_of_treadle_receive_nothing(app: App, clock: HandClock) -> None:
    @app.task
    async def t() -> None:
        here = current()
        here.on_undo(list)
        await here.wait_for("a")

    @app.task
    async def flows() -> Any:
        return flow(t.job(), t.job())

    job, other = await t.enqueue(), await flows.enqueue()
    await drain(app)
    await app.schedules.upsert("nightly", t.job(), every=3600)
    [signal] = (await app.jobs.get(job)).after
    [schedule] = (await app.storage.find(Query(queue="treadle", limit=10))).records
    await app.jobs.cancel(job)
    rows = [row for id in (job.id, other.id) for row in (await app.jobs.list(workflow=id)).records]
    others = [row.id for row in rows if is_cleanup(row.job) or row.job.task.startswith("treadle.")]
    assert others
    own = [signal, schedule.id, *others]
    for id in own:
        for send in (app.jobs.send, app.jobs.signal):
            with pytest.raises(Stale, match="row of Treadle's own, which receives no 'a'"):
                await send(id, "a", 1)
