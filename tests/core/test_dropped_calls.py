"""A forgotten await in synchronous code raises at once and says what to write; so does a wrongly given job."""

from __future__ import annotations

import asyncio
import inspect
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from treadle import App, Job, Worker, chain, flow
from treadle.errors import BadOption, NotAwaited, UnknownJob
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


FORGOTTEN: dict[str, Callable[[App], Any]] = {
    "greet.enqueue_sync(...)": lambda app: app.tasks["greet"].enqueue("x"),
    "greet.options(...).enqueue_sync(...)": lambda app: app.tasks["greet"].options(delay=1).enqueue("x"),
    "app.stub('far').enqueue_sync(...)": lambda app: app.stub("far").enqueue("x"),
    "app.sync.enqueue(...)": lambda app: app.enqueue([app.tasks["greet"].job("x")]),
    "flow(...).enqueue_sync()": lambda app: flow(app.tasks["greet"].job("x")).enqueue(),
    "chain(...).enqueue_sync()": lambda app: chain(app.tasks["greet"].job("x")).enqueue(),
    "asyncio.run(worker.run())": lambda app: Worker(app).run(),
}


@pytest.mark.parametrize("instead", FORGOTTEN)
def test_an_error_names_the_call_to_write(shop: App, instead: str) -> None:
    call = FORGOTTEN[instead]
    with pytest.raises(NotAwaited) as found:
        call(shop)
    assert found.value.instead == instead.strip()
    assert f"write {instead.strip()}, or `await` it" in str(found.value)


def test_each_use_of_a_result_without_await_raises(shop: App) -> None:
    greet = shop.tasks["greet"]
    with pytest.raises(NotAwaited):
        greet.enqueue("x")
    with pytest.raises(NotAwaited):
        _ = greet.enqueue("x")
    with pytest.raises(NotAwaited):
        _ = greet.enqueue("x").id  # type: ignore[attr-defined]
    with pytest.raises(NotAwaited):
        [greet.enqueue(name) for name in "ab"]
    with ThreadPoolExecutor(1) as pool, pytest.raises(NotAwaited):
        pool.submit(greet.enqueue, "x").result()


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


def test_every_group_of_the_app_is_listed(shop: App) -> None:
    mine = {
        f"app.{name}"
        for name, value in vars(shop).items()
        if not name.startswith("_") and type(value).__module__.startswith("treadle.admin")
    }
    assert mine <= set(GROUPS)


@pytest.mark.parametrize(("group", "name"), [*methods()])
def test_each_method_that_must_be_awaited(shop: App, group: str, name: str) -> None:
    method = getattr(GROUPS[group](shop), name)
    with pytest.raises(NotAwaited) as found:
        method()  # raises before it checks its arguments
    assert found.value.call == f"{group}.{name}()"
    if group.startswith("job"):
        assert found.value.instead == f"{group}.{name}_sync(...)"
        assert hasattr(GROUPS[group](shop), f"{name}_sync")
        return
    view = getattr(shop.sync, group.removeprefix("app."), None) if group.startswith("app.") else shop.sync
    assert found.value.instead.startswith("app.sync.call(") == (not hasattr(view, name)), found.value.instead
    assert name in found.value.instead


def test_the_methods_keep_their_signatures() -> None:
    assert list(inspect.signature(App("memory://").jobs.cancel).parameters) == ["job", "tree", "progress", "filters"]


def coroutine_functions(shop: App) -> Iterator[Callable[..., Any]]:
    for group, name in methods():
        yield getattr(GROUPS[group](shop), name)
    greet = shop.tasks["greet"]
    yield from (shop.enqueue, greet.enqueue, greet.options(delay=1).enqueue, shop.stub("far").enqueue)
    yield from (flow(greet.job("x")).enqueue, chain(greet.job("x")).enqueue, Worker(shop).run, Worker(shop).stop)


def test_the_methods_are_coroutine_functions(shop: App) -> None:
    """Frameworks, mocks and decorators ask `inspect`, and await what such a function returns."""
    for function in coroutine_functions(shop):
        assert asyncio.iscoroutinefunction(function), function
        if sys.version_info >= (3, 12) or function.__name__ not in ("enqueue", "run"):
            assert inspect.iscoroutinefunction(function), function
            assert inspect.iscoroutinefunction(getattr(type(function.__self__), function.__name__))  # type: ignore[attr-defined]
    assert not asyncio.iscoroutinefunction(shop.task)
    assert not asyncio.iscoroutinefunction(shop.sync.enqueue)


@pytest.mark.parametrize(
    "kind", [MemoryStorage, SqliteStorage, PostgresStorage, RedisStorage, HttpStorage, ComposedStorage]
)
def test_the_verbs_of_a_storage_are_coroutine_functions(kind: type) -> None:
    verbs = [name for name, found in vars(Storage).items() if not name.startswith("_") and inspect.isfunction(found)]
    assert {"settle", "settle_claim"} & {*verbs}
    for name in verbs:
        if (found := getattr(kind, name, None)) is not None:
            assert asyncio.iscoroutinefunction(found), name
            assert sys.version_info < (3, 12) or inspect.iscoroutinefunction(found), name


def test_the_methods_have_names_and_docstrings(shop: App) -> None:
    assert shop.jobs.cancel.__name__ == "cancel"
    assert (shop.jobs.cancel.__doc__ or "").startswith("Cancel a job")
    assert "coroutine" not in repr(shop.jobs.cancel)


@pytest.mark.filterwarnings("ignore::treadle.UnknownName")  # the limits and tasks are only examples
def test_the_proposed_code_works(shop: App) -> None:
    shop.sync.limits.pause("queue:a")
    assert [use.key for use in shop.sync.limits.list()] == ["queue:a"]
    shop.sync.call(shop.limits.shut("queue:a", False))
    job = shop.sync.enqueue(shop.tasks["greet"].job("x"))
    assert shop.sync.jobs.cancel(job) == 1
    assert shop.sync.call(job.ended()).state == "cancelled"
    with pytest.raises(UnknownJob):
        shop.sync.result(Job("none", "greet", shop._core.client, None))


async def test_calls_in_a_coroutine_are_unchanged(shop: App) -> None:
    later = shop.jobs.list(limit=0, count=True)
    assert (await later).total == 0
    await shop.close()


def test_asyncio_run_accepts_a_call(shop: App) -> None:
    greet = shop.tasks["greet"]
    asyncio.run(greet.enqueue("x"))
    asyncio.run(asyncio.wait_for(greet.enqueue("x"), 30), debug=False)
    shop.sync.call(greet.enqueue("x"))
    page = shop.sync.call(shop.jobs.list(limit=0, count=True))
    assert page.total == 3
    assert shop.sync.call(shop.jobs.list(limit=0, count=True)).total == 3, "pytest rewrites this line"


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
