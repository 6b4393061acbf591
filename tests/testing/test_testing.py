"""The test helpers for users' tests."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from datetime import timedelta
from functools import partial
from importlib import import_module
from pathlib import Path
from textwrap import dedent
from typing import Any

import pytest

from tests.kit import Spy
from tests.testing.kit import GIVEN, a_given
from treadle import (
    Abort,
    App,
    BadArgument,
    BadOption,
    DefaultCodec,
    Defer,
    Limit,
    Middleware,
    Retry,
    State,
    StorageUnavailable,
    Worker,
    current,
)
from treadle.core.job import JobSpec
from treadle.core.model import Claim, Claimed, HeartbeatResult, LeaseRenewal, Presence
from treadle.errors import UnknownJob, Unsupported
from treadle.execution.context import Context
from treadle.storage import connect
from treadle.storage.contract import Storage
from treadle.storage.memory import MemoryStorage
from treadle.testing import Endless, HandClock, Testing, drain
from treadle.testing.codec_check import same
from treadle_testkit import faults

InTest = Callable[..., Testing]


@pytest.fixture
def app() -> App:
    return App("memory://", clock=HandClock(), random=lambda: 0.0)


@pytest.fixture(params=GIVEN)
def testing(request: pytest.FixtureRequest, app: App, tmp_path: Path) -> Iterator[InTest]:
    """`app.testing()` on each storage."""
    with a_given(request.param, tmp_path) as given:
        yield partial(app.testing, storage=given)


# --- drain


async def test_drain_runs_claimable_jobs_in_queue_order_and_counts_them(app: App) -> None:
    seen: list[int] = []

    @app.task
    async def note(n: int) -> None:
        seen.append(n)

    async with app:
        assert await drain(app) == 0
        for n in range(5):
            await note.options(priority=n).enqueue(n)
        assert await drain(app) == 5
        assert await drain(app) == 0
    assert seen == [4, 3, 2, 1, 0]


async def test_drain_of_an_app_without_tasks_ends(app: App) -> None:
    async with app, asyncio.timeout(30):
        assert await drain(app) == 0


@pytest.mark.parametrize("verb", ["claim", "settle"])
async def test_drain_raises_if_the_storage_stays_unavailable(monkeypatch: pytest.MonkeyPatch, verb: str) -> None:
    monkeypatch.setattr(import_module("treadle.testing.drain"), "PATIENCE", 0.0)
    storage = faults.Faulty(MemoryStorage(HandClock()), [faults.before(verb, 1)], fused=False)
    app = App(storage=storage)

    @app.task
    async def one() -> None: ...

    async with app, asyncio.timeout(30):
        await one.enqueue()
        with pytest.raises(StorageUnavailable) as caught:
            await drain(app)
        assert "commit that before the drain" in caught.value.__notes__[0]


async def test_drain_follows_children_into_queues_no_task_names(app: App) -> None:
    seen: list[str] = []

    @app.task
    async def grow(name: str) -> None:
        seen.append(name)
        if len(name) < 4:
            await grow.options(queue=f"q{len(name)}").enqueue(name + "x")

    async with app:
        await grow.options(queue="elsewhere").enqueue("x")
        assert await drain(app) == 4
    assert seen == ["x", "xx", "xxx", "xxxx"]


async def test_drain_runs_due_retries_and_leaves_later_ones(app: App) -> None:
    @app.task(retry=Retry(attempts=3, base=0))
    async def at_once() -> None:
        raise ValueError("no")

    @app.task
    async def later() -> None:
        raise ValueError("no")

    @app.task
    async def deferred() -> None:
        raise Defer(10)

    async with app:
        jobs = [
            await at_once.enqueue(),
            await later.enqueue(),
            await deferred.enqueue(),
            await later.options(delay=1).enqueue(),
        ]
        assert await drain(app) == 5
        rows = [await app.jobs.get(job) for job in jobs]
    assert [(row.state, row.attempt) for row in rows] == [
        (State.FAILED, 3),
        (State.READY, 1),
        (State.READY, 0),
        (State.READY, 0),
    ]


async def test_drain_runs_only_the_named_tasks(app: App) -> None:
    seen: list[str] = []

    @app.task(name="one")
    async def one() -> None:
        seen.append("one")

    @app.task
    def two() -> None:
        seen.append("two")

    async with app:
        await one.enqueue()
        await two.enqueue()
        assert await drain(app, tasks=[two]) == 1
        assert await drain(app, tasks=["one"]) == 1
    assert seen == ["two", "one"]


class Locking(Spy):
    """The first heartbeat keeps due rows locked until a claim has skipped them, as it happens on a server."""

    def __init__(self, inner: Storage) -> None:
        super().__init__(inner)
        self.begun, self.passed = asyncio.Event(), asyncio.Event()
        self.locked = False

    async def heartbeat(self, worker: Presence, renewals: Sequence[LeaseRenewal], lease: float) -> HeartbeatResult:
        if not self.begun.is_set():
            self.locked = True
            self.begun.set()
            await self.passed.wait()
            self.locked = False
        return await super().heartbeat(worker, renewals, lease)

    async def claim(self, ask: Claim) -> Claimed:
        await self.begun.wait()
        if self.locked:
            self.passed.set()
            return Claimed()
        return await super().claim(ask)


@pytest.mark.parametrize("concurrency", [1, 40])
async def test_drain_does_not_take_a_locked_queue_for_empty(concurrency: int) -> None:
    app = App(storage=Locking(MemoryStorage(HandClock())), random=lambda: 0.0)

    @app.task(name="one")
    async def one() -> None: ...

    async with app, asyncio.timeout(30):
        await one.enqueue()
        assert await drain(app, concurrency=concurrency) == 1


async def test_drain_gives_up_on_endless_jobs_and_leaves_the_next_one_queued(app: App) -> None:
    @app.task
    async def again(n: int) -> None:
        await again.enqueue(n + 1)

    async with app:
        await again.enqueue(0)
        with pytest.raises(Endless, match=r"10 jobs were run and more are queued, next .*again") as caught:
            await drain(app, limit=10)
        assert (caught.value.limit, caught.value.last.job.payload) == (10, "[10]")
        row = await app.jobs.get(caught.value.last.id)
        assert (row.state, row.attempt, row.lost) == (State.READY, 0, 0)
        assert await drain(app, tasks=[], limit=10) == 0


async def test_drain_raises_the_first_error_and_runs_nothing_after_it(app: App) -> None:
    ran: list[str] = []

    @app.task
    async def good(name: str) -> None:
        ran.append(name)

    @app.task
    async def bad() -> None:
        raise ZeroDivisionError("no")

    @app.task
    async def unstorable() -> object:
        return object()

    @app.task
    async def later() -> None:
        raise Defer(5)

    @app.task(retry=Retry(attempts=1))
    async def never() -> None:
        raise Abort("bad input")

    async with app:
        jobs = [await good.enqueue("a"), await later.enqueue(), await bad.enqueue(), await good.enqueue("b")]
        with pytest.raises(ZeroDivisionError, match="no"):
            await drain(app, raise_errors=True)
        assert ran == ["a"]
        assert [(row.state, row.attempt) for row in [await app.jobs.get(job) for job in jobs]] == [
            (State.SUCCEEDED, 1),
            (State.READY, 0),
            (State.READY, 1),
            (State.READY, 0),
        ]
        assert await drain(app) == 1
        await unstorable.enqueue()
        with pytest.raises(Exception, match="unstorable: the result"):
            await drain(app, raise_errors=True)
        await never.enqueue()
        with pytest.raises(Abort, match="bad input"):
            await drain(app, raise_errors=True)


async def test_drain_waits_for_inline_jobs_and_async_listeners(app: App) -> None:
    go_on, seen = asyncio.Event(), []

    @app.task
    async def inline() -> None:
        await go_on.wait()
        seen.append("inline")

    @app.task
    async def echo() -> None:
        seen.append("echo")

    @app.on("succeeded")
    async def heard(event: Any) -> None:
        if event.task.endswith("inline"):
            await asyncio.sleep(0)
            await echo.enqueue()

    async with app:
        await inline.options(inline=True).enqueue()
        draining = asyncio.create_task(drain(app))
        await asyncio.sleep(0)
        go_on.set()
        assert await draining == 1
    assert seen == ["inline", "echo"]


async def test_jobs_that_wait_for_each_other_need_two_at_once(app: App) -> None:
    @app.task
    async def inner() -> int:
        return 7

    @app.task
    async def outer() -> int:
        return await (await inner.enqueue()).result() * 6

    async with app:
        job = await outer.enqueue()
        assert await drain(app, concurrency=2) == 2
        assert await job.result() == 42


async def test_drain_leaves_jobs_that_a_limit_blocks(app: App) -> None:
    @app.task(limits=["smtp"])
    async def send() -> None: ...

    async with app:
        await app.limits.set(Limit("smtp", rate=2, per=60))
        for _ in range(5):
            await send.enqueue()
        assert await drain(app) == 2


# --- an app under test


async def test_testing_leaves_the_app_as_it_was(app: App, testing: InTest) -> None:
    @app.task
    async def send(to: str) -> None: ...

    before = {**vars(app._core), "signature": send._core.signature, "maker": dict(vars(app._core.maker))}
    async with app:
        outside = await send.enqueue("outside")
        opened = dict(vars(app._core))
        async with testing() as t:
            assert app.storage is t.storage
            inside = await send.enqueue("inside")
            with pytest.raises(UnknownJob):
                await app.jobs.get(outside)
            assert await t.drain() == 1
        assert vars(app._core) == opened
        with pytest.raises(UnknownJob):
            await app.jobs.get(inside)
        assert (await app.jobs.get(outside)).state is State.READY
    assert {**vars(app._core), "signature": send._core.signature, "maker": vars(app._core.maker)} == before


async def test_testing_restores_after_an_error_too(app: App, testing: InTest) -> None:
    storage = app.storage
    with pytest.raises(ZeroDivisionError):
        async with testing():
            raise ZeroDivisionError
    assert app.storage is storage
    assert app._core.loop is None


async def test_due_jobs_run_when_the_clock_is_moved_by_hand(app: App, testing: InTest) -> None:
    seen: list[tuple[str, float]] = []

    @app.task(retry=Retry(base=10, factor=2))
    async def stubborn() -> None:
        seen.append(("stubborn", t.clock.moment - began))
        if len(seen) < 3:
            raise ValueError("not yet")

    @app.task
    async def hourly() -> None:
        seen.append(("hourly", t.clock.moment - began))
        raise Defer(3600)

    async with testing() as t:
        began = t.clock.moment
        await stubborn.enqueue()
        assert await t.drain() == 1
        assert await t.advance(60) == 2
        assert t.clock.moment == began + 60
        assert seen == [("stubborn", 0.0), ("stubborn", 10.0), ("stubborn", 30.0)]
        seen.clear()
        await hourly.enqueue()
        assert await t.advance(timedelta(hours=3)) == 4
        assert seen == [("hourly", n) for n in (60.0, 3660.0, 7260.0, 10860.0)]
        t.clock.advance(3599)
        assert await t.drain() == 0
        t.clock.advance(1)
        assert await t.drain() == 1


async def test_advance_ends_with_due_jobs_that_cannot_run(app: App, testing: InTest) -> None:
    @app.task(limits=["shut"])
    async def held() -> None: ...

    async with testing() as t:
        await app.limits.set(Limit("shut", slots=0))
        await held.options(delay=5).enqueue()
        assert await t.advance(86_400) == 0


async def test_finish_goes_over_sleeps_delays_retries_and_timeouts(app: App, testing: InTest) -> None:
    seen: list[str] = []

    @app.task(retry=Retry(attempts=3, base=60))
    async def t() -> str:
        await current().sleep(timedelta(days=3))
        seen.append(f"try {current().attempt}")
        if current().attempt < 3:
            raise ValueError
        try:
            await current().wait_for("approved", timeout=3600)
        except TimeoutError:
            return "nobody"
        return "somebody"

    @app.task
    async def waits() -> None:
        await current().wait_for("never")

    async with testing() as t_:
        began = t_.clock.moment
        job = await t.options(delay=timedelta(hours=1)).enqueue()
        other = await waits.enqueue()
        assert await t_.finish() == 6
        assert await job.result(0) == "nobody"
        assert (await t_.jobs.get(other)).state is State.WAITING
        assert t_.clock.moment - began == pytest.approx(3600 + 3 * 86_400 + 60 + 120 + 3600, abs=1)
        assert seen == ["try 1", "try 2", "try 3", "try 3"]  # once more after the wait
        assert await t_.finish() == 0


async def test_finish_ends_with_jobs_that_cannot_run(app: App, testing: InTest) -> None:
    @app.task
    async def t() -> None: ...

    async with testing() as t_:
        await app.queues.pause("default")
        await t.options(delay=5).enqueue()
        assert await t_.finish() == 0


async def test_finish_ends_when_only_schedules_are_left(app: App, testing: InTest) -> None:
    at: list[float] = []

    @app.task
    async def t() -> None:
        await current().sleep(timedelta(days=2, hours=1))

    @app.cron("0 3 * * *")
    @app.task
    async def nightly() -> None:
        at.append(app._core.now())

    async with testing() as t_:
        began = t_.clock.moment
        job = await t.enqueue()
        await t_.finish(limit=50)
        assert (await t_.jobs.get(job)).state is State.SUCCEEDED
        assert t_.clock.moment - began == pytest.approx(2 * 86_400 + 3600, abs=1)
        assert len(at) == 2
        await app.queues.pause("default")
        await t.enqueue()  # it cannot run, and no move of the clock changes that
        assert await t_.finish(limit=50) == 0


async def test_finish_and_advance_go_over_the_rate_of_a_queue(app: App, testing: InTest) -> None:
    at: list[float] = []

    @app.task(queue="mail")
    async def t() -> None:
        at.append(round(app._core.now() - began))

    @app.every(7)
    @app.task(queue="other")
    async def tick() -> None: ...

    async with testing() as t_:
        began = t_.clock.moment
        try:
            await app.limits.set(Limit("queue:mail", rate=2, per=60))
        except Unsupported:
            pytest.skip("shards have no limits of a whole queue")
        for _ in range(5):
            await t.enqueue()
        await t_.finish()
        assert at == [0, 0, 60, 60, 120]
        at.clear()
        await t_.advance(60)
        began = t_.clock.moment
        for _ in range(5):
            await t.enqueue()
        await t_.advance(300)
        assert at == [0, 0, 60, 60, 120]


async def test_finish_names_itself_and_its_limit_when_it_gives_up(app: App, testing: InTest) -> None:
    @app.task
    async def t() -> None:
        await t.options(delay=60).enqueue()

    async with testing() as t_:
        await t.enqueue()
        with pytest.raises(Endless, match=r"20 jobs were run and more are queued, .*give finish a higher limit="):
            await t_.finish(limit=20)


async def test_finish_gives_up_on_endless_jobs(app: App, testing: InTest) -> None:
    @app.task
    async def t() -> None:
        await t.options(delay=60).enqueue()

    async with testing() as t_:
        await t.enqueue()
        with pytest.raises(Endless):
            await t_.finish(limit=20)


async def test_ids_count_and_order_calls_of_one_time(app: App, testing: InTest) -> None:
    seen: list[int] = []

    @app.task
    async def note(n: int) -> None:
        seen.append(n)

    async with testing() as t:
        jobs = [await note.enqueue(n) for n in range(12)]
        assert [job.id for job in jobs[:2]] == ["job-000001", "job-000002"]
        await t.drain()
    assert seen == list(range(12))


async def test_enqueued_shows_calls_with_their_arguments(app: App, testing: InTest) -> None:
    @app.task(queue="mail")
    async def send(to: str, body: str = "", *, urgent: bool = False) -> None: ...

    @app.task
    async def total(found: int, more: int) -> int:
        return found + more

    @app.task
    async def welcome(who: str) -> int:
        job = await send.options(delay=60, priority=3).enqueue(who, "hi", urgent=True)
        await send.options(key="once").enqueue(who)
        await send.options(key="once").enqueue(who)
        await total.options(after=job, pass_result=True).enqueue(more=2)
        return 1

    async with testing() as t:
        assert t.enqueued(send) == []
        await welcome.enqueue("ada")
        assert t.enqueued(send) == []
        await t.drain(raise_errors=True)
        first, second = t.enqueued(send)
        assert (first.args, first.kwargs) == (("ada", "hi"), {"urgent": True})
        assert (first.record.job.delay, first.record.job.priority, first.record.job.queue) == (60, 3, "mail")
        assert (second.args, second.kwargs, second.record.state) == (("ada",), {}, State.SUCCEEDED)
        [later] = t.enqueued(total)
        assert (later.args, later.kwargs) == ((2,), {})  # the first argument arrives when it runs
        await app.stub("far.away").enqueue(1, b=2)
        [far] = t.enqueued("far.away")
        assert (far.args, far.kwargs) == ((1,), {"b": 2})


def mailer(app: App) -> Any:
    @app.task(queue="mail")
    async def send(to: str, body: str = "", *, urgent: bool = False) -> None: ...

    return send


async def test_an_enqueued_call_is_found_by_arguments_and_options(app: App, testing: InTest) -> None:
    send = mailer(app)
    async with testing() as t:
        await send.enqueue("ada")
        await send.options(delay=60, key="once").enqueue("bob", urgent=True)
        await app.stub("far.away").enqueue(1, b=2)
        await t.drain(tasks=[send])
        assert t.assert_enqueued(send).record.id == "job-000001"
        assert t.assert_enqueued(send, to="ada", body="").record.state is State.SUCCEEDED
        assert t.assert_enqueued(send, "bob", urgent=True).record.job.delay == 60
        assert t.assert_enqueued(send.options(delay=60).job("bob", urgent=True)).record.job.queue == "mail"
        t.assert_enqueued(send.options(key="once", delay=60).job("bob", urgent=True))
        t.assert_enqueued(app.stub("far.away"), 1, b=2)
        t.assert_not_enqueued(send, "eve")
        t.assert_not_enqueued(send.options(delay=61).job("bob", urgent=True))
        t.assert_not_enqueued(send.options(priority=1).job("ada"))
        t.assert_not_enqueued(app.stub("far.away"), 2, b=2)


async def test_a_failed_assertion_lists_the_enqueued_jobs(app: App, testing: InTest) -> None:
    send = mailer(app)

    async with testing() as t:
        with pytest.raises(AssertionError) as none:
            t.assert_enqueued(send, "ada")
        await app.stub("far.away").enqueue(1)
        with pytest.raises(AssertionError) as other:
            t.assert_enqueued(send)
        bob = await send.options(delay=5).enqueue("bob", "hi", urgent=True)
        ada = await send.options(delay=3600).enqueue("ada")
        guests = [await send.enqueue(f"guest {n}", urgent=True) for n in range(5)]
        with pytest.raises(AssertionError) as found:
            t.assert_enqueued(send.options(delay=60).job("ada"))
        with pytest.raises(AssertionError) as too_many:
            t.assert_not_enqueued(send)
    name = send.name
    call = f"{name}(to='ada', body='', urgent=False)"
    assert str(none.value) == f"{call} was not enqueued, and no other call of {name}; enqueued were: no jobs"
    assert str(other.value) == f"{name}(...) was not enqueued, and no other call of {name}; enqueued were: far.away (1)"
    lines = str(found.value).splitlines()
    assert lines[:3] == [
        f"{call} with delay=60.0 was not enqueued; the calls of {name}, nearest first:",
        f"  {ada.id} (ready):",
        "    option delay: expected 60.0, found 3600.0",
    ]
    assert lines[3:7] == [
        f"  {guests[0].id} (ready):",
        "    to: expected 'ada', found 'guest 0'",
        "    urgent: expected False, found True",
        "    option delay: expected 60.0, found 0.0",
    ]
    assert lines[-1] == "  and 2 more"
    shown = ", ".join(job.id for job in (bob, ada, *guests[:3]))
    assert str(too_many.value) == f"{name}(...) was enqueued: {shown} and 2 more"


async def test_a_mistyped_expectation_never_passes(app: App, testing: InTest) -> None:
    send = mailer(app)
    async with testing() as t:
        with pytest.raises(BadArgument, match="'urgnt'"):
            t.assert_not_enqueued(send, "ada", urgnt=True)
        with pytest.raises(BadOption, match="a spec has its arguments"):
            t.assert_not_enqueued(send.job("ada"), "ada")
        with pytest.raises(BadOption, match=r"found 'send'"):
            t.assert_not_enqueued("send")  # type: ignore[arg-type]


async def test_handlers_and_middleware_stay(app: App, testing: InTest) -> None:
    seen: list[str] = []

    @app.middleware
    class Around(Middleware):
        async def enqueue(self, specs: Any, proceed: Any) -> Any:
            seen.append("enqueue")
            return await proceed(specs)

        async def run(self, context: Context, proceed: Any) -> Any:
            seen.append("run")
            return await proceed()

    @app.on("succeeded")
    def heard(event: Any) -> None:
        seen.append(event.name)

    @app.task
    def plain() -> None: ...

    async with testing() as t:
        await plain.options(inline=True).enqueue()
        assert seen == ["enqueue"]
        await t.drain(raise_errors=True)
    assert seen == ["enqueue", "run", "succeeded"]


class Forgetful:
    """Loses certain digits after the decimal point, which no probe contains."""

    def encode(self, value: object) -> str:
        return DefaultCodec().encode(value).replace(".375", ".0")

    def decode(self, text: str) -> object:
        return DefaultCodec().decode(text)


async def test_a_codec_that_changes_values_is_reported(app: App, testing: InTest) -> None:
    @app.task(codec=Forgetful())
    async def price(of: str, amount: float) -> float:
        return amount + 0.375

    await price.enqueue("tea", 1.375)
    async with testing() as t:
        with pytest.raises(BadArgument, match=r"'amount' does not survive its codec: 1\.375 comes back as 1\.0"):
            await price.enqueue("tea", 1.375)
        job = await price.enqueue("tea", 2.0)
        with pytest.raises(Exception, match=r"the result does not survive its codec: 2\.375 comes back as 2\.0"):
            await t.drain(raise_errors=True)
        assert "does not survive" in ((await t.jobs.get(job)).error or "")
    await app.close()


def test_values_that_annotations_convert_are_equal() -> None:
    nan = float("nan")
    assert same((1, [2, (nan,)]), [1, (2, [nan])])
    assert same({"a": (1,)}, {"a": [1]})
    assert same(ValueError("x"), ValueError("x"))
    assert not same({"a": 1}, {"b": 1})
    assert not same([1, 2], [1])
    assert not same(nan, 1.0)


# --- the plugin


@pytest.mark.slow
def test_the_plugin_offers_its_fixtures_and_imports_little(tmp_path: Path) -> None:
    (tmp_path / "test_it.py").write_text(
        dedent("""
            import asyncio
            from treadle import App

            app = App("memory://")

            @app.task
            async def send(to: str) -> None: ...

            def test_time(treadle_clock, treadle_testing):
                async def scene():
                    async with treadle_testing(app) as t:
                        assert t.clock is treadle_clock
                        await send.options(delay=60).enqueue("a")
                        assert await t.drain() == 0
                        treadle_clock.advance(60)
                        assert await t.drain() == 1
                asyncio.run(scene())

            def test_options(treadle_clock, treadle_testing, tmp_path):
                async def scene():
                    async with treadle_testing(app, storage=f"sqlite:///{tmp_path / 'jobs.db'}") as t:
                        assert t.clock is treadle_clock
                        await send.enqueue("a")
                        assert await t.drain() == 1
                    assert (tmp_path / "jobs.db").exists()
                asyncio.run(scene())
        """)
    )
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-p",
        "no:cacheprovider",
        "-p",
        "treadle.testing.plugin",
        str(tmp_path),
    ]
    environment = {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "PATH": "", "PYTHONPATH": ":".join(sys.path)}
    done = subprocess.run(
        command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=60, check=False
    )
    assert "2 passed" in done.stdout, done.stdout + done.stderr


def test_the_plugin_needs_no_other_plugin() -> None:
    code = "import sys, treadle.testing.plugin; print([n for n in sys.modules if 'asyncio' in n and 'pytest' in n])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


# --- faults


@pytest.fixture
def specs(app: App) -> list[JobSpec[Any]]:
    @app.task
    async def work(n: int) -> int:
        return n

    return [work.job(n) for n in range(3)]


async def test_a_fault_before_a_call_and_one_after_it(specs: list[JobSpec[Any]]) -> None:
    storage = faults.Faulty(connect("memory://"), [faults.before("enqueue", 1), faults.lost("enqueue", 2)])
    new = [spec.new for spec in specs]
    with pytest.raises(StorageUnavailable, match="enqueue, call 1: injected failure before"):
        await storage.enqueue(new)
    assert await storage.get([new[0].id]) == [None]
    with pytest.raises(StorageUnavailable, match="enqueue, call 2: injected loss of its answer"):
        await storage.enqueue(new)
    assert (await storage.get([new[0].id]))[0] is not None
    assert len(await storage.enqueue(new)) == 3
    assert storage.calls == {"enqueue": 3, "get": 2}
    assert [fault.how for fault in storage.faults] == ["before", "lost"]


async def test_a_held_call_and_one_that_is_repeated(specs: list[JobSpec[Any]]) -> None:
    gate = asyncio.Event()
    storage = faults.Faulty(connect("memory://"), [*faults.held("enqueue", 1, gate), *faults.twice("enqueue", 2)])
    new = [spec.new for spec in specs]
    held = asyncio.create_task(storage.enqueue(new[:1]))
    await storage.reached("enqueue", 1)
    assert await storage.get([new[0].id]) == [None]
    gate.set()
    await held
    assert [row.job.id for row in await storage.enqueue(new)] == [each.id for each in new]


async def test_bursts_are_the_same_for_a_seed() -> None:
    def seen(seed: int) -> list[str]:
        script = faults.bursts(seed)
        return [fault.how if (fault := script("claim", n)) else "" for n in range(1, 40)]

    assert seen(1) == seen(1) != seen(2)
    assert {"before", "lost", ""} == set(seen(1))
    assert faults.bursts(1)("watch", 1) is None


async def test_a_fault_of_no_verb_is_a_mistake() -> None:
    with pytest.raises(BadOption, match="found 'settel'"):
        faults.Faulty(connect("memory://"), faults.lost("settel", 1))


async def test_a_faulty_storage_fuses_if_its_inner_one_does() -> None:
    inner = connect("memory://")
    assert faults.Faulty(inner).capabilities.settle_claim
    assert not faults.Faulty(inner, fused=False).capabilities.settle_claim
    async with App(storage=faults.Faulty(inner)) as app, Worker(app):
        pass


async def test_a_second_test_of_an_app_is_no_emptied_storage(
    app: App, testing: InTest, caplog: pytest.LogCaptureFixture
) -> None:
    @app.every(60)
    async def tick() -> None: ...

    for _ in range(2):
        async with testing() as t:
            await t.advance(600)
            assert t.enqueued(tick)
    assert "emptied" not in caplog.text


async def test_a_message_reaches_the_job_of_a_second_test_of_an_app() -> None:
    """Its id and its time are those of the job in the first test, whose mailbox has received something."""
    app = App("memory://")

    @app.task
    async def hears() -> str:
        return await current().receive("word", returns=str)

    for word in ("tea", "milk"):
        async with app.testing() as t:
            job = await hears.enqueue()
            await t.jobs.send(job, "word", word)
            await t.drain()
            assert await job.result(0) == word
