"""A call that enqueues without await logs an error with its place; every program that runs the coroutine works."""

from __future__ import annotations

import asyncio
import gc
import inspect
import sys
from collections.abc import Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any

import pytest

from treadle import App, Job, Worker, chain, flow
from treadle.errors import BadOption, UnknownJob
from treadle.storage.composed import ComposedStorage
from treadle.storage.contract import Storage
from treadle.storage.http import HttpStorage
from treadle.storage.memory import MemoryStorage
from treadle.storage.postgres import PostgresStorage
from treadle.storage.redis import RedisStorage
from treadle.storage.sqlite import SqliteStorage


@pytest.fixture
def shop(tmp_path: Path) -> Iterator[App]:
    app = App(f"sqlite:///{tmp_path / 'jobs.db'}")

    @app.task(name="greet")
    async def greet(name: str) -> str:
        return name

    @app.task(name="shout")
    def shout(name: str) -> str:
        return name

    yield app
    app.sync.close()


CALLS: dict[str, Callable[[App], Coroutine[Any, Any, Any]]] = {
    "greet": lambda app: app.tasks["greet"].enqueue("x"),
    "shout": lambda app: app.tasks["shout"].options(delay=1).enqueue("x"),
    "far": lambda app: app.stub("far").enqueue("x"),
    "jobs": lambda app: app.enqueue([app.tasks["greet"].job("x")]),
    "a flow": lambda app: flow(app.tasks["greet"].job("x")).enqueue(),
    "a chain": lambda app: chain(app.tasks["greet"].job("x")).enqueue(),
}
never_awaited = pytest.mark.filterwarnings("ignore:coroutine .* was never awaited:RuntimeWarning")


def _dropped(caplog: pytest.LogCaptureFixture) -> list[str]:
    gc.collect()
    return [each.getMessage() for each in caplog.records if each.levelname == "ERROR" and each.name == "treadle"]


@never_awaited
@pytest.mark.parametrize("name", CALLS)
def test_a_call_without_await_logs_its_place(shop: App, caplog: pytest.LogCaptureFixture, name: str) -> None:
    CALLS[name](shop)
    line = CALLS[name].__code__.co_firstlineno
    assert _dropped(caplog) == [f"enqueue of {name} was dropped without await: no job was stored ({__file__}:{line})"]


@never_awaited
def test_each_way_to_drop_a_call_is_logged(shop: App, caplog: pytest.LogCaptureFixture) -> None:
    greet = shop.tasks["greet"]

    async def forgotten() -> None:
        greet.enqueue("in a coroutine")

    greet.enqueue("a statement")
    kept = greet.enqueue("a variable")
    del kept
    [greet.enqueue(name) for name in "ab"]
    asyncio.run(forgotten())
    assert len(_dropped(caplog)) == 5
    assert shop.sync.jobs.list(limit=0, count=True).total == 0


async def _all_of(calls: list[Coroutine[Any, Any, Any]]) -> list[Any]:
    return [await call for call in calls]


def _a_helper(app: App) -> Coroutine[Any, Any, Any]:
    return app.tasks["greet"].enqueue("x")


def _kept(app: App) -> None:
    call = app.tasks["greet"].enqueue("x")
    asyncio.run(call)


def _with_tasks(app: App) -> None:
    async def main() -> None:
        call = app.tasks["greet"].enqueue
        await asyncio.gather(call("a"), asyncio.create_task(call("b")), asyncio.wait_for(call("c"), 30))
        await call("d")

    asyncio.run(main())


def _eager(app: App) -> None:
    async def main() -> None:
        if sys.version_info >= (3, 12):
            asyncio.get_running_loop().set_task_factory(asyncio.eager_task_factory)
        await asyncio.create_task(app.tasks["greet"].enqueue("x"))

    asyncio.run(main())


PROGRAMS: dict[str, tuple[int, Callable[[App], object]]] = {
    "run of a call": (1, lambda app: asyncio.run(app.tasks["greet"].enqueue("x"))),
    "run of a variable": (1, _kept),
    "run of a helper's coroutine": (1, lambda app: asyncio.run(_a_helper(app))),
    "run of a list": (2, lambda app: asyncio.run(_all_of([_a_helper(app), _a_helper(app)]))),
    "run of a comprehension": (3, lambda app: asyncio.run(_all_of([app.tasks["greet"].enqueue(n) for n in "abc"]))),
    "run with an unpacked argument": (1, lambda app: asyncio.run(*(_a_helper(app),))),
    "app.sync.call": (1, lambda app: app.sync.call(_a_helper(app))),
    "tasks": (4, _with_tasks),
    "eager tasks": (1, _eager),
}


@pytest.mark.parametrize("program", PROGRAMS)
def test_every_program_that_runs_the_coroutine_works(shop: App, caplog: pytest.LogCaptureFixture, program: str) -> None:
    jobs, run = PROGRAMS[program]
    run(shop)
    assert shop.sync.jobs.list(limit=0, count=True).total == jobs
    assert _dropped(caplog) == []


def test_a_call_that_is_closed_or_cancelled_on_purpose_is_not_logged(
    shop: App, caplog: pytest.LogCaptureFixture
) -> None:
    async def main() -> None:
        task = asyncio.create_task(shop.tasks["greet"].enqueue("x"))
        task.cancel()
        await asyncio.wait([task])

    shop.tasks["greet"].enqueue("x").close()
    asyncio.run(main())
    assert _dropped(caplog) == []


@never_awaited
def test_calls_are_plain_coroutines(shop: App) -> None:
    call = shop.jobs.list(limit=0, count=True)
    assert inspect.iscoroutine(call)
    assert asyncio.run(call).total == 0
    sending = shop.tasks["greet"].enqueue("x")
    assert inspect.iscoroutine(sending)
    sending.close()


GROUPS: dict[str, Callable[[App], Any]] = {
    "app": lambda app: app,
    "app.jobs": lambda app: app.jobs,
    "app.dead": lambda app: app.dead,
    "app.queues": lambda app: app.queues,
    "app.limits": lambda app: app.limits,
    "app.schedules": lambda app: app.schedules,
    "job": lambda app: Job("x", "greet", app._core.client, None),
    "job.workflow": lambda app: Job("x", "greet", app._core.client, None).workflow,
}


def methods() -> Iterator[tuple[str, str]]:
    """Group and name of each public method that returns a coroutine."""
    app = App("memory://")
    for group, of in GROUPS.items():
        for name in dir(of(app)):
            method = None if name.startswith("_") else inspect.getattr_static(type(of(app)), name, None)
            if method is not None and inspect.iscoroutinefunction(inspect.unwrap(method)):
                yield group, name


def test_the_methods_keep_their_signatures() -> None:
    assert list(inspect.signature(App("memory://").jobs.cancel).parameters) == [
        "job",
        "tree",
        "force",
        "progress",
        "filters",
    ]


def coroutine_functions(shop: App) -> Iterator[Callable[..., Any]]:
    for group, name in methods():
        yield getattr(GROUPS[group](shop), name)
    greet = shop.tasks["greet"]
    yield from (shop.enqueue, greet.enqueue, greet.options(delay=1).enqueue, shop.stub("far").enqueue)
    yield from (flow(greet.job("x")).enqueue, chain(greet.job("x")).enqueue, Worker(shop).run, Worker(shop).stop)


# Python 3.11 knows the mark only here, 3.16 only in `inspect`.
is_marked = inspect.iscoroutinefunction if sys.version_info >= (3, 12) else asyncio.iscoroutinefunction


def test_the_methods_are_coroutine_functions(shop: App) -> None:
    """Frameworks, mocks and decorators ask `inspect`, and await what such a function returns."""
    for function in coroutine_functions(shop):
        assert is_marked(function), function
        if sys.version_info >= (3, 12) or function.__name__ not in ("enqueue", "run"):
            assert inspect.iscoroutinefunction(function), function
            assert inspect.iscoroutinefunction(getattr(type(function.__self__), function.__name__))  # type: ignore[attr-defined]
    assert not is_marked(shop.task)
    assert not is_marked(shop.sync.enqueue)


@pytest.mark.parametrize(
    "kind", [MemoryStorage, SqliteStorage, PostgresStorage, RedisStorage, HttpStorage, ComposedStorage]
)
def test_the_verbs_of_a_storage_are_coroutine_functions(kind: type) -> None:
    verbs = [name for name, found in vars(Storage).items() if not name.startswith("_") and inspect.isfunction(found)]
    assert {"settle", "settle_claim"} & {*verbs}
    for name in verbs:
        if (found := getattr(kind, name, None)) is not None:
            assert is_marked(found), name


def test_the_methods_have_names_and_docstrings(shop: App) -> None:
    assert shop.jobs.cancel.__name__ == "cancel"
    assert (shop.jobs.cancel.__doc__ or "").startswith("Cancel a job")
    assert "coroutine" not in repr(shop.jobs.cancel)


def test_the_proposed_code_works(shop: App) -> None:
    shop.sync.limits.pause("queue:a")
    assert [use.key for use in shop.sync.limits.list()] == ["queue:a"]
    shop.sync.call(shop.limits.resume("queue:a"))
    job = shop.sync.enqueue(shop.tasks["greet"].job("x"))
    assert shop.sync.jobs.cancel(job) == 1
    assert shop.sync.call(job.ended()).state == "cancelled"
    with pytest.raises(UnknownJob):
        shop.sync.result(Job("none", "greet", shop._core.client, None))


async def test_a_call_in_a_coroutine_may_be_awaited_later(shop: App) -> None:
    later = shop.tasks["greet"].enqueue("x")
    assert (await later).id
    await shop.close()


def test_arguments_that_are_no_jobs_are_refused(shop: App) -> None:
    greet, shout = shop.tasks["greet"], shop.tasks["shout"]
    with pytest.raises(BadOption, match=r"<task greet> is a task: give a job with its arguments, greet.job"):
        shop.sync.enqueue(greet, "x")  # type: ignore[call-overload]
    with pytest.raises(BadOption, match=r"greet\(\.\.\.\) is a coroutine: give a job, greet.job"):
        shop.sync.enqueue(greet("x"))
    with pytest.raises(BadOption, match="found 'x'; calling a task runs its function here"):
        shop.sync.enqueue(shout("x"))
    with pytest.raises(BadOption, match="found 5"):
        shop.sync.enqueue(5)  # type: ignore[call-overload]


def test_an_error_translates_names_of_other_libraries(shop: App) -> None:
    greet: Any = shop.tasks["greet"]
    with pytest.raises(AttributeError, match=r"no attribute 'delay': use \.enqueue\("):
        greet.delay("x")
    with pytest.raises(AttributeError, match=r"'apply_async': use \.options\(\.\.\.\)\.enqueue\("):
        greet.apply_async(("x",))
    with pytest.raises(AttributeError, match=r"no attribute 's': use \.job\("):
        greet.s("x")
    with pytest.raises(AttributeError, match=r"no attribute 'retry': raise Retry\.after\("):
        greet.retry()
    with pytest.raises(
        AttributeError, match=r"no attribute 'si': use \.job\(\.\.\.\), and \.options\(pass_result=False\)"
    ):
        greet.si("x")
    for name in ("send", "send_with_options", "schedule", "apply", "call_local", "chunks", "request", "AsyncResult"):
        with pytest.raises(AttributeError, match=f"no attribute '{name}': (use|call) "):
            getattr(greet, name)
    with pytest.raises(AttributeError, match=r"no attribute 'other'$"):
        _ = greet.other
