"""Suspects: a job that lost its worker runs again alone, and only a worker that it loses then counts against it."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.fixtures import LASTING, a_url
from tests.kit import Spy, Told, lose, work
from tests.waiting import Signal, until
from tests.worker import process_tasks
from treadle import App, Record, Retry, State, Worker, current, flow
from treadle.core.clock import moment
from treadle.core.model import LOST_BY, Claim, LeaseRenewal, Presence
from treadle.policy.guilt import guilt_of, is_suspect, plain_note, standing
from treadle.testing import HandClock, drain
from treadle.worker.config import WorkerConfig
from treadle.worker.core import WorkerCore
from treadle.worker.trials import Suspect
from treadle_testkit.shows import shows


class Room:
    """Which functions run at the same time. Functions that call `enter` block until the test opens the door."""

    def __init__(self, app: App) -> None:
        self.inside: list[str] = []
        self.beside: dict[str, list[str]] = {}  # job -> what ran when it began
        self.order: list[str] = []
        self.changed, self.door, self.doors = Signal(), asyncio.Event(), threading.Event()
        self.lock = threading.Lock()

        @app.task(name="held")
        async def held(name: str) -> None:
            with self.enter(name):
                await self.door.wait()

        @app.task(name="quick")
        async def quick(name: str) -> None:
            with self.enter(name):
                pass

        @app.task(name="blocking")
        def blocking(name: str) -> None:
            with self.enter(name):
                self.doors.wait(60)

        self.held, self.quick, self.blocking = held, quick, blocking

    @contextmanager
    def enter(self, name: str) -> Iterator[None]:
        with self.lock:
            self.beside[name], self.order = list(self.inside), [*self.order, name]
            self.inside.append(name)
        self.changed.send()
        try:
            yield
        finally:
            with self.lock:
                self.inside.remove(name)
            self.changed.send()

    def open(self) -> None:
        self.door.set()
        self.doors.set()

    async def has(self, *names: str) -> None:
        await self.changed.until(lambda: set(names) <= set(self.inside), f"the start of {names}")

    async def had(self, *names: str) -> None:
        await self.changed.until(
            lambda: set(names) <= set(self.order) and not set(names) & set(self.inside), f"the end of {names}"
        )


@pytest.fixture
def room(app: App) -> Iterator[Room]:
    room = Room(app)
    yield room
    room.open()


async def a_suspect(app: App, clock: HandClock, task: Any, *args: Any, **options: Any) -> str:
    job = await task.options(**options).enqueue(*args) if options else await task.enqueue(*args)
    await lose(app.storage, clock, job.id)
    return str(job.id)


def suspect_of(row: Record) -> Suspect:
    """A suspect that another worker has claimed in no time."""
    claimed = row.started_at or 0.0
    return Suspect(row.id, row.version, row.job.task, claimed, claimed)


async def row_of(app: App, id: str) -> Record:
    [row] = await app.storage.get([id])
    assert row is not None
    return row


@shows("a job that lost its worker runs when nothing else runs in the process, and nothing begins next to it")
async def test_a_suspect_waits_for_the_others_and_runs_alone(
    app: App, clock: HandClock, room: Room, told: Told
) -> None:
    suspects = [await a_suspect(app, clock, room.held, f"suspect {n}", queue="late") for n in range(2)]

    async def are_claimed() -> bool:
        return [(await row_of(app, id)).state for id in suspects] == [State.RUNNING] * 2

    async with work(app, queues=["default"], concurrency=5), work(app, queues=["late"], concurrency=5, name="late"):
        await room.held.enqueue("a")
        await room.blocking.enqueue("b")
        await room.has("a", "b")
        await until(are_claimed, "the claims of the suspects")
        for id in suspects:
            assert standing(await row_of(app, id)) == "waits"
            assert (await app.jobs.explain(id)).startswith("Worker 'late' has held it since ")
        await room.quick.enqueue("c")
        room.doors.set()
        await room.had("b")
        assert await are_claimed()
        room.door.set()
        await told.until("succeeded", 5)
    assert room.beside["suspect 0"] == room.beside["suspect 1"] == []
    assert all(not name.startswith("suspect") for names in room.beside.values() for name in names)
    assert sorted(room.order) == ["a", "b", "c", "suspect 0", "suspect 1"]


async def test_nothing_begins_while_a_suspect_runs(app: App, clock: HandClock, room: Room, told: Told) -> None:
    await a_suspect(app, clock, room.held, "suspect")
    async with work(app, concurrency=5), work(app, concurrency=5):
        await room.has("suspect")
        for name in "abc":
            await room.quick.enqueue(name)
        room.door.set()
        await told.until("succeeded", 4)
    assert room.order[0] == "suspect"
    assert not any("suspect" in names for names in room.beside.values())


@shows("before a suspect begins, its row says that it runs alone; when it has ended, its losses count no longer")
async def test_the_row_of_a_suspect_that_runs_alone(app: App, clock: HandClock, told: Told) -> None:
    kinds = []

    @app.task(retry=Retry(attempts=3, base=0.0))
    async def fails() -> None:
        row = await row_of(app, current().id)
        kinds.append((guilt_of(row).kind, is_suspect(row)))
        if len(kinds) < 3:
            raise ValueError

    id = await a_suspect(app, clock, fails)
    async with work(app):
        await told.until("retrying", 2)
        await told.until("succeeded")
    assert kinds == [("alone", True), (None, False), (None, False)]
    assert (await row_of(app, id)).lost == 1


async def test_a_job_of_another_thread_counts_too(app: App, clock: HandClock, room: Room, told: Told) -> None:
    """Two workers of one app, each on a loop and in a thread of its own."""
    id, stop = await a_suspect(app, clock, room.quick, "suspect", queue="late"), threading.Event()

    async def elsewhere() -> None:
        async with work(app, queues=["other"]):
            await asyncio.to_thread(stop.wait, 60)

    thread = threading.Thread(target=lambda: asyncio.run(elsewhere()))
    thread.start()
    try:
        await room.blocking.options(queue="other").enqueue("there")
        await room.has("there")
        async with work(app, queues=["late"]):
            await told.until("reaped")
            room.doors.set()
            await told.until("succeeded", 2)
    finally:
        stop.set()
        await asyncio.to_thread(thread.join)
    assert room.beside["suspect"] == []
    assert (await row_of(app, id)).state is State.SUCCEEDED


@shows(
    "a suspect that is never alone is put off uncounted, so that others are not held up, and at last runs next to them"
)
async def test_a_suspect_that_is_never_alone(app: App, clock: HandClock, room: Room, spy: Spy, told: Told) -> None:
    id = await a_suspect(app, clock, room.quick, "suspect", queue="late")
    async with work(app, lease=3_600), work(app, queues=["late"], lease=0.3):
        await room.held.enqueue("endless")
        await room.has("endless")

        async def has_waited() -> bool:
            return guilt_of(await row_of(app, id)).waits == waits

        for waits in (1, 2, 3):
            await spy.until(has_waited, "its release")
            await room.quick.enqueue(f"{waits}")
            await room.had(f"{waits}")
            clock.advance(2.4)
        await room.had("suspect")
    assert room.beside["suspect"] == ["endless"]
    row = await row_of(app, id)
    assert (row.state, row.attempt, row.lost) == (State.SUCCEEDED, 1, 1)


@shows("a worker that stops releases a suspect that waits, and one that runs alone, uncounted")
@pytest.mark.parametrize("begun", [False, True])
async def test_a_stop_releases_a_suspect(app: App, clock: HandClock, room: Room, told: Told, begun: bool) -> None:
    if not begun:
        await room.blocking.options(queue="other").enqueue("there")
    id = await a_suspect(app, clock, room.held, "suspect", queue="late")
    async with work(app, queues=["other"]):
        if not begun:
            await room.has("there")
        worker = work(app, queues=["late"], grace=0)
        await worker.start()
        await told.until("reaped")
        if begun:
            await room.has("suspect")
        await worker.stop()
        row = await row_of(app, id)
        assert (row.state, row.attempt, row.lost, guilt_of(row).alone) == (State.READY, 0, 1, 0)
        assert is_suspect(row)
        assert ("suspect" in room.order) is begun
        room.open()
    await lose(app.storage, clock, id)
    assert guilt_of(await row_of(app, id)).alone == 0


async def test_a_suspect_begins_after_its_note_is_stored(
    app: App, clock: HandClock, room: Room, spy: Spy, told: Told
) -> None:
    """The storage is away when the worker wants to store that the job runs alone."""
    id = await a_suspect(app, clock, room.quick, "suspect", queue="late")
    async with work(app, queues=["other"]):
        await room.held.options(queue="other").enqueue("there")
        await room.has("there")
        async with work(app, queues=["late"]):
            await told.until("reaped")
            spy.away["heartbeat"] = 3
            room.door.set()
            await told.until("succeeded", 2)
    assert spy.away["heartbeat"] == 0
    assert (await row_of(app, id)).state is State.SUCCEEDED


async def test_a_suspect_whose_lease_is_lost_blocks_no_other_job(
    app: App, clock: HandClock, room: Room, told: Told
) -> None:
    id = await a_suspect(app, clock, room.held, "suspect")
    async with work(app, lease=0.3):
        await room.has("suspect")
        other = Claim(worker="other#1", ids=(id,), lease=3600)
        while not (await app.storage.claim(other)).records:
            clock.advance(1)
        await told.until("lost")
        await room.quick.enqueue("next")
        await room.had("next")
    assert guilt_of(await row_of(app, id)).alone == 1


@shows("a suspect of a batch task is called alone")
async def test_a_suspect_item_is_a_batch_of_one(app: App, clock: HandClock, told: Told) -> None:
    calls = []

    @app.batch(size=10, max_wait=0.01)
    async def items(numbers: list[int]) -> list[int]:
        calls.append(numbers)
        return numbers

    jobs = [await items.enqueue(n) for n in range(4)]
    await lose(app.storage, clock, jobs[0].id, jobs[1].id)
    async with work(app):
        await told.until("succeeded", 4)
    assert sorted(calls) == [[0], [1], [2, 3]]


async def test_a_suspect_that_waits_for_another_job_does_not_stop_it(app: App, clock: HandClock, room: Room) -> None:
    @app.task
    async def child() -> None:
        stands.append(standing(await row_of(app, id)))
        with room.enter("child"):
            pass

    @app.task
    async def parent() -> None:
        stands.append(standing(await row_of(app, id)))
        with room.enter("parent"):
            job = await child.enqueue()
            await job.result(timeout=60)

    stands = list[str | None]()
    id = await a_suspect(app, clock, parent)
    async with work(app):
        await room.had("parent", "child")
    row = await row_of(app, id)
    assert (row.state, guilt_of(row).kind, stands) == (State.SUCCEEDED, None, ["alone", "shares"])


@shows("a suspect in a thread that waits for another job does not stop it")
async def test_a_suspect_in_a_thread_that_waits_for_another_job(app: App, clock: HandClock, room: Room) -> None:
    @app.task
    def parent() -> None:
        with room.enter("parent"):
            room.quick.enqueue_sync("child").result_sync(60)

    id = await a_suspect(app, clock, parent)
    async with work(app):
        await room.had("parent", "child")
    row = await row_of(app, id)
    assert (row.state, guilt_of(row).kind) == (State.SUCCEEDED, None)


@pytest.mark.parametrize("kind", LASTING)
async def test_a_suspect_in_a_process_that_waits_for_another_job(kind: str, tmp_path: Path) -> None:
    with a_url(kind, tmp_path) as url:
        async with App(url) as app:
            waits_for = app.task(kind="process")(process_tasks.waits_for)
            leaf = app.task(name="leaf", queue="late")(lambda: 7)
            other = await leaf.enqueue()
            job = await waits_for.enqueue(url, other.id)
            [row] = (await app.storage.claim(Claim(worker="dead#1", ids=(job.id,), lease=3600))).records
            lease = [LeaseRenewal(row.job.id, row.version)]
            for renewals, seconds in ((lease, 0.0), ([], 60.0)):
                await app.storage.heartbeat(Presence(worker="dead"), renewals, seconds)
            async with work(app, queues=["default"]):

                async def begins() -> bool:
                    return guilt_of(await row_of(app, job.id)).kind == "alone"

                await until(begins, "its trial")
                async with work(app, queues=["late"]):
                    assert await job.result(60) == 7
            assert (await row_of(app, job.id)).lost == 1


async def test_a_batch_of_one_that_waits_for_another_job(app: App, clock: HandClock, room: Room) -> None:
    @app.batch(size=10, max_wait=0.01)
    async def parents(names: list[str]) -> list[str]:
        for name in names:
            with room.enter(name):
                await (await room.quick.enqueue(f"child of {name}")).result(timeout=60)
        return names

    await a_suspect(app, clock, parents, "parent")
    async with work(app):
        await room.had("parent", "child of parent")


@shows("a suspect in a thread runs alone; so does one in a process, and a durable one")
@pytest.mark.parametrize("kind", ["thread", "process", "durable"])
async def test_suspects_of_each_kind_run_alone(app: App, clock: HandClock, room: Room, told: Told, kind: str) -> None:
    steps: list[str | None] = []

    @app.task
    async def durable(n: int) -> int:
        async def step() -> int:
            steps.append(guilt_of(await row_of(app, current().id)).kind)
            return n * 2

        return await current().step("double", step)

    tasks = {
        "thread": room.blocking,
        "process": app.task(kind="process")(process_tasks.double),
        "durable": durable,
    }
    name: Any = 2 if kind in ("process", "durable") else "suspect"
    id = await a_suspect(app, clock, tasks[kind], name, queue="late")
    async with work(app, queues=["other"]):
        await room.held.options(queue="other").enqueue("beside")
        await room.has("beside")
        async with work(app, queues=["late"]):
            await told.until("reaped")
            assert guilt_of(await row_of(app, id)).kind is None
            assert not steps
            room.open()
            await told.until("succeeded", 2)
    row = await row_of(app, id)
    assert (row.state, row.attempt, row.lost) == (State.SUCCEEDED, 1, 1)
    assert room.beside.get("suspect", []) == []
    assert steps == ["alone"] * (kind == "durable")


@pytest.mark.parametrize("kind", ["async", "thread", "process", "batch"])
async def test_a_death_alone_counts_for_each_kind(app: App, clock: HandClock, told: Told, kind: str) -> None:
    """The last one is noted as alone, so the job fails at its next claim, without another run."""

    def in_process(n: int) -> int:
        raise AssertionError

    async def asynchronous(n: int) -> int:
        raise AssertionError

    async def batch(items: list[int]) -> list[int]:
        raise AssertionError

    task: Any = {
        "async": lambda: app.task(max_lost=1)(asynchronous),
        "thread": lambda: app.task(max_lost=1)(in_process),
        "process": lambda: app.task(kind="process", max_lost=1)(process_tasks.double),
        "batch": lambda: app.batch(max_lost=1, max_wait=0.01)(batch),
    }[kind]()
    id = await a_suspect(app, clock, task, 1)
    await lose(app.storage, clock, id, alone=True)
    async with work(app):
        await told.until("failed")
    row = await row_of(app, id)
    assert (row.state, row.reason) == (State.FAILED, "lost")


async def test_a_suspect_without_a_limit_is_never_failed(app: App, clock: HandClock, told: Told) -> None:
    @app.task(max_lost=0)
    async def tried() -> int:
        return 1

    id = await a_suspect(app, clock, tried)
    await lose(app.storage, clock, id, times=7, alone=True)
    async with work(app):
        await told.until("succeeded")


async def test_inline_jobs_that_come_meanwhile_run_afterwards(app: App, clock: HandClock, room: Room) -> None:
    await a_suspect(app, clock, room.held, "suspect")
    async with work(app):
        await room.has("suspect")
        await room.quick.options(inline=True, queue="nobody").enqueue("after")
        room.door.set()
        await room.had("suspect", "after")
    assert room.beside["after"] == []


async def test_many_suspects_are_tried_one_after_the_other(app: App, clock: HandClock, room: Room, told: Told) -> None:
    jobs = [await room.quick.enqueue(f"{n}") for n in range(30)]
    await lose(app.storage, clock, *[job.id for job in jobs])
    async with work(app, concurrency=8), work(app, concurrency=8):
        await told.until("succeeded", 30)
    assert set(map(tuple, room.beside.values())) == {()}
    assert len(room.order) == 30


@shows("the ending of a workflow whose workers were lost is tried alone too")
async def test_an_ending_that_loses_its_workers(app: App, clock: HandClock) -> None:
    @app.task(name="one")
    async def one(n: int) -> int:
        return n

    @app.task(name="root", max_lost=2)
    async def root() -> Any:
        return flow(one.job(0), one.job(1))

    jobs = [await root.enqueue() for _ in range(2)]
    await drain(app, tasks=["root"])
    await drain(app, tasks=["one"])
    await lose(app.storage, clock, jobs[0].id, jobs[1].id, times=4)
    await lose(app.storage, clock, jobs[1].id, times=2, alone=True)
    await drain(app)
    assert (await jobs[0].result()) is not None
    row = await row_of(app, jobs[1].id)
    assert row.state is State.FAILED
    assert "2 workers were lost" in (row.error or "")


# --- the seam for a trial process


async def offered(
    app: App, clock: HandClock, room: Room, *names: str, **options: Any
) -> tuple[Worker, list[Any], Signal]:
    for name in names:
        await a_suspect(app, clock, room.held, name, **options)
    worker, offers, signal = work(app, concurrency=2), list[Any](), Signal()

    def offer(suspects: Any) -> None:
        offers.extend(suspects)
        signal.send()

    worker._core.offer_suspects = offer
    await worker.start()
    await signal.until(lambda: len(offers) == len(names), "the offer")
    return worker, offers, signal


async def test_another_worker_takes_over_a_suspect(app: App, clock: HandClock, room: Room, told: Told) -> None:
    holder, [suspect], _ = await offered(app, clock, room, "suspect")
    await room.quick.enqueue("beside")
    await room.had("beside")  # it takes no slot, and holds nobody up
    taken, trial = Signal(), WorkerCore(app._core, WorkerConfig(name="trial", queues={}, concurrency=1))
    await trial.start()
    assert holder._core.hand_over(suspect.id, suspect.version)
    assert not holder._core.hand_over(suspect.id, suspect.version)
    await holder.stop()  # from the hand-over on it does not release the job or renew its lease
    assert (await row_of(app, suspect.id)).state is State.RUNNING
    done = asyncio.create_task(trial.try_alone(suspect, taken.send))
    await taken.until(lambda: taken.sent, "the start of the trial")
    await room.has("suspect")
    assert guilt_of(await row_of(app, suspect.id)).kind == "alone"
    assert (await row_of(app, suspect.id)).state is State.RUNNING
    room.door.set()
    assert await done
    assert (await row_of(app, suspect.id)).state is State.SUCCEEDED
    assert not await trial.try_alone(suspect, taken.send)
    await trial.stop()
    assert len(told.of("reaped")) == 1


@shows("once a job has killed a worker alone, the suspects that were next to it run next to each other again")
async def test_a_death_alone_clears_the_others(app: App, clock: HandClock, room: Room, told: Told) -> None:
    poison = await room.quick.enqueue("poison")
    others = [await room.held.enqueue(name) for name in "abc"]
    await lose(app.storage, clock, poison.id, *[job.id for job in others])
    await lose(app.storage, clock, poison.id, alone=True)
    async with work(app, concurrency=5, ordered=True):  # one dispatcher, so that the culprit is the first to wait
        await room.has(*"abc")
        room.open()
        await told.until("succeeded", 4)
    assert room.beside["poison"] == []
    assert {(await row_of(app, job.id)).lost for job in others} == {1}


async def test_a_suspect_that_waits_for_its_turn_is_cleared(app: App, clock: HandClock, room: Room, told: Told) -> None:
    """The culprit is claimed by another worker of the program, after the others."""
    poison = await room.quick.options(queue="late").enqueue("poison")
    others = [await room.held.enqueue(name) for name in "ab"]
    await lose(app.storage, clock, poison.id, *[job.id for job in others])
    await lose(app.storage, clock, poison.id, alone=True)
    await room.held.options(queue="other").enqueue("beside")
    async with work(app, queues=["other"], lease=3_600):
        await room.has("beside")
        async with work(app, queues=["default", "late"], concurrency=2, lease=3_600):
            await told.until("reaped")
            room.door.set()
            await told.until("succeeded", 4)
    assert room.beside["poison"] == []


async def test_a_worker_releases_the_suspects_that_another_process_has_cleared(
    app: App, clock: HandClock, room: Room
) -> None:
    holder, offers, _ = await offered(app, clock, room, "a", "b")
    reasons = [(await row_of(app, each.id)).reason or "" for each in offers]
    explained = [each.removeprefix(LOST_BY) for each in reasons]
    assert not holder._core.hand_over(offers[0].id, offers[0].version, explained)
    await room.has("a", "b")
    room.open()
    await holder.stop()


async def test_a_worker_tries_its_suspects_itself_when_no_process_can(app: App, clock: HandClock, room: Room) -> None:
    worker, _, _ = await offered(app, clock, room, "a", "b", "c")
    worker._core.trials_failed()
    room.door.set()
    await room.had("a", "b", "c")
    await worker.stop()
    assert set(map(tuple, room.beside.values())) == {()}


async def test_a_worker_that_stops_releases_the_suspects_it_holds(app: App, clock: HandClock, room: Room) -> None:
    worker, offers, _ = await offered(app, clock, room, "a")
    await worker.stop()
    row = await row_of(app, offers[0].id)
    assert (row.state, row.lost, room.order) == (State.READY, 1, [])
    assert not worker._core.hand_over(offers[0].id, offers[0].version)


@asynccontextmanager
async def a_trial(app: App) -> AsyncIterator[WorkerCore]:
    trial = WorkerCore(app._core, WorkerConfig(name="trial", queues={}, concurrency=1))
    await trial.start()
    try:
        yield trial
    finally:
        await trial.stop()


async def left_by_its_holder(app: App, clock: HandClock, room: Room, **options: Any) -> Suspect:
    holder, [suspect], _ = await offered(app, clock, room, "suspect", **options)
    assert holder._core.hand_over(suspect.id, suspect.version)
    await holder.stop()
    return suspect


async def test_a_trial_ends_when_its_worker_has_no_such_task(app: App, clock: HandClock, room: Room) -> None:
    """A deploy may have removed it since its holder was started. The next suspect must not wait for ever."""
    suspect = await left_by_its_holder(app, clock, room)
    async with a_trial(app) as trial:
        del app._core.tasks["held"]
        assert not await trial.try_alone(suspect, lambda: None)
    assert (await row_of(app, suspect.id)).state is State.READY


async def test_a_deadline_passes_while_another_worker_holds_the_suspect(app: App, clock: HandClock, room: Room) -> None:
    """The trial begins long after the claim."""
    suspect = await left_by_its_holder(app, clock, room, deadline=moment(clock() + 50))
    clock.advance(20)
    async with a_trial(app) as trial:
        assert not await trial.try_alone(suspect, lambda: None)
    await drain(app)
    row = await row_of(app, suspect.id)
    assert (row.state, row.reason, room.order) == (State.FAILED, "expired", [])


async def test_a_trial_that_ends_before_it_begins(app: App, clock: HandClock, room: Room) -> None:
    """The code of the trial process fails the job for its losses, which that of its holder did not."""
    id = await a_suspect(app, clock, room.held, "suspect")
    await lose(app.storage, clock, id, alone=True)
    worker = await app.storage.claim(Claim(worker="holder#1", ids=(id,), lease=3600))
    room.held._core.max_lost = 1
    async with a_trial(app) as trial:
        assert not await trial.try_alone(suspect_of(worker.records[0]), lambda: None)
    row = await row_of(app, id)
    assert (row.state, row.reason, room.order) == (State.FAILED, "lost", [])


async def test_a_suspect_that_was_never_alone_elsewhere_is_alone_in_a_trial_process(
    app: App, clock: HandClock, room: Room
) -> None:
    id = await a_suspect(app, clock, room.quick, "suspect")
    claimed = await app.storage.claim(Claim(worker="holder#1", ids=(id,), lease=3600))
    [row], taken = claimed.records, Signal()
    for _ in range(3):
        note = plain_note(await row_of(app, id), waited=True)
        await app.storage.heartbeat(Presence(worker="holder"), [LeaseRenewal(id, row.version, note)], 3600)
    async with a_trial(app) as trial:
        assert await trial.try_alone(suspect_of(row), taken.send)
    assert taken.sent == 1


async def test_a_trial_process_that_stops_releases_the_suspect_that_it_was_sent(
    app: App, clock: HandClock, room: Room
) -> None:
    suspect = await left_by_its_holder(app, clock, room)
    await room.held.options(queue="other").enqueue("beside")
    async with work(app, queues=["other"]), a_trial(app) as trial:
        await room.has("beside")  # so that the suspect waits
        trying = asyncio.create_task(trial.try_alone(suspect, lambda: None))
        await asyncio.sleep(0)  # it reads the row
        await trial.stop()
        assert not await trying
        row = await row_of(app, suspect.id)
        assert (row.state, row.lost, room.order) == (State.READY, 1, ["beside"])
        room.open()
