"""`app.testing(storage=...)`: which storages it refuses, and what it leaves behind."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.testing.kit import GIVEN, a_given
from treadle import App, BadOption, Limit, StorageUnavailable, current, flow
from treadle.core.clock import Clock
from treadle.core.limit_model import Declare
from treadle.core.model import Claim, NewJob, Presence
from treadle.errors import StorageError
from treadle.storage import connect
from treadle.storage.contract import Storage
from treadle.storage.http import HttpStorage
from treadle.storage.memory import MemoryStorage
from treadle.testing import HandClock, NotEmpty
from treadle.testing.given_storage import MARK, Given
from treadle_testkit import faults

LASTING = tuple(kind for kind in GIVEN if kind != "memory")


@pytest.fixture
def app() -> App:
    return App("memory://")


@pytest.fixture(params=LASTING)
def given(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Given]:
    """An empty storage that outlives a test."""
    with a_given(request.param, tmp_path) as given:
        yield given


def make(given: Given, clock: Clock) -> Storage:
    return connect(given, now=clock) if isinstance(given, str) else given(clock)


async def put(given: Given, use: Callable[[Storage], Any], clock: Clock | None = None) -> Any:
    """Change the storage, as another program would."""
    storage = make(given, clock or HandClock())
    await storage.open()
    try:
        return await use(storage)
    finally:
        await storage.close()


async def ids(given: Given) -> list[str | None]:
    rows = await put(given, lambda storage: storage.get(["theirs", "job-000001"]))
    return [row and row.job.id for row in rows]


# --- the beginning


async def test_a_storage_with_jobs_is_refused_and_left_as_it_is(app: App, given: Given) -> None:
    """Ended jobs count too, because their ids are taken."""
    await put(given, lambda storage: storage.enqueue([NewJob(id="theirs", task="send")]))
    for _ in range(2):
        with pytest.raises(NotEmpty, match=r"found 1 job \(theirs of send, ready\).* storage that is made for tests"):
            await app.testing(storage=given).__aenter__()
        assert await ids(given) == ["theirs", None]
    assert app.url == "memory://"
    async with app.testing() as t:
        assert await t.drain() == 0


async def test_a_storage_with_rules_or_workers_is_refused(app: App, given: Given) -> None:
    await put(given, lambda storage: storage.set_limits([Limit("smtp", slots=2)]))
    with pytest.raises(NotEmpty, match="rules of the limits smtp"):
        await app.testing(storage=given).__aenter__()
    await put(given, lambda storage: storage.set_limits([Limit("smtp")]))
    await put(given, lambda storage: storage.heartbeat(Presence(worker="theirs", ttl=60), [], 60))
    with pytest.raises(NotEmpty, match=r"workers \(theirs\)"):
        await app.testing(storage=given).__aenter__()


async def test_two_tests_on_one_storage(app: App, given: Given) -> None:
    """The second test is refused, and changes nothing of the first one."""
    other = App("memory://")

    @app.task(name="send")
    async def send() -> None: ...

    async with app.testing(storage=given) as t:
        with pytest.raises(NotEmpty, match="the mark of a test that is running or was killed"):
            await other.testing(storage=given).__aenter__()
        await send.enqueue()
        assert await t.drain() == 1


def test_storages_whose_clock_cannot_be_moved_are_refused(app: App) -> None:
    with pytest.raises(BadOption, match=r"http://127\.0\.0\.1:7373.*its own clock.*that the server uses"):
        app.testing(storage="http://127.0.0.1:7373")
    wrong: Any
    for wrong in (MemoryStorage(), MemoryStorage, None):
        with pytest.raises(BadOption, match="expected a URL or a function"):
            app.testing(storage=wrong)
        with pytest.raises(BadOption, match="expected a URL or a function"):
            app.sync.testing(storage=wrong)

    async def makes(clock: Any) -> Any: ...

    wrong = makes
    with pytest.raises(BadOption, match="expected a plain function, found the coroutine function makes"):
        app.testing(storage=wrong)
    with pytest.raises(BadOption, match="the storage itself stores at the commit"):
        app.testing(storage="sqlite:///jobs.db", within="at_once")


async def test_functions_that_ignore_the_clock_are_refused(app: App, tmp_path: Path) -> None:
    with pytest.raises(BadOption, match="SqliteStorage does not read the clock that it was given"):
        await app.testing(storage=lambda clock: connect(f"sqlite:///{tmp_path / 'a.db'}")).__aenter__()
    assert await put(f"sqlite:///{tmp_path / 'a.db'}", lambda storage: storage.limits(use=False)) == ()

    def anew(clock: Clock) -> Storage:
        return MemoryStorage(clock)

    with pytest.raises(BadOption, match="makes a separate storage at each call"):
        await app.testing(storage=anew).__aenter__()
    assert app.url == "memory://"


async def test_a_missing_server_leaves_the_app_unchanged(app: App) -> None:
    storage = app.storage
    with pytest.raises(StorageUnavailable):
        await app.testing(storage="redis://127.0.0.1:1/0").__aenter__()
    assert app.storage is storage


# --- the end


def busy(app: App) -> dict[str, Any]:
    """Tasks that leave rows of all kinds."""

    @app.task(name="limited", limits=["api"])
    async def limited(n: int) -> int:
        return n

    @app.task(name="waits")
    async def waits() -> None:
        await current().step("once", lambda: 1)
        await current().wait_for("never")

    @app.task(name="keeps", keep=300 * 86_400)
    async def keeps() -> None: ...

    @app.every(60, name="minutely")
    @app.task(name="tick")
    async def tick() -> None: ...

    @app.task(name="fails")
    async def fails() -> None:
        raise ValueError

    app.limits.declare(Limit("api:ada", rate=1, per=86_400))
    return {task.name: task for task in (limited, waits, keeps, tick, fails)}


async def scene(app: App, t: Any, tasks: dict[str, Any]) -> list[Any]:
    await app.limits.set(Limit("api", rate=2, per=3600), Limit("gpu", slots=1))
    limited = tasks["limited"]
    for tenant in ("ada", "bob", "bob", "bob"):
        await limited.options(limits=[f"api:{tenant}"], key=None).enqueue(1)
    await limited.options(key="k").enqueue(2)
    await limited.options(limits=["gpu"], queue="shut").enqueue(3)
    await app.queues.pause("shut")
    await flow(*(limited.options(limits=()).job(n) for n in range(3))).enqueue()
    await tasks["keeps"].enqueue()
    await tasks["waits"].enqueue()
    await tasks["fails"].enqueue()
    ran = [await t.drain(), await t.advance(90)]
    rows = (await app.jobs.list(limit=500, count=True)).records
    return [ran, sorted((row.job.task, row.state, row.attempt) for row in rows)]


@pytest.mark.slow
async def test_the_next_test_finds_an_empty_storage(app: App, given: Given) -> None:
    """Rates, pauses, schedules, signals and rows with a long retention: the same scene has the same result."""
    tasks, found = busy(app), []
    for _ in range(3):
        async with app.testing(storage=given) as t:
            found.append(await scene(app, t, tasks))
    assert found == [found[0]] * 3
    async with app.testing() as t:
        assert await scene(app, t, tasks) == found[0]


async def test_jobs_of_a_failed_test_are_removed(app: App, given: Given) -> None:
    @app.task
    async def send() -> None: ...

    async def fails() -> None:
        async with app.testing(storage=given):
            await send.enqueue()
            raise ZeroDivisionError

    for _ in range(2):
        with pytest.raises(ZeroDivisionError):
            await fails()
    assert await ids(given) == [None, None]


async def test_a_job_that_runs_elsewhere_is_removed(app: App, given: Given) -> None:
    @app.task
    async def send() -> None: ...

    async with app.testing(storage=given) as t:
        await send.enqueue()
        [row] = (await t.storage.claim(Claim(worker="gone#1", queues=(("default", 1),), tasks=None, limit=1))).records
        assert row.job.id == "job-000001"
    assert await ids(given) == [None, None]


async def test_jobs_that_another_program_stores_meanwhile_are_left(app: App, given: Given) -> None:
    """Everything else stays too, because its owner is unknown."""
    now = HandClock(1_800_000_000.0)

    @app.task
    async def send() -> None: ...

    async def during() -> None:
        async with app.testing(storage=given):
            await send.enqueue()
            await put(given, lambda storage: storage.enqueue([NewJob(id="theirs", task="send")]), now)

    with pytest.raises(
        NotEmpty, match=r"another program stored jobs while the test ran \(theirs\); nothing was removed"
    ):
        await during()
    assert await ids(given) == ["theirs", "job-000001"]
    assert app.url == "memory://"


async def test_a_storage_that_another_test_has_taken_is_left(app: App, given: Given) -> None:
    """Two tests that begin at the same time may both find it empty; one of them writes the last mark."""

    @app.task
    async def send() -> None: ...

    async def during() -> None:
        async with app.testing(storage=given):
            await send.enqueue()
            await put(given, lambda storage: storage.set_limits([Declare(Limit(MARK, slots=7))]))

    with pytest.raises(NotEmpty, match="another test has started on it meanwhile; nothing was removed"):
        await during()
    assert await ids(given) == [None, "job-000001"]


# --- other kinds of tests


@pytest.fixture
def sync_testing(app: App, given: Given) -> Callable[[], Any]:
    return partial(app.sync.testing, storage=given)


def test_a_synchronous_test_uses_a_given_storage(app: App, sync_testing: Callable[[], Any]) -> None:
    @app.task(name="then")
    async def then() -> str:
        return "async"

    @app.task(name="plain")
    def plain(n: int) -> int:
        assert t.enqueued(plain)
        app.sync.enqueue(then.options(delay=60).job())
        return n

    for _ in range(2):
        with sync_testing() as t:
            job = app.sync.enqueue(plain.job(7))
            assert t.drain() == 1
            assert app.sync.result(job, timeout=0) == 7
            assert t.assert_enqueued(then.options(delay=60).job()).record.state == "ready"
            assert t.advance(60) == 1
            assert [call.record.state for call in t.enqueued(then)] == ["succeeded"]


async def test_the_storage_may_be_wrapped(app: App, tmp_path: Path) -> None:
    @app.task
    async def send() -> None: ...

    url = f"sqlite:///{tmp_path / 'jobs.db'}"
    broken = faults.lost("enqueue", 1)
    async with app.testing(storage=lambda clock: faults.Faulty(connect(url, now=clock), [broken])) as t:
        spec = send.job()
        with pytest.raises(StorageUnavailable):
            await app.enqueue(spec)
        assert len(t.enqueued(send)) == 1
        await app.enqueue(spec)
        assert (len(t.enqueued(send)), await t.drain()) == (1, 1)


@pytest.mark.parametrize("kind", ["sqlite", "postgres"])
async def test_a_transaction_of_a_run(app: App, kind: str, tmp_path: Path) -> None:
    """`current().transaction()` is the storage's own."""

    @app.task
    async def write() -> None:
        async with current().transaction() as connection:
            found = connection.execute("SELECT 1")
            assert found if kind == "sqlite" else await found

    with a_given(kind, tmp_path) as given:
        async with app.testing(storage=given) as t:
            job = await write.enqueue()
            assert await t.drain(raise_errors=True) == 1
            assert (await t.jobs.get(job)).state == "succeeded"


@pytest.mark.parametrize("kind", ["redis", "shards", "ports"])
async def test_within_needs_a_storage_that_has_it(app: App, kind: str, tmp_path: Path) -> None:
    """So a test on a storage without it raises the same error as production."""

    @app.task
    async def send() -> None: ...

    with a_given(kind, tmp_path) as given:
        async with app.testing(storage=given) as t:
            with pytest.raises(StorageError, match="does not support within="):
                await app.enqueue(send.job(), within=object())
            t.assert_not_enqueued(send)


async def test_a_function_that_answers_a_client_of_a_server_is_refused(app: App) -> None:
    """Also if its URL does not show that it is a client."""
    with pytest.raises(StorageError):
        await app.testing(storage=lambda clock: HttpStorage("http://127.0.0.1:1")).__aenter__()
