"""Apps on ports: a fleet in one process, which messages use the queue, and what they cost."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

from tests.kit import Told
from tests.waiting import Signal
from treadle import App, BadOption, Retry, Worker, chain, flow
from treadle.ports import MemoryPubSub, MemoryQueue, MemoryStore, memory_backend
from treadle.ports.contract import Listener
from treadle.storage.composed import ComposedStorage
from treadle_testkit.shows import shows

PATIENCE = 60.0  # seconds, on a machine that is busy with other things


@pytest.fixture
def queued(monkeypatch: pytest.MonkeyPatch) -> Signal:
    """Sent after each change of a queue in memory."""
    return Signal().after(monkeypatch, MemoryQueue, "push", "pop", "ack", "release", "dead_letter")


def fleet(backend: Any, size: int, ran: Counter[str]) -> list[App]:
    """Apps with the same tasks, as processes of one deployment have them."""
    apps, met = [], Signal()
    for n in range(size):
        app = App(ports=backend, retry=Retry(base=0.01))

        @app.task(name="add", reduce="sum")
        async def add(a: int, b: int, n: int = n) -> int:
            ran[f"app{n}"] += 1
            await asyncio.sleep(0)
            return a + b

        @app.task(name="fan", reduce="sum")
        async def fan(width: int, app: App = app) -> Any:
            return flow(app.stub("add").job(k, 1) for k in range(width))

        @app.task(name="flaky", retry=Retry(attempts=3, base=0.01))
        async def flaky(of: str) -> str:
            ran[of] += 1
            if ran[of] < 2:
                raise ConnectionError("not yet")
            return of

        @app.task(name="meet")
        async def meet(of: int, n: int = n) -> int:
            ran["here"] += 1
            met.send()
            await met.until(lambda: ran["here"] >= of, f"{of} runs at once")
            return n

        apps.append(app)
    return apps


@shows("an app with fewer than three ports is refused")
def test_an_app_with_fewer_than_three_ports_is_refused() -> None:
    with pytest.raises(BadOption, match="give all three"):
        App(ports=(MemoryQueue(), MemoryStore()))
    with pytest.raises(BadOption, match="only one of url=, storage= and ports="):
        App("memory://", ports=memory_backend())
    with pytest.raises(BadOption, match="needs ports="):
        App("memory://", namespace="x")
    with pytest.raises(BadOption, match="up to 100 characters"):
        App(ports=memory_backend(), namespace="a b")


@shows("several apps on one memory backend share its jobs")
async def test_several_apps_on_one_backend_are_a_fleet() -> None:
    ran: Counter[str] = Counter()
    apps = fleet(memory_backend(), 3, ran)
    sender = apps[0]
    async with sender, Worker(apps[1], concurrency=2), Worker(apps[2], concurrency=2):
        jobs = await sender.enqueue([sender.tasks["add"].job(n, 1) for n in range(60)])
        assert await asyncio.gather(*(job.result(PATIENCE) for job in jobs)) == [n + 1 for n in range(60)]
        fan = await sender.tasks["fan"].enqueue(10)
        assert await fan.workflow.result(PATIENCE) == sum(range(1, 11))
        again = await sender.tasks["flaky"].enqueue("twice")
        assert await again.result(PATIENCE) == "twice"
        assert ran["twice"] == 2
        four = await sender.enqueue([sender.tasks["meet"].job(4) for _ in range(4)])  # two slots each: both are needed
        assert sorted(await asyncio.gather(*(job.result(PATIENCE) for job in four))) == [1, 1, 2, 2]
    assert ran["app0"] == 0  # it has no worker
    assert ran["app1"] + ran["app2"] == 70


@shows("`accept=` divides the tasks of one backend among its workers")
async def test_accept_shards_a_fleet_by_task() -> None:
    backend, ran = memory_backend(), Counter[str]()
    apps = fleet(backend, 2, ran)
    adds = Worker(apps[1], accept=lambda record: record.job.task == "add", poll=0.05)
    async with Worker(apps[0], tasks=["fan"], poll=0.05), adds:
        job = await apps[0].tasks["fan"].enqueue(4)
        assert await job.workflow.result(PATIENCE) == 10
    assert ran == {"app1": 4}


async def test_a_waiter_in_another_app_is_woken_without_polling() -> None:
    ran: Counter[str] = Counter()
    one, other = fleet(memory_backend(), 2, ran)
    async with one, Worker(other, poll=3600):
        job = await one.tasks["add"].enqueue(1, 2)
        assert await job.result(PATIENCE) == 3


async def test_the_queue_wakes_workers_although_no_notification_arrives() -> None:
    class Deaf(MemoryPubSub):
        async def publish(self, channel: str, text: str) -> None:
            raise ConnectionError("nobody hears this")

    queue, _, store = memory_backend()
    ran: Counter[str] = Counter()
    one, other = fleet((queue, Deaf(), store), 2, ran)
    told = Told(other)
    async with one, Worker(other, poll=0.05):
        jobs = await one.enqueue([one.tasks["add"].job(n, 0) for n in range(20)])
        await told.until("succeeded", 20)
        assert ran["app1"] == 20
        assert await jobs[0].result(PATIENCE) == 0


@shows("two namespaces on one backend are separate, and each key has the prefix of its namespace")
async def test_namespaces_are_apart_and_prefix_every_key() -> None:
    backend, heard = memory_backend(), Counter[str]()
    one, other = (App(ports=backend, namespace=name) for name in ("one", "other"))
    for app in (one, other):

        @app.task(name="t")
        async def t(app: str) -> None:
            heard[app] += 1

    async with one, other:
        await one.tasks["t"].options(id="same").enqueue("one")
        await other.tasks["t"].options(id="same").enqueue("other")
        assert [row.id for row in (await one.jobs.list()).records] == ["same"]
        told = Told(other)
        async with Worker(other):
            await told.until("succeeded")
        assert heard == {"other": 1}
    assert {key.partition(":")[0] for key in backend.store._values} == {"one", "other"}


async def test_the_queue_is_empty_when_all_is_done(queued: Signal) -> None:
    backend, ran = memory_backend(), Counter[str]()
    [app] = fleet(backend, 1, ran)
    async with app:
        jobs = await app.enqueue([app.tasks["add"].job(n, 0) for n in range(100)])
        await queued.until(lambda: _is(backend.queue.size, 100), "a message for each job")
        async with Worker(app, poll=0.02):
            await asyncio.gather(*(job.result(PATIENCE) for job in jobs))
            await queued.until(lambda: _is(backend.queue.size, 0), "an empty queue")
    assert backend.queue.dead == []


@shows("a message that cannot be read becomes a dead letter with the reason")
async def test_a_message_that_cannot_be_read_is_set_aside_with_the_reason(queued: Signal) -> None:
    backend, ran = memory_backend(), Counter[str]()
    [app] = fleet(backend, 1, ran)
    await backend.queue.push("{half a me")
    await backend.queue.push('{"other": "program"}')
    async with app, Worker(app, poll=0.02):
        job = await app.tasks["add"].enqueue(1, 1)
        assert await job.result(PATIENCE) == 2
        await queued.until(lambda: len(backend.queue.dead) == 2, "two dead letters")
    assert {dead.body for dead in backend.queue.dead} == {"{half a me", '{"other": "program"}'}
    assert all("expected a wake-up" in dead.reason for dead in backend.queue.dead)


@shows("a message that comes twice, or names an unknown job, changes nothing")
async def test_a_repeated_message_or_one_for_an_unknown_job_changes_nothing(queued: Signal) -> None:
    backend, ran = memory_backend(), Counter[str]()
    [app] = fleet(backend, 1, ran)
    async with app:
        job = await app.tasks["add"].enqueue(1, 1)
        for id in (job.id, job.id, "never-heard-of"):
            await backend.queue.push(f'{{"job": "{id}"}}')
        async with Worker(app, poll=0.02):
            assert await job.result(PATIENCE) == 2
            await queued.until(lambda: _is(backend.queue.size, 0), "an empty queue")
    assert ran["app0"] == 1
    assert backend.queue.dead == []


@shows("a job of a task that no worker runs stays queued and counts no attempt")
async def test_the_job_of_a_task_without_workers_stays_queued_and_counts_no_attempt() -> None:
    backend, ran = memory_backend(), Counter[str]()
    [app] = fleet(backend, 1, ran)
    async with app:
        job = await app.stub("nobody.runs").enqueue()
        async with Worker(app, poll=0.02):
            other = await app.tasks["add"].enqueue(1, 1)
            assert await other.result(PATIENCE) == 2
        found = await app.jobs.get(job.id)
        assert found is not None
        assert (found.state, found.attempt, found.lost) == ("ready", 0, 0)
        counts = (await app.storage.stats()).counts
        assert [(count.task, count.queued) for count in counts if not count.state.final] == [("nobody.runs", 1)]
        [bell] = await backend.queue.pop(5, 1) or [None]
        assert bell is None or bell.attempt == 1


class Counting(MemoryQueue):
    """A queue with the limits of rented ones: at most ten messages a pop, no delay beyond 15 minutes, and each pop is
    paid for."""

    def __init__(self, clock: Any) -> None:
        super().__init__(clock, max_batch=10, max_delay=900, max_lease=12 * 3600)
        self.pops = 0

    async def pop(self, limit: int, lease: float) -> Any:
        self.pops += 1
        return await super().pop(limit, lease)


@shows("a worker fills its slots from a queue that returns ten messages a call without waiting for its poll")
async def test_ten_messages_at_a_time_do_not_slow_a_worker_down() -> None:
    """A worker fills all its slots at once, instead of ten for each poll, which is an hour here."""
    import time

    _, pubsub, store = memory_backend()
    ran: Counter[str] = Counter()
    [app] = fleet((Counting(time.time), pubsub, store), 1, ran)
    async with app:
        jobs = await app.enqueue([app.tasks["add"].job(n, 0) for n in range(500)])
        async with Worker(app, concurrency=100, poll=3600):
            await asyncio.gather(*(job.result(PATIENCE) for job in jobs))
    assert ran["app0"] == 500


@shows("an idle worker reads its queue once a poll")
async def test_an_idle_worker_pops_once_a_poll(queued: Signal) -> None:
    import time

    _, pubsub, store = memory_backend()
    queue = Counting(time.time)
    app = App(ports=(queue, pubsub, store))
    calls: Counter[str] = Counter()
    storage = app.storage
    assert isinstance(storage, ComposedStorage)
    claim = storage.claim

    async def counted(ask: Any) -> Any:
        calls["claim"] += 1
        return await claim(ask)

    storage.claim = counted  # type: ignore[method-assign]

    @app.task
    async def nothing() -> None: ...

    async with app, Worker(app, poll=0.02):
        await queued.until(lambda: calls["claim"] > 10 and queue.pops > 5, "many polls")
        assert queue.pops <= calls["claim"]


@shows("a delay above the maximum of the queue is kept and counts no attempt")
async def test_a_delay_beyond_the_maximum_of_the_queue_counts_no_attempt(queued: Signal) -> None:
    from treadle.testing import HandClock

    clock = HandClock()
    queue = Counting(clock)
    app = App(ports=(queue, MemoryPubSub(), MemoryStore(clock)), clock=clock)

    @app.task
    async def later() -> str:
        return "done"

    async with app:
        job = await later.options(delay=3600).enqueue()
        async with Worker(app, poll=0.01):
            for _ in range(3):
                clock.advance(901)
                pops = queue.pops
                await queued.until(lambda pops=pops: queue.pops > pops + 1, "two polls")  # type: ignore[misc]
                assert (await app.jobs.get(job.id)).state == "ready"  # type: ignore[union-attr]
            clock.advance(901)
            assert await job.result(PATIENCE) == "done"
        found = await app.jobs.get(job.id)
        assert found is not None
        assert found.lost == 0


async def test_sync_ports_run_in_threads_and_serve_as_well() -> None:
    class Plain:
        """A port made of plain functions, as a user writes it over a blocking client."""

        def __init__(self, port: Any) -> None:
            self._port = port

        def __getattr__(self, name: str) -> Any:
            method = getattr(self._port, name)

            def call(*args: Any, **named: Any) -> Any:
                return asyncio.run(method(*args, **named))

            return call if callable(method) else method

    queue, pubsub, store = memory_backend()
    ran: Counter[str] = Counter()
    [app] = fleet((Plain(queue), pubsub, Plain(store)), 1, ran)
    async with app, Worker(app):
        job = await app.tasks["fan"].enqueue(3)
        assert await job.workflow.result(PATIENCE) == 6


async def test_jobs_larger_than_one_value_are_kept_in_pieces() -> None:
    backend = memory_backend()
    app = App(ports=backend)

    @app.task
    async def echo(text: str) -> str:
        return text

    text = "ä" * 1_000_000
    async with app, Worker(app):
        job = await echo.enqueue(text)
        assert await job.result(PATIENCE) == text
        last = await chain(echo.job("x"), echo.job()).enqueue()
        assert await last.result(PATIENCE) == "x"
    assert max(len(value) for value, _ in backend.store._values.values()) < 500_000


async def test_a_new_process_finds_everything() -> None:
    backend, ran = memory_backend(), Counter[str]()
    first, second = fleet(backend, 2, ran)
    async with first:
        job = await first.tasks["fan"].enqueue(5)
    async with second, Worker(second):
        assert await (await second.jobs.handle(job.id)).workflow.result(PATIENCE) == 15


async def _is(ask: Any, value: int) -> bool:
    return bool(await ask() == value)


@shows("each pub/sub channel has the prefix of its namespace")
async def test_namespaces_prefix_every_channel() -> None:
    class Written(MemoryPubSub):
        def __init__(self) -> None:
            super().__init__()
            self.published: set[str] = set()
            self.subscribed: set[str] = set()

        async def publish(self, channel: str, text: str) -> None:
            self.published.add(channel)
            await super().publish(channel, text)

        async def subscribe(self, channel: str, listener: Listener) -> Callable[[], None]:
            self.subscribed.add(channel)
            return await super().subscribe(channel, listener)

    queue, _, store = memory_backend()
    pubsub, ran = Written(), Counter[str]()
    for name in ("one", "other"):
        app = App(ports=(queue, pubsub, store), namespace=name)

        @app.task(name="t")
        async def t(here: str) -> None:
            ran[here] += 1

        async with app, Worker(app, poll=3600):
            await (await t.enqueue(name)).result(PATIENCE)
    assert ran == {"one": 1, "other": 1}
    assert {channel.partition(":")[0] for channel in pubsub.published} == {"one", "other"}
    assert pubsub.published <= pubsub.subscribed  # a published message reaches every other process of its namespace


@shows("two apps with a backend each work in one process")
async def test_two_apps_of_two_places_work_in_one_process() -> None:
    """Each app has its own broker, tasks and jobs, and one may enqueue for the other."""
    near, far = App(ports=memory_backend()), App(ports=memory_backend())

    @far.task(name="double")
    async def double(n: int) -> int:
        return 2 * n

    @near.task(name="ask")
    async def ask(n: int) -> int:
        return await (await double.enqueue(n)).result(PATIENCE)

    async with near, far, Worker(near), Worker(far):
        assert await (await ask.enqueue(21)).result(PATIENCE) == 42
        assert [row.job.task for row in (await near.jobs.list()).records] == ["ask"]
        assert [row.job.task for row in (await far.jobs.list()).records] == ["double"]
