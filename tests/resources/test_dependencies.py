"""`depends(...)`: values for the parameters of a task, made once a process or once a run, and closed in order."""

from __future__ import annotations

import asyncio
import functools
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Annotated, Any

import fastapi
import pytest

from tests.kit import Told, nothing_left
from treadle import (
    App,
    BadDependency,
    DependencyFailed,
    JobFailed,
    LifespanFailed,
    Retry,
    State,
    Worker,
    current,
    depends,
)
from treadle_testkit.shows import shows

Log = list[str]


@pytest.fixture
async def plain() -> AsyncIterator[App]:
    async with App("memory://", retry=Retry(attempts=1)) as made:
        yield made


class Kit:
    """Providers of each kind, which note what they do."""

    def __init__(self) -> None:
        self.log: Log = []
        self.threads: set[str] = set()

    def pool(self) -> Iterator[str]:
        self.log.append("open pool")
        yield "pool"
        self.log.append("close pool")

    def provider(self, kind: str, name: str, **needs: Any) -> Callable[..., Any]:
        """A provider of this kind whose value is its name with the values that it needs."""

        def value(given: dict[str, Any]) -> str:
            self.log.append(f"open {name}")
            self.threads.add(threading.current_thread().name.partition("-")[0])
            return "+".join([name, *map(str, given.values())])

        def plain(**given: Any) -> str:
            return value(given)

        async def coroutine(**given: Any) -> str:
            await asyncio.sleep(0)
            return value(given)

        def generator(**given: Any) -> Iterator[str]:
            try:
                yield value(given)
            except BaseException as error:
                self.log.append(f"{name} sees {type(error).__name__}")
                raise
            finally:
                self.log.append(f"close {name}")

        async def async_generator(**given: Any) -> AsyncIterator[str]:
            async with asyncio.timeout(None):  # must be left in the task that entered it
                try:
                    yield value(given)
                except BaseException as error:
                    self.log.append(f"{name} sees {type(error).__name__}")
                    raise
                finally:
                    await asyncio.sleep(0)
                    self.log.append(f"close {name}")

        kinds = {"plain": plain, "async": coroutine, "generator": generator, "async generator": async_generator}
        made: Any = kinds[kind]
        return with_defaults(made, needs)


def with_defaults(function: Callable[..., Any], needs: dict[str, Any]) -> Callable[..., Any]:
    """The function with these parameters in place of `**given`."""
    import inspect

    parameters = [inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=need) for name, need in needs.items()]
    function.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    return function


KINDS = ("plain", "async", "generator", "async generator")


@shows("dependencies are made once for each run, in order, and closed in reverse, in tasks of every kind")
@pytest.mark.parametrize("runs", ["async", "thread", "batch", "batch in a thread"])
@pytest.mark.parametrize("kind", KINDS)
async def test_dependencies_are_made_in_order_and_closed_in_reverse(plain: App, kind: str, runs: str) -> None:
    kit = Kit()
    inner = kit.provider(kind, "inner", pool=depends(kit.pool, scope="process"))
    other = kit.provider("generator" if kind.startswith("async") else "async generator", "other", of=depends(inner))

    def said(n: Any, one: str, two: str) -> str:
        kit.log.append("run")
        return f"{n} {one} {two}"

    if runs == "async":

        @plain.task(name="use")
        async def use(n: int, one: str = depends(inner), *, two: str = depends(other)) -> str:
            return said(n, one, two)

    elif runs == "thread":

        @plain.task(name="use")
        def use(n: int, one: str = depends(inner), *, two: str = depends(other)) -> str:
            return said(n, one, two)

    elif runs == "batch":

        @plain.batch(name="use", max_wait=0)
        async def use(items: list[int], one: str = depends(inner), *, two: str = depends(other)) -> list[str]:
            return [said(n, one, two) for n in items]

    else:

        @plain.batch(name="use", max_wait=0)
        def use(items: list[int], one: str = depends(inner), *, two: str = depends(other)) -> list[str]:
            return [said(n, one, two) for n in items]

    before, task = asyncio.all_tasks(), plain.find_task("use")
    async with Worker(plain):
        assert kit.log == ["open pool"]  # before the first claim
        for n in (1, 2):
            assert await (await task.enqueue(n)).result(60) == f"{n} inner+pool other+inner+pool"
    once = ["open inner", "open other", "run", "close other", *(["close inner"] if "generator" in kind else [])]
    assert kit.log == ["open pool", *once, *once, "close pool"]
    await nothing_left(before)
    assert kit.threads == {"MainThread", "treadle"}  # async providers on the event loop, plain ones in a thread


@shows("the exception of a run is raised in the generators of its dependencies, and stays the error of the run")
@pytest.mark.parametrize("runs", ["async", "thread"])
async def test_an_error_of_the_function(plain: App, runs: str, caplog: pytest.LogCaptureFixture) -> None:
    kit = Kit()
    outer = kit.provider("async generator", "outer")

    def swallows(of: str = depends(outer)) -> Iterator[str]:
        try:
            yield "swallows"
        except KeyError:
            kit.log.append("swallowed")

    async def fails(of: str = depends(swallows)) -> AsyncIterator[str]:
        try:
            yield "fails"
        finally:
            raise OSError("rollback failed")

    def function(one: str = depends(fails)) -> None:
        raise KeyError("mine")

    async def async_function(one: str = depends(fails)) -> None:
        raise KeyError("mine")

    plain.task(name="use")(async_function if runs == "async" else function)
    async with Worker(plain):
        with pytest.raises(JobFailed, match="KeyError: 'mine'"):
            await (await plain.find_task("use").enqueue()).result(60)
    assert kit.log == ["open outer", "swallowed", "outer sees KeyError", "close outer"]
    assert any("closing" in message and "fails failed" in message for message in caplog.messages)


@shows("if the function returned and a dependency cannot be closed, such as a commit that fails, the attempt fails")
@pytest.mark.parametrize("runs", ["async", "thread"])
async def test_an_error_behind_the_yield(plain: App, runs: str) -> None:
    kit = Kit()
    outer = kit.provider("generator", "outer")

    def commits(of: str = depends(outer)) -> Iterator[str]:
        yield "session"
        raise OSError("commit failed")

    async def function(one: str = depends(commits)) -> int:
        return 1

    def plain_function(one: str = depends(commits)) -> int:
        return 1

    plain.task(name="use")(function if runs == "async" else plain_function)
    async with Worker(plain):
        with pytest.raises(JobFailed, match="OSError: commit failed"):
            await (await plain.find_task("use").enqueue()).result(60)
    assert kit.log == ["open outer", "outer sees OSError", "close outer"]


@pytest.mark.parametrize("runs", ["async", "thread"])
async def test_a_provider_that_raises(plain: App, runs: str) -> None:
    kit, tries = Kit(), list[int]()
    outer = kit.provider("generator", "outer")

    async def connect(of: str = depends(outer)) -> str:
        tries.append(1)
        if len(tries) == 1:
            raise ConnectionError("refused")
        return of

    async def use(one: str = depends(connect)) -> str:
        return one

    def use_in_a_thread(one: str = depends(connect)) -> str:
        return one

    plain.task(name="use", retry=Retry(attempts=2, base=0))(use if runs == "async" else use_in_a_thread)
    told = Told(plain)
    async with Worker(plain, poll=0.01):
        assert await (await plain.find_task("use").enqueue()).result(60) == "outer"
    [retry] = told.of("retrying")
    assert "refused" in str(retry.error)
    assert kit.log == ["open outer", "outer sees ConnectionError", "close outer", "open outer", "close outer"]


@pytest.mark.parametrize("runs", ["async", "thread"])
async def test_a_stop_closes_what_is_open(plain: App, runs: str) -> None:
    kit, hanging = Kit(), asyncio.Event()
    outer = kit.provider("async generator", "outer")

    async def hangs(of: str = depends(outer)) -> str:
        hanging.set()
        await asyncio.Event().wait()
        return of

    async def use(one: str = depends(hangs)) -> None: ...

    def use_in_a_thread(one: str = depends(hangs)) -> None: ...

    task = plain.task(name="use")(use if runs == "async" else use_in_a_thread)
    async with Worker(plain) as worker:
        job = await task.enqueue()
        await hanging.wait()
        await worker.stop(0)
    assert (await plain.jobs.get(job)).state is State.READY
    assert kit.log == ["open outer", "outer sees CancelledError", "close outer"]


async def test_each_run_of_durable_code_has_its_own(plain: App) -> None:
    kit = Kit()
    session = kit.provider("generator", "session")

    @plain.task
    async def use(one: str = depends(session)) -> str:
        await current().sleep(0.05)
        return one

    async with Worker(plain, poll=0.01):
        assert await (await use.enqueue()).result(60) == "session"
    assert kit.log == ["open session", "session sees Suspend", "close session", "open session", "close session"]


async def test_providers_see_the_job_and_the_state(plain: App) -> None:
    @plain.lifespan
    async def resources() -> AsyncIterator[dict[str, str]]:
        yield {"url": "db"}

    class Client:
        def __init__(self, state: dict[str, str] = depends(resources), timeout: float = 3) -> None:
            self.url = state["url"]
            assert timeout == 3

    class Repo:
        def __init__(self, client: Client = depends(Client, scope="process")) -> None:
            self.client = client

    def of_the_job() -> str:
        return current().task

    @plain.task(name="use")
    async def use(
        repo: Repo = depends(Repo), again: Client = depends(Client, scope="process"), task: str = depends(of_the_job)
    ) -> str:
        assert repo.client is again
        return f"{repo.client.url} {task}"

    @plain.task
    async def partial(n: int = depends(functools.partial(int, "7"))) -> int:
        return n

    async with Worker(plain):
        assert await (await use.enqueue()).result(60) == "db use"
        assert await (await partial.enqueue()).result(60) == 7


@shows("a dependency of the process that fails at the start ends the worker with the reason")
async def test_a_process_dependency_that_fails_ends_the_worker(plain: App) -> None:
    kit, tries = Kit(), list[int]()

    @plain.lifespan
    async def resources() -> AsyncIterator[None]:
        kit.log.append("entered")
        yield
        kit.log.append("left")

    def settings() -> str:
        tries.append(1)
        if len(tries) == 1:
            raise KeyError("DATABASE_URL")
        return "url"

    async def connect(
        pool: str = depends(kit.pool, scope="process"), url: str = depends(settings, scope="process")
    ) -> str:
        return url

    @plain.task
    async def use(one: str = depends(connect, scope="process")) -> str:
        return one

    job, before = await use.enqueue(), asyncio.all_tasks()
    with pytest.raises(
        DependencyFailed, match=r"settings failed before the first claim: KeyError: 'DATABASE_URL' \(.*, line \d+\)"
    ):
        async with Worker(plain):
            pass
    assert kit.log == ["entered", "open pool", "close pool", "left"]
    assert (await plain.jobs.get(job)).state is State.READY
    await nothing_left(before)
    async with Worker(plain):
        assert await job.result(60) == "url"


async def test_values_of_the_process_are_made_when_needed_in_inline_jobs_and_for_late_tasks(plain: App) -> None:
    kit, tries = Kit(), list[int]()
    opened = asyncio.Event()

    async def slow(pool: str = depends(kit.pool, scope="process")) -> str:
        tries.append(1)
        await opened.wait()
        if len(tries) == 1:
            raise OSError("not yet")
        return pool

    async with Worker(plain):

        @plain.task
        async def late(one: str = depends(slow, scope="process")) -> str:
            return one

        @plain.task
        def late_in_a_thread(one: str = depends(slow, scope="process")) -> str:
            return one

        jobs = [await late.options(inline=True).enqueue(), await late_in_a_thread.options(inline=True).enqueue()]
        opened.set()
        for job in jobs:
            if (await job.ended(60)).state is State.SUCCEEDED:
                assert await job.result(60) == "pool"
        assert await (await late.options(inline=True).enqueue()).result(60) == "pool"
        await plain.close()
    assert kit.log.count("open pool") == kit.log.count("close pool") == 1


def of_run() -> int:
    return 1


def of_process(one: int = depends(of_run)) -> int:
    return one


def needs(url: str) -> int:
    return len(url)


def first(other: int = 0) -> int:
    return other


def second(one: int = depends(first)) -> int:
    return one


first.__defaults__ = (depends(second),)


@contextmanager
def managed() -> Iterator[int]:
    yield 1


@asynccontextmanager
async def managed_too() -> AsyncIterator[int]:
    yield 1


async def scope(a: int = depends(of_process, scope="process")) -> None: ...
async def unfilled(a: int = depends(needs)) -> None: ...
async def cycle(a: int = depends(first)) -> None: ...
async def manager(a: Any = depends(managed)) -> None: ...
async def async_manager(a: Any = depends(managed_too)) -> None: ...
async def behind(a: int = depends(of_run), b: int = 1) -> None: ...
async def starred(a: int = depends(of_run), *rest: int) -> None: ...
async def positional(a: int = depends(of_run), /) -> None: ...


async def fastapi_default(a: Any = fastapi.Depends(of_run)) -> None: ...  # noqa: B008  # the mistake
async def fastapi_annotated(a: Annotated[int, fastapi.Depends(of_run)]) -> None: ...
async def annotated(a: Annotated[int, depends(of_run)]) -> None: ...


def for_requests(a: Any = fastapi.Depends(of_run)) -> int:  # noqa: B008
    return 1


async def shared(a: int = depends(for_requests)) -> None: ...


IN_FASTAPI = r"the parameter 'a' has Depends\(\.\.\.\) of fastapi, .* write `a: \.\.\. = depends\(of_run\)`"


@shows("a cycle of dependencies, or one that cannot work, is refused by name when the task is declared")
@pytest.mark.parametrize(
    ("function", "words"),
    [
        (scope, r"its value is one for the process, but .*of_run makes the parameter 'one' for each run"),
        (unfilled, r"needs: the parameter 'url' has no value: give it a default, or depends\(\.\.\.\)"),
        (cycle, r"first: depends on itself: .*first -> .*second -> .*first"),
        (manager, "managed: is a context manager"),
        (async_manager, "managed_too: is a context manager"),
        (behind, "the parameter 'b' stands behind the dependency 'a'"),
        (starred, "the parameter 'rest' stands behind the dependency 'a'"),
        (positional, "the parameter 'a' cannot be given by name"),
        (fastapi_default, f"wrong: {IN_FASTAPI}"),
        (fastapi_annotated, f"wrong: {IN_FASTAPI}"),
        (shared, f"for_requests: {IN_FASTAPI}"),
        (annotated, r"wrong: the annotation of .* 'a' contains depends\(.*of_run\), expected it as the default"),
    ],
)
def test_an_impossible_dependency_is_refused_by_name(function: Callable[..., Any], words: str) -> None:
    app = App("memory://")
    with pytest.raises(BadDependency, match=words):
        app.task(name="wrong")(function)
    assert "wrong" not in app.tasks


def test_wrong_arguments_of_depends() -> None:
    with pytest.raises(BadDependency, match="expected a function that provides a value, found 3"):
        depends(3)  # type: ignore[call-overload]
    with pytest.raises(BadDependency, match=r"give the function itself, depends\(unfilled\)"):
        depends(unfilled())  # type: ignore[call-overload]
    with pytest.raises(BadDependency, match='expected "process" or "run", found \'job\''):
        depends(of_run, scope="job")  # type: ignore[call-overload]


@pytest.mark.parametrize("runs", ["async", "thread"])
async def test_generators_that_yield_never_or_twice_fail_the_attempt(plain: App, runs: str) -> None:
    def never() -> Iterator[int]:
        yield from ()

    async def twice() -> AsyncIterator[int]:
        yield 1
        yield 2

    def forgotten() -> Any:
        return asyncio.sleep(0)

    async def stubborn() -> AsyncIterator[int]:
        yield 1
        try:
            yield 2
        except GeneratorExit:
            yield 3

    for provider, words in (
        (never, "ended without a yield"),
        (twice, "a second time"),
        (stubborn, "a second time"),
        (forgotten, "a coroutine"),
    ):
        asked: Any = depends(provider)

        async def use(one: int = asked) -> None: ...
        def use_in_a_thread(one: int = asked) -> None: ...

        plain.task(name=provider.__name__)(use if runs == "async" else use_in_a_thread)
        async with Worker(plain):
            with pytest.raises(JobFailed, match=words):
                await (await plain.find_task(provider.__name__).enqueue()).result(60)


async def test_a_value_of_the_process_that_breaks_stops_the_worker(plain: App) -> None:
    told, breaks = Told(plain), asyncio.Event()

    async def watched() -> AsyncIterator[int]:
        async def watch() -> None:
            await breaks.wait()
            raise OSError("subscription lost")

        async with asyncio.TaskGroup() as group:
            group.create_task(watch())
            yield 1

    @plain.task
    async def use(one: int = depends(watched, scope="process")) -> int:
        return one

    async with Worker(plain):
        assert await (await use.enqueue()).result(60) == 1
        breaks.set()
        await told.until("worker.stopped")
    assert any("watched failed while it was in use" in str(event.error) for event in told.of("worker.error"))


@shows("a provider that raises SystemExit or KeyboardInterrupt fails the attempt and ends no worker")
@pytest.mark.parametrize("runs", ["async", "thread"])
@pytest.mark.parametrize("kind", ["async", "async generator", "late async generator", "generator"])
@pytest.mark.parametrize("scope", ["run", "process"])
async def test_a_provider_that_exits_fails_the_attempt(plain: App, runs: str, kind: str, scope: Any) -> None:
    async def coroutine() -> None:
        raise SystemExit("no settings")

    async def early() -> AsyncIterator[int]:
        raise KeyboardInterrupt("no settings")
        yield 1

    async def late() -> AsyncIterator[int]:
        yield 1
        raise SystemExit("no settings")

    def generator() -> Iterator[int]:
        raise SystemExit("no settings")
        yield 1

    provider: Any = {
        "async": coroutine,
        "async generator": early,
        "late async generator": late,
        "generator": generator,
    }[kind]

    async def function(one: Any = depends(provider, scope=scope)) -> int:
        return 7

    def plain_function(one: Any = depends(provider, scope=scope)) -> int:
        return 7

    @plain.task
    async def other() -> int:
        return 8

    async with Worker(plain):  # a value of the process is made late, for a task that is declared late
        task: Any = plain.task(function if runs == "async" else plain_function)
        failing = await task.enqueue()
        record = await failing.ended(timeout=60)
        assert await (await other.enqueue()).result(60) == 8
    if kind == "late async generator" and scope == "process":
        assert record.state is State.SUCCEEDED  # closed after its outcome was stored; the error is logged
    else:
        assert record.state is State.FAILED
        assert "Exit" in (record.error or "") or "KeyboardInterrupt" in (record.error or "")


async def test_an_exit_of_what_a_start_needs_names_the_reason(plain: App) -> None:
    async def settings() -> None:
        raise SystemExit("no settings")

    @plain.task
    async def use(one: None = depends(settings, scope="process")) -> None: ...

    with pytest.raises(DependencyFailed, match="failed before the first claim: SystemExit: no settings"):
        await Worker(plain).start()

    @plain.lifespan
    async def resources() -> AsyncIterator[None]:
        raise SystemExit("no database")
        yield

    with pytest.raises(LifespanFailed, match="failed before its yield: SystemExit: no database"):
        await Worker(plain).start()


@shows("a timeout ends what a dependency waits for on the event loop, also for a function in a thread")
@pytest.mark.parametrize("runs", ["async", "thread", "batch", "async batch"])
@pytest.mark.parametrize("where", ["before", "behind"])
async def test_a_timeout_of_a_dependency(plain: App, runs: str, where: str, caplog: pytest.LogCaptureFixture) -> None:
    ended: Log = []

    async def session() -> AsyncIterator[int]:
        try:
            if where == "before":
                await asyncio.Event().wait()
            yield 1
            await asyncio.Event().wait()
        finally:
            ended.append(where)

    async def function(one: int = depends(session)) -> None: ...

    def plain_function(one: int = depends(session)) -> None: ...

    async def many(items: list[int], one: int = depends(session)) -> list[int]:
        return items

    def many_plain(items: list[int], one: int = depends(session)) -> list[int]:
        return items

    if "batch" in runs:
        batch: Any = many if runs == "async batch" else many_plain
        task: Any = plain.batch(size=2, max_wait=0.01, timeout=0.05)(batch)
        args = [1]
    else:
        task, args = plain.task(timeout=0.05)(function if runs == "async" else plain_function), []
    async with Worker(plain):
        record = await (await task.enqueue(*args)).ended(timeout=60)
    assert (record.state, ended) == (State.FAILED, [where])
    assert "ran longer than its timeout" in (record.error or "")
    assert "after another error" not in caplog.text


@pytest.mark.parametrize("runs", ["async", "thread"])
async def test_a_generator_that_fails_before_its_yield_is_not_closed_too(
    plain: App, runs: str, caplog: pytest.LogCaptureFixture
) -> None:
    async def session() -> AsyncIterator[int]:
        raise ValueError("no session")
        yield 1

    async def function(one: int = depends(session)) -> None: ...

    def plain_function(one: int = depends(session)) -> None: ...

    task: Any = plain.task(function if runs == "async" else plain_function)
    async with Worker(plain):
        record = await (await task.enqueue()).ended(timeout=60)
    assert (record.error or "").startswith("ValueError: no session")
    assert not [each for each in caplog.records if each.name == "treadle"]


@shows("a commit that is cancelled behind the yield is a failed attempt")
@pytest.mark.parametrize("runs", ["async", "thread"])
async def test_a_commit_that_is_cancelled(plain: App, runs: str) -> None:
    async def session() -> AsyncIterator[int]:
        yield 1
        raise asyncio.CancelledError  # as a driver whose connection was closed by another task

    async def function(one: int = depends(session)) -> int:
        return one

    def plain_function(one: int = depends(session)) -> int:
        return one

    task: Any = plain.task(function if runs == "async" else plain_function)
    async with Worker(plain):
        job = await task.enqueue()
        assert (await job.ended(timeout=60)).state is State.FAILED
