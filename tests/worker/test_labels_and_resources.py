"""Labels and resources of workers: which tasks a worker claims, and how many of their jobs run at once."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest

from tests.waiting import Signal
from treadle import App, BadOption, Worker, current
from treadle.core.model import Record
from treadle.policy.claim_plan import TURN
from treadle.testing import drain
from treadle.worker.capacity import Capacity, Turns
from treadle.worker.resource_use import ResourceUse
from treadle.worker.session import WorkerSession
from treadle_testkit.shows import shows


class Load:
    """Runs of tasks that end when the test says so."""

    def __init__(self) -> None:
        self.changed, self.running, self.ran = Signal(), list[str](), list[str]()
        self._ends: dict[str, list[asyncio.Event]] = {}

    async def run(self, name: str) -> None:
        end = asyncio.Event()
        self._ends.setdefault(name, []).append(end)
        self.running.append(name)
        self.ran.append(name)
        self.changed.send()
        try:
            await end.wait()
        finally:
            self.running.remove(name)
            self.changed.send()

    def end(self, name: str) -> None:
        """End the run of this name that has run longest."""
        self._ends[name].pop(0).set()

    async def until(self, *names: str) -> None:
        await self.changed.until(lambda: sorted(self.running) == sorted(names), f"these runs: {names}")

    def task(self, app: App, name: str, **options: Any) -> Any:
        async def function() -> None:
            await self.run(name)

        return app.task(name=name, **options)(function)


@pytest.fixture
def load() -> Load:
    return Load()


@pytest.fixture
def fits(monkeypatch: pytest.MonkeyPatch) -> None:
    """Check at each start that the sum of what runs does not exceed what the worker has."""
    take = ResourceUse.take

    def checked(self: ResourceUse, uses: tuple[tuple[str, int], ...]) -> None:
        take(self, uses)
        assert all(self.used[name] <= self.has[name] for name in self.has), self.used

    monkeypatch.setattr(ResourceUse, "take", checked)


def session_of(worker: Worker) -> WorkerSession:
    session = worker._core.session
    assert session is not None
    return session


def capacity_of(worker: Worker) -> Capacity:
    capacity = session_of(worker).parts.capacity
    assert capacity is not None
    return capacity


async def claims(worker: Worker, times: int = 4) -> None:
    """Wait until the worker has claimed so often."""
    session, storage = session_of(worker), session_of(worker).parts.storage
    claimed = Signal()
    with pytest.MonkeyPatch.context() as patch:
        claimed.after(patch, Capacity, "answered")
        for _ in range(times):
            session.state.demand.notify()
            await claimed.again("a claim")
    assert storage is session.parts.storage


# --- labels


@shows("a worker claims only the tasks whose required labels it has")
async def test_a_worker_claims_only_tasks_whose_labels_it_has(app: App, load: Load) -> None:
    for name, requires in {
        "anywhere": (),
        "gpu": ["gpu"],
        "a100": {"gpu": "a100"},
        "europe": {"zone": ("eu", "de")},
        "both": ["gpu=a100", "zone=us"],
    }.items():
        await load.task(app, name, requires=requires).enqueue()
    async with Worker(app, labels={"gpu": "t4", "zone": "de"}, grace=0) as worker:
        await load.until("anywhere", "gpu", "europe")
        assert session_of(worker).parts.heartbeat.presence().labels == (("gpu", "t4"), ("zone", "de"))
        async with Worker(app, labels=["gpu=a100", "zone=us", "ssd"], grace=0):
            await load.until("anywhere", "gpu", "europe", "a100", "both")


async def test_a_worker_serves_no_queue_of_tasks_it_cannot_run(app: App, load: Load) -> None:
    load.task(app, "render", queue="gpu", requires=["gpu"])
    load.task(app, "mail", queue="mail")
    assert Worker(app)._core.queues() == {"mail": 1}
    assert Worker(app, labels=["gpu"])._core.queues() == {"gpu": 1, "mail": 1}


@shows("the worker of tests runs every task, whatever it requires and uses")
async def test_drain_needs_no_labels(app: App) -> None:
    ran: list[str] = []

    @app.task(requires=["gpu"], uses={"memory_mb": 10**9})
    async def render() -> None:
        ran.append("render")

    await render.enqueue()
    assert await drain(app) == 1
    assert ran == ["render"]


# --- resources


@shows("the sum of what runs never exceeds the resources of a worker", "a claim takes no job that has no room")
async def test_running_jobs_use_no_more_than_the_resources(app: App, load: Load, fits: None) -> None:
    small, large = (load.task(app, name, uses={"mb": mb}) for name, mb in (("small", 1000), ("large", 3000)))
    for each in (large, small, small, small, large, load.task(app, "light")):
        await each.enqueue()
    async with Worker(app, concurrency=10, resources={"mb": 5000}, grace=0) as worker:
        await load.until("large", "small", "small", "light")
        assert session_of(worker).parts.heartbeat.presence().resources == (("mb", 5000, 5000),)
        load.end("large")
        await load.until("small", "small", "small", "light")
        load.end("small")
        await load.until("small", "small", "large", "light")
        for row in await app.storage.get([each.record.job.id for each in session_of(worker).state.running.values()]):
            assert row is not None
            assert row.version == 1, "claimed once: no job was given back"


@shows("a worker with resources keeps queue order while its slots, not its resources, bound its claims")
async def test_a_worker_with_resources_keeps_queue_order(app: App, load: Load, fits: None) -> None:
    for name, uses in {"first": {"mb": 1}, "second": {"mb": 1}, "light": None, "last": {"mb": 1}}.items():
        await load.task(app, name, uses=uses).enqueue()
    async with Worker(app, concurrency=1, resources={"mb": 100}, grace=0):
        for name in ("first", "second", "light", "last"):
            await load.until(name)
            load.end(name)
    assert load.ran == ["first", "second", "light", "last"]


@pytest.mark.parametrize("concurrency", [1, 2, 4])
async def test_jobs_without_resources_start_no_earlier_than_others_that_have_room(app: App, concurrency: int) -> None:
    """A worker makes two claims at the same time. The second one must not leave out the jobs with resources."""
    begun, order = list[str](), list[str]()

    @app.task(name="large", uses={"memory": 1})
    async def large(number: int) -> None:
        begun.append(f"large {number}")
        await asyncio.sleep(0)

    @app.task(name="light")
    async def light(number: int) -> None:
        begun.append(f"light {number}")
        await asyncio.sleep(0)

    for number in range(40):
        task = light if number % 10 == 9 else large
        await task.enqueue(number)
        order.append(f"{task.name} {number}")
    async with Worker(app, concurrency=concurrency, resources={"memory": 8}):
        await asyncio.gather(*[(await app.jobs.handle(row.id)).ended() for row in (await app.jobs.list()).records])
    # Jobs of one claim, or of two at the same time, may begin in another order.
    assert all(abs(order.index(name) - at) < 2 * concurrency for at, name in enumerate(begun)), begun


async def test_one_gpu_for_several_tasks(app: App, load: Load, fits: None) -> None:
    tasks = [load.task(app, name, uses={"gpu": 1}) for name in ("one", "two", "three")]
    for each in tasks:
        await each.enqueue()
    async with Worker(app, concurrency=10, resources={"gpu": 1}, grace=0):
        for name in ("one", "two", "three"):
            await load.until(name)
            load.end(name)
        await load.until()


@shows("a task that uses more than a worker has is never claimed by it")
async def test_a_task_larger_than_its_worker_is_not_claimed(app: App, load: Load) -> None:
    for name, uses in {"large": {"gpu": 2}, "other": {"gpu": 1, "disk": 1}, "fits": {"gpu": 1}}.items():
        await load.task(app, name, uses=uses).enqueue()
    async with Worker(app, resources={"gpu": 1}, grace=0) as worker:
        await load.until("fits")
        assert {"large", "fits", "other"} & set(session_of(worker).parts.tasks()) == {"fits"}
        load.end("fits")
        await claims(worker)
    assert load.ran == ["fits"]
    assert {"large", "fits", "other"} & set(Worker(app)._core.tasks()) == set()


@shows("a job that uses much is not starved: after 5 s the worker keeps resources free for it")
async def test_a_large_job_gets_a_reservation_after_5_seconds(app: App, load: Load, fits: None) -> None:
    large, small = load.task(app, "large", uses={"mb": 4}), load.task(app, "small", uses={"mb": 1})
    for _ in range(4):
        await small.enqueue()
    async with Worker(app, concurrency=10, resources={"mb": 4}, grace=0) as worker:
        await load.until(*["small"] * 4)
        capacity, now = capacity_of(worker), [0.0]
        capacity.planner.waits.clear()
        capacity.planner.clock = lambda: now[0]
        turns = Turns(capacity, session_of(worker).parts.storage, ["default"])
        await large.enqueue()
        for _ in range(4):
            await small.enqueue()
        load.end("small")
        await load.changed.until(lambda: load.ran.count("small") == 5, "a small one takes its place")
        await claims(worker, 1)
        now[0] = TURN - 0.1
        await turns.look()
        assert not capacity.reserved
        now[0] = TURN
        await turns.look()
        assert capacity.reserved == session_of(worker).parts.heartbeat.presence().reserved == "large"
        for left in (3, 2, 1):
            load.end("small")
            await load.until(*["small"] * left)
            await claims(worker, 1)
        load.end("small")
        await load.until("large")
        assert not capacity.reserved
        load.end("large")
        await load.until(*["small"] * 3)


async def test_no_turn_for_a_task_without_queued_jobs_or_behind_others(app: App, load: Load) -> None:
    large, small = load.task(app, "large", uses={"mb": 2}), load.task(app, "small", uses={"mb": 1})
    await small.enqueue()
    async with Worker(app, resources={"mb": 2}, concurrency=1, grace=0) as worker:
        await load.until("small")
        capacity = capacity_of(worker)
        turns = Turns(capacity, session_of(worker).parts.storage, ["default"])
        capacity.planner.waits["large"] = float("-inf")
        await turns.look()
        assert not capacity.reserved
        assert not capacity.planner.waits
        await large.enqueue()
        await small.options(priority=1).enqueue()
        capacity.planner.waits["large"] = float("-inf")
        await turns.look()
        assert not capacity.reserved
        assert list(capacity.planner.waits) == ["large"]


@shows("the resources of a lost job are free when its function has ended, not when its lease has")
async def test_lost_jobs_use_their_resources(app: App, fits: None) -> None:
    ends, begun = threading.Event(), Signal()

    @app.task(uses={"gpu": 1})
    def render() -> None:
        begun.send()
        ends.wait(30)

    job = await render.enqueue()
    async with Worker(app, resources={"gpu": 1}, grace=0) as worker:
        capacity, session = capacity_of(worker), session_of(worker)
        await begun.until(lambda: begun.sent == 1, "the run")
        session.parts.heartbeat.lose(session.state.running[job.id])
        await render.enqueue()
        await claims(worker, 2)
        assert capacity.use.used == {"gpu": 1}
        assert begun.sent == 1
        ends.set()
        await begun.until(lambda: begun.sent == 2, "the next run")


@shows("a durable sleep frees the resources of its job")
async def test_a_durable_sleep_frees_the_resources(app: App, load: Load, fits: None) -> None:
    @app.task(uses={"gpu": 1})
    async def nap() -> None:
        load.ran.append("nap")
        load.changed.send()
        await current().sleep("nap", timedelta(hours=1))

    await nap.enqueue()
    await load.task(app, "other", uses={"gpu": 1}).enqueue()
    async with Worker(app, resources={"gpu": 1}, grace=0):
        await load.until("other")
        assert load.ran == ["nap", "other"]


@shows("a call of a batch uses the resources of its task once, however many items it has")
@pytest.mark.parametrize("by", [None, lambda item: item % 2], ids=["together", "by key"])
async def test_a_batch_uses_its_resources_once(
    app: App, load: Load, fits: None, by: Callable[[int], int] | None
) -> None:
    items: list[list[int]] = []

    @app.batch(size=4, max_wait=0.05, by=by, uses={"gpu": 1})
    async def embed(numbers: list[int]) -> list[int]:
        items.append(numbers)
        await load.run("call")
        return numbers

    for number in range(4):
        await embed.enqueue(number)
    async with Worker(app, concurrency=8, resources={"gpu": 1}, grace=0) as worker:
        await load.until("call")
        assert capacity_of(worker).use.used == {"gpu": 1}
        if by is None:
            assert items == [[0, 1, 2, 3]]
            return
        while sum(map(len, items)) < 4:  # an item may open the call of another key, which would need its own room
            calls = len(items)
            load.end("call")
            await load.changed.until(lambda calls=calls: len(items) > calls, "the next call")
        assert sorted(number for each in items for number in each) == [0, 1, 2, 3]


async def test_inline_jobs_need_a_worker_with_labels(app: App, load: Load) -> None:
    """The inline worker has no labels and no resources."""
    inline = load.task(app, "inline", inline=True)
    job = await load.task(app, "render", inline=True, requires=["gpu"]).enqueue()
    await inline.enqueue()
    await load.until("inline")
    [row] = await app.storage.get([job.id])
    assert isinstance(row, Record)
    assert row.version == 0
    load.end("inline")
    await load.until()


# --- what is refused


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"requires": "gpu"}, "expected labels such as"),
        ({"requires": {"gpu": None}}, 'requires=["gpu"]'),
        ({"requires": {"gpu": []}}, "expected a value or a list of values"),
        ({"requires": [""]}, "expected a name of 1-63"),
        ({"requires": ["gpu="]}, "expected a value of 1-255"),
        ({"requires": ["gpu=t4", "gpu=a100"]}, "named twice"),
        ({"requires": {f"l{n}": "x" for n in range(65)}}, "at most 64"),
        ({"uses": {"cpu": 0.5}}, "smaller unit"),
        ({"uses": {"gpu": 0}}, "expected 1 to"),
        ({"uses": {"gpu": True}}, "expected 1 to"),
        ({"uses": ["gpu"]}, "amounts by resource"),
        ({"use": {"gpu": 1}}, "did you mean uses="),
        ({"require": ["gpu"]}, "did you mean requires="),
        ({"num_gpus": 1}, 'uses={"gpu"'),
    ],
)
async def test_invalid_requirements_of_a_task_are_refused(options: dict[str, Any], words: str) -> None:
    with pytest.raises(BadOption) as caught:
        App("memory://").task(name="t", **options)(lambda: None)
    assert words in str(caught.value)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"labels": "gpu"}, "expected labels such as"),
        ({"labels": {"gpu": ["a", "b"]}}, "expected one value"),
        ({"labels": ["gpu=a", "gpu=b"]}, "one value of a label"),
        ({"resources": {"mb": -1}}, "expected 0 to"),
        ({"resources": {"mb": 1.5}}, "smaller unit"),
    ],
)
async def test_invalid_resources_of_a_worker_are_refused(options: dict[str, Any], words: str) -> None:
    app = App("memory://")
    with pytest.raises(BadOption) as caught:
        Worker(app, **options)
    assert words in str(caught.value)


async def test_a_job_cannot_require(app: App, load: Load) -> None:
    with pytest.raises(BadOption, match=r"requires= of @app\.task"):
        load.task(app, "t").options(requires=["gpu"])
