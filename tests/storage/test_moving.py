"""`operate.moving` and `treadle storage move`: between each pair of storages, interrupted, while others work."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.kit import Spy, Told
from tests.storage.moving_kit import OUTSIDE, PLACES, made, populate, url_of
from treadle import App, StorageMoved, StorageUnavailable, Unsupported, Worker
from treadle.admin.storage_move import OpenStorage, abort, compare, move, prepare
from treadle.core.limit_model import Limit
from treadle.core.model import Claim, NewJob, Outcome, State
from treadle.core.query_model import Query
from treadle.errors import MoveFailed, StorageError
from treadle.storage import connect
from treadle.storage.contract import Storage
from treadle.storage.memory import MemoryStorage

ROUND = (*OUTSIDE[1:], *OUTSIDE[:1])  # zipped with OUTSIDE: each of them as source and as target
PAIRS = [*((one, other) for one in PLACES for other in PLACES), ("sqlite", "shards"), ("shards", "redis")]


class Unplugged(Exception):
    """A power failure."""


class Cut:
    """A storage whose loads fail at the given numbers: before they are stored, or after."""

    def __init__(self, inner: Any, *moments: tuple[int, str]) -> None:
        self._inner, self._moments, self._loads = inner, dict(moments), 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    async def load(self, load: Any, mark: Any) -> None:
        self._loads += 1
        when = self._moments.pop(self._loads, "")
        if when == "before":
            raise Unplugged
        await self._inner.load(load, mark)
        if when == "after":
            raise Unplugged


@asynccontextmanager
async def places(one: str, other: str, folder: Path) -> AsyncIterator[tuple[Storage, Storage]]:
    opened = [await made(kind, folder) for kind in (one, other)]
    try:
        yield opened[0], opened[1]
    finally:
        for storage in opened:
            await storage.close()


@pytest.mark.slow
@pytest.mark.parametrize(("one", "other"), PAIRS)
async def test_each_pair_cut_off_twice(tmp_path: Path, one: str, other: str) -> None:
    """Wherever the move was interrupted, both storages have the same set afterwards and report so; then the jobs
    run."""
    async with places(one, other, tmp_path) as (source, target):
        jobs, step = (2_000, 150) if one != other else (300, 40)  # each more than six loads, so both failures happen
        await populate(source, jobs, queue=None if "shards" in (one, other) else 1)
        old = OpenStorage(source, "the old one")
        new = OpenStorage(Cut(target, (2, "before"), (4, "after")), "the new one")  # type: ignore[arg-type]
        for _ in range(2):
            with pytest.raises(Unplugged):
                await move(old, new, wait=0, step=step)
            with pytest.raises(StorageUnavailable, match="receives the jobs of the old one"):
                await target.enqueue([NewJob(id="early", task="t")])
        moved = await move(old, new, wait=0, step=step)
        found = await compare(old, new, step=333)
        assert found.same
        assert moved.resumed
        assert (moved.jobs, moved.digest) == (found.source.jobs, found.source.digest)
        assert moved.running > 0
        with pytest.raises(StorageMoved, match="the new one"):
            await source.enqueue([NewJob(id="late", task="t")])
        with pytest.raises(MoveFailed, match="are already at"):
            await move(old, new)
        await _goes_on(target)


async def _goes_on(target: Storage) -> None:
    """A caller that waits for a job gets its ending; keys are held; jobs that ran under a lease have none."""
    [held] = await target.enqueue([NewJob(id="new", task="keyed", key="k3")])
    assert held.job.id == "keyed-000003"
    [later] = await target.get(["later-000001"])
    assert later is not None
    await target.settle([Outcome(id=later.id, version=later.version, state=State.SUCCEEDED)])
    [fan] = await target.get(["fan-000001"])
    assert fan is not None
    assert fan.state is State.READY
    ask = Claim(worker="v#1", queues=(("slow", 9),), limit=9)
    assert (await target.claim(ask)).records == ()
    [child] = await target.get(["child-parent-000002"])
    assert child is not None
    await target.settle([Outcome(id=child.id, version=child.version, state=State.SUCCEEDED)])
    [parent] = await target.get(["parent-000002"])
    assert parent is not None
    assert (parent.state, parent.function_done) == (State.READY, True)


async def test_workers_and_producers_retry_during_a_move(tmp_path: Path) -> None:
    """A worker at the source finishes its jobs; one at the target starts when it opens; every job runs to its end."""
    old_url, new_url = url_of("sqlite", tmp_path), url_of("redis", tmp_path)
    ends, ran = asyncio.Event(), list[str]()

    def program(url: str) -> App:
        app = App(url)

        @app.task(name="work")
        async def work(name: str) -> str:
            if name == "long":
                await ends.wait()
            ran.append(name)
            return name

        return app

    old, new = program(old_url), program(new_url)
    told = Told(old)
    async with old, new:
        tasks = [app.tasks["work"] for app in (old, new)]
        async with Worker(old, poll=0.01, grace=1), Worker(new, poll=0.01):
            long = await tasks[0].enqueue("long")
            await told.until("started")
            waiting = await tasks[0].options(after=[long]).enqueue("waiting")
            moving = asyncio.create_task(
                move(OpenStorage(old.storage, "old"), OpenStorage(new.storage, "new"), wait=30)
            )
            sent = await until_it_moves(tasks[0])
            ends.set()
            moved = await moving
            assert moved.running == 0
            assert await (await new.jobs.handle(waiting.id)).result(30) == "waiting"
            assert await (await new.jobs.handle(long.id)).result(30) == "long"
            assert await (await tasks[1].enqueue("after")).result(30) == "after"
            rows = (await new.jobs.list(limit=10_000)).records
            for row in rows:
                await (await new.jobs.handle(row.id)).ended(30)
    assert sorted(ran) == sorted(["after", "long", "waiting", *["short"] * sent])


async def until_it_moves(task: Any) -> int:
    """Enqueue one after the other until a call is refused. Return how many jobs were stored."""
    for sent in range(100_000):
        try:
            await task.enqueue("short")
        except StorageMoved:
            return sent
    raise AssertionError("it never moved")


@pytest.mark.filterwarnings("ignore::treadle.OldRows")  # it reads them on purpose
async def test_a_worker_is_notified_that_it_lost_a_moved_job(tmp_path: Path) -> None:
    """After the wait is over. The job runs again in its new storage when its lease has expired."""
    went, lost = asyncio.Event(), asyncio.Event()
    old_url, new_url = url_of("sqlite", tmp_path), url_of("sqlite", tmp_path)
    old, new = App(old_url), App(new_url)

    @old.task(name="work")
    async def work() -> str:
        went.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            lost.set()
            raise
        return "old"

    @new.task(name="work")
    async def again() -> str:
        return "new"

    async with old, new, Worker(new, poll=0.05):
        async with Worker(old, lease=0.6, poll=0.05, grace=1):
            job = await work.enqueue()
            await went.wait()
            moved = await move(OpenStorage(old.storage, "old"), OpenStorage(new.storage, "new"), wait=0)
            assert moved.running == 1
            async with asyncio.timeout(30):
                await lost.wait()
            assert await (await new.jobs.handle(job.id)).result(30) == "new"
        row = await new.jobs.get(job.id)
        assert (row.lost, row.attempt) == (0, 1)
        assert (await old.jobs.get(job.id)).state is State.RUNNING


async def test_an_impossible_move_is_refused(tmp_path: Path) -> None:
    async with places("memory", "sqlite", tmp_path) as (source, target):
        old, new = OpenStorage(source, "old"), OpenStorage(target, "new")
        await source.enqueue([NewJob(id="a", task="t")])
        await target.enqueue([NewJob(id="b", task="t")])
        with pytest.raises(MoveFailed, match="already holds 1 job,"):
            await move(old, new)
        assert (await source.claim(Claim(worker="w#1"))).records  # no job may start
        other, third = await made("memory", tmp_path), await made("memory", tmp_path)
        with pytest.raises(Unplugged):
            await move(old, OpenStorage(Cut(other, (1, "before")), "other"), wait=0)  # type: ignore[arg-type]
        with pytest.raises(MoveFailed, match="moving, or has moved, to other"):
            await move(old, OpenStorage(third, "third"), wait=0)
        with pytest.raises(MoveFailed, match="receives jobs from old in another move"):
            await move(OpenStorage(third, "third"), OpenStorage(other, "other"), wait=0)
        assert await abort(old, OpenStorage(other, "other"))
        assert not await abort(old, OpenStorage(other, "other"))
        await source.enqueue([NewJob(id="c", task="t")])
        await other.enqueue([NewJob(id="c", task="t")])  # no job had arrived there, so it is open too
        await move(old, OpenStorage(third, "third"), wait=0)
        with pytest.raises(MoveFailed, match="has ended"):
            await abort(old, OpenStorage(third, "third"))
    with pytest.raises(Unsupported):
        await move(OpenStorage(Spy(MemoryStorage()), "old"), OpenStorage(Spy(MemoryStorage()), "new"))


async def test_a_copy_that_differs_is_not_opened(tmp_path: Path) -> None:
    async with places("memory", "memory", tmp_path) as (source, target):
        await populate(source, 200)
        loads = target.load  # type: ignore[attr-defined]

        async def forgetful(load: Any, mark: Any) -> None:
            await loads(type(load)(load.jobs[1:], load.rules, load.rates, load.cursor), mark)

        target.load = forgetful  # type: ignore[attr-defined]
        with pytest.raises(MoveFailed, match=r"do not hold the same jobs .*: 18 and 17"):
            await move(OpenStorage(source, "old"), OpenStorage(target, "new"), wait=0, step=1_000)
        with pytest.raises(StorageError):
            await target.claim(Claim(worker="w#1"))


async def test_a_late_run_of_the_command_changes_nothing(tmp_path: Path) -> None:
    """A second run has ended the move, and jobs have run in the new storage: the live storage stays open."""
    for one in ("memory", *OUTSIDE):
        async with places(one, one, tmp_path) as (source, target):
            await source.enqueue([NewJob(id=f"j{number}", task="t") for number in range(6)])
            asleep, awake = asyncio.Event(), asyncio.Event()
            slow = OpenStorage(Sleepy(target, asleep, awake), "new")  # type: ignore[arg-type]
            first = asyncio.create_task(move(OpenStorage(source, "old"), slow, wait=0, step=3))
            await asleep.wait()
            assert (await move(OpenStorage(source, "old"), OpenStorage(target, "new"), wait=0)).resumed
            [ran] = (await target.claim(Claim(worker="w#1", limit=1))).records
            await target.settle([Outcome(id=ran.job.id, version=ran.version, state=State.SUCCEEDED)])
            await target.enqueue([NewJob(id="fresh", task="t")])
            awake.set()
            with pytest.raises(MoveFailed, match="another run has finished this move"):
                await first
            await target.enqueue([NewJob(id="later", task="t")])
            with pytest.raises(MoveFailed, match="has ended"):
                await abort(OpenStorage(source, "old"), OpenStorage(target, "new"))
            with pytest.raises(StorageMoved):
                await source.claim(Claim(worker="w#1"))


class Sleepy(Cut):
    """Stops before its last load."""

    def __init__(self, inner: Any, asleep: asyncio.Event, awake: asyncio.Event) -> None:
        super().__init__(inner)
        self._asleep, self._awake = asleep, awake

    async def load(self, load: Any, mark: Any) -> None:
        if load.cursor is None:
            self._asleep.set()
            await self._awake.wait()
        await super().load(load, mark)


async def test_an_abort_during_the_comparison_leaves_the_target_unopened(tmp_path: Path) -> None:
    for one in ("memory", *OUTSIDE):
        async with places(one, one, tmp_path) as (source, target):
            await source.enqueue([NewJob(id="a", task="t")])
            old, new = OpenStorage(source, "old"), OpenStorage(target, "new")
            with pytest.raises(MoveFailed, match="aborted"):
                await move(old, OpenStorage(GivenUp(target, lambda old=old, new=new: abort(old, new)), "new"), wait=0)  # type: ignore[arg-type]
            assert len((await source.claim(Claim(worker="w#1"))).records) == 1
            with pytest.raises(StorageUnavailable, match="aborted"):
                await target.claim(Claim(worker="w#1"))
            with pytest.raises(MoveFailed, match="holds some of the jobs"):
                await move(old, new, wait=0)


class GivenUp(Cut):
    """An operator cancels the move while it compares."""

    def __init__(self, inner: Any, give_up: Any) -> None:
        super().__init__(inner)
        self._give_up = give_up

    async def unload(self, cursor: str | None, limit: int) -> Any:
        give_up, self._give_up = self._give_up, None
        if give_up is not None:
            assert await give_up()
        return await self._inner.unload(cursor, limit)


async def test_a_prepared_target_waits_for_the_move(tmp_path: Path) -> None:
    for one in ("memory", *OUTSIDE):
        async with places(one, one, tmp_path) as (source, target):
            old, new = OpenStorage(source, "old"), OpenStorage(target, "new")
            await source.enqueue([NewJob(id="a", task="t")])
            await prepare(old, new)
            await prepare(old, new)
            with pytest.raises(StorageUnavailable, match="receives the jobs of old"):
                await target.enqueue([NewJob(id="early", task="t")])
            await source.enqueue([NewJob(id="b", task="t")])
            assert await abort(old, new)
            assert (await target.claim(Claim(worker="w#1"))).records == ()  # open again
            await prepare(old, new)
            assert (await move(old, new, wait=0)).jobs == 2


async def test_a_rule_at_the_target_is_refused_before_the_move(tmp_path: Path) -> None:
    for one in ("memory", *OUTSIDE):
        async with places(one, one, tmp_path) as (source, target):
            await target.set_limits([Limit("smtp", slots=1)])
            await source.enqueue([NewJob(id="a", task="t")])
            with pytest.raises(MoveFailed, match="smtp"):
                await move(OpenStorage(source, "old"), OpenStorage(target, "new"), wait=0)
            assert len((await source.claim(Claim(worker="w#1"))).records) == 1


async def test_a_move_killed_with_some_shards_open_is_completed(tmp_path: Path) -> None:
    async with places("memory", "shards", tmp_path) as (source, target):
        await source.enqueue([NewJob(id="a", task="t")])
        with pytest.raises(Unplugged):
            await move(OpenStorage(source, "old"), OpenStorage(DiesOpening(target), "new"), wait=0)  # type: ignore[arg-type]
        with pytest.raises(MoveFailed, match="are already at"):
            await move(OpenStorage(source, "old"), OpenStorage(target, "new"), wait=0)
        await target.enqueue([NewJob(id=f"j{number}", task="t") for number in range(20)])


class DiesOpening(Cut):
    async def set_mark(self, mark: Any) -> None:
        if mark.role == "arrived":
            await self._inner._first.set_mark(mark)
            raise Unplugged
        await self._inner.set_mark(mark)


# --- the command


def treadle(*words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "treadle", *words]
    return subprocess.run(command, check=False, capture_output=True, text=True, timeout=600)


@pytest.mark.slow
@pytest.mark.parametrize(("one", "other"), list(zip(OUTSIDE, ROUND, strict=True)))
async def test_kill_9_in_the_middle_of_the_command(tmp_path: Path, one: str, other: str) -> None:
    """Called again, it continues; afterwards both storages hold the same, and --check says so."""
    source, target = url_of(one, tmp_path), url_of(other, tmp_path)
    storage = connect(source)
    await storage.open()
    await populate(storage, 2_000)
    await storage.close()
    kills = await asyncio.to_thread(killed_and_done, source, target, 50)
    assert kills > 0
    checked = await asyncio.to_thread(treadle, "storage", "move", source, target, "--check", "--json")
    assert checked.returncode == 0, checked.stderr
    assert json.loads(checked.stdout)["same"] is True
    arrived = connect(target)
    await arrived.open()
    try:
        assert (await arrived.find(Query(limit=0, count=True))).total == json.loads(checked.stdout)["jobs"][0]
        await _goes_on(arrived)
    finally:
        await arrived.close()


@pytest.mark.soak
@pytest.mark.parametrize(("one", "other"), [(one, other) for one in OUTSIDE for other in OUTSIDE])
async def test_soak_a_hundred_thousand_killed_in_the_middle(tmp_path: Path, one: str, other: str) -> None:
    """100,000 mixed jobs; kill -9 when about half have arrived, then on to the end."""
    source, target = url_of(one, tmp_path), url_of(other, tmp_path)
    storage, began = connect(source), time.perf_counter()
    await storage.open()
    await populate(storage, SOAKED)
    jobs = sum(count.jobs for count in (await storage.stats()).counts)
    await storage.close()
    filled = time.perf_counter()
    print(f"\n{one} -> {other}: {jobs:,} jobs made in {filled - began:.0f} s", flush=True)
    await asyncio.to_thread(kill_when_half_has_arrived, source, target, jobs)
    killed = time.perf_counter()
    done = await asyncio.to_thread(treadle, "storage", "move", source, target, "--wait", "0", "--json")
    assert done.returncode == 0, done.stderr
    moved = json.loads(done.stdout)["moved"]
    assert (moved["jobs"], moved["resumed"]) == (jobs, True)
    print(
        f"killed after {killed - filled:.1f} s, the rest and comparing {time.perf_counter() - killed:.1f} s", flush=True
    )
    checked = await asyncio.to_thread(treadle, "storage", "move", source, target, "--check")
    assert checked.returncode == 0, checked.stdout


SOAKED = int(os.environ.get("TEST_SOAK_MOVE_JOBS", "100000"))


def kill_when_half_has_arrived(source: str, target: str, jobs: int) -> None:
    command = [sys.executable, "-m", "treadle", "storage", "move", source, target, "--wait", "0"]
    child = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    assert child.stderr is not None
    for line in child.stderr:
        words = line.split()
        if words[:1] == ["carrying"] and int(words[2].partition("/")[0].replace(",", "")) > jobs // 2:
            break
    child.send_signal(signal.SIGKILL)
    child.communicate()


def killed_and_done(source: str, target: str, step: int) -> int:
    """Run the command and kill it, later each time, until it ends by itself. Return how often it was killed."""
    slowly = _slowly()
    for kills in range(40):
        child = subprocess.Popen(
            [sys.executable, "-m", "treadle", "storage", "move", source, target, "--wait", "0", "--step", str(step)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ},
        )
        try:
            out, err = child.communicate(timeout=(0.1 + 0.1 * kills) * slowly)
        except subprocess.TimeoutExpired:
            child.send_signal(signal.SIGKILL)
            child.communicate()
            continue
        if kills and "are already at" in err:
            return kills  # the run before was killed after its last commit, but before its output
        assert child.returncode == 0, out + err
        assert "on both sides" in out
        return kills
    raise AssertionError("it never came to its end")


def _slowly() -> float:
    """How long this machine takes to start the command and list the jobs, compared with a fast one."""
    began = time.perf_counter()
    treadle("--version")
    return max(1.0, (time.perf_counter() - began) / 0.15)


@pytest.mark.slow
def test_the_command_prints_its_phases(tmp_path: Path) -> None:
    source, target = f"sqlite:///{tmp_path}/old.db", f"sqlite:///{tmp_path}/new.db"
    assert treadle("enqueue", "mail.send", "a", "--url", source).returncode == 0
    dry = treadle("storage", "move", source, target, "--dry-run")
    assert dry.returncode == 0
    assert "mail.send" in dry.stdout
    assert "1 job would be moved" in dry.stderr
    assert not (tmp_path / "new.db").exists()
    done = treadle("storage", "move", source, target, "--json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["moved"]["jobs"] == 1
    late = treadle("enqueue", "mail.send", "a", "--url", source)
    assert late.returncode == 1
    assert "were moved to" in late.stderr
    again = treadle("storage", "move", source, target)
    assert again.returncode == 0
    assert "are already at" in again.stderr
    assert json.loads(treadle("storage", "move", source, target, "--json").stdout)["moved"] is None
    assert treadle("storage", "move", source, target, "--check").returncode == 0
    assert treadle("enqueue", "mail.send", "a", "--url", target).returncode == 0
    differs = treadle("storage", "move", source, target, "--check")
    assert differs.returncode == 1
    assert "they differ" in differs.stdout
    assert treadle("storage", "move", source, target, "--abort").returncode == 1


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (("sqlite:///nowhere.db", "sqlite:///new.db"), 2),
        (("memory://", "sqlite:///new.db"), 2),
        (("sqlite:///a.db", "sqlite:///a.db"), 2),
        (("sqlite:///a.db", "sqlite:///b.db", "--check", "--abort"), 2),
        (("sqlite:///a.db",), 2),
    ],
)
def test_the_command_refuses_wrong_arguments(words: tuple[str, ...], code: int) -> None:
    assert treadle("storage", "move", *words).returncode == code
