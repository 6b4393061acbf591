"""Operations over several shards, cut off at every trip: calls, and workflows that move to the first shard.

A process dies before or after any trip, and another one continues. The call is stored as a whole or not at all, and
only once.
"""

from __future__ import annotations

import asyncio
import itertools
import os
from collections.abc import Awaitable, Callable, Sequence
from hashlib import md5
from typing import Any

import pytest

from tests.servers import valkey
from tests.storage.shards_kit import SHARDS, any_id
from treadle.core.ids import derived, is_derived
from treadle.core.limit_model import Limit
from treadle.core.model import Claim, LeaseRenewal, NewJob, Outcome, Presence, Record, State
from treadle.core.query_model import Query
from treadle.errors import BadUrl, StorageUnavailable, Unsupported
from treadle.storage import connect
from treadle.storage.redis import RedisStorage, ShardedRedis
from treadle.storage.redis.routing import Layout, is_random
from treadle.testing import HandClock

_numbers = itertools.count()
RANDOM = "0192f0c1-1111-7222-8333-{:012x}"  # ids as Treadle generates them


class Died(Exception):
    pass


class Cut:
    """Ends a process at its n-th trip. `answered`: after the server has executed it, so that only the answer is
    lost."""

    def __init__(self, at: int, answered: bool) -> None:
        self.left, self.answered = at, answered
        self.dead = False

    def into(self, storage: ShardedRedis) -> None:
        for shard in storage._shards:
            pool = shard._pool
            pool.run, pool.command = self._cut(pool.run), self._cut(pool.command)  # type: ignore[method-assign]

    def _cut(self, trip: Callable[..., Awaitable[Any]]) -> Callable[..., Awaitable[Any]]:
        async def cut(*words: Any) -> Any:
            if self.dead:
                raise Died
            self.left -= 1
            if self.left == 0:
                self.dead = True
                if self.answered:
                    await trip(*words)
                raise Died
            return await trip(*words)

        return cut


class Town:
    """One namespace, and any number of processes that use it."""

    def __init__(self, spreads: Callable[[str], bool] = any_id) -> None:
        self.clock, self._spreads = HandClock(), spreads
        self._ns = f"crossing-{os.getpid()}-{next(_numbers)}"
        self._open: list[ShardedRedis] = []

    async def process(self, shards: int = SHARDS) -> ShardedRedis:
        made = ShardedRedis(valkey.url(), ns=self._ns, shards=shards, now=self.clock, spreads=self._spreads)
        await made.open()
        self._open.append(made)
        return made

    async def plain(self) -> RedisStorage:
        made = RedisStorage(valkey.url(), ns=self._ns, now=self.clock)
        await made.open()
        return made

    async def close(self) -> None:
        for each in self._open:
            await each.close()


Act = Callable[[ShardedRedis], Awaitable[Any]]
Law = Callable[[Town], Awaitable[None]]


def played(law: Callable[[Town], Awaitable[None]], spreads: Callable[[str], bool] = any_id) -> None:
    async def play() -> None:
        town = Town(spreads)
        try:
            await law(town)
        finally:
            await town.close()

    asyncio.run(play())


async def died_at(town: Town, at: int, answered: bool, act: Act) -> bool:
    """Whether the act ended before its n-th trip."""
    process, cut = await town.process(), Cut(at, answered)
    cut.into(process)
    try:
        await act(process)
    except Died:
        return False
    return not cut.dead


def every_cut(check: Callable[[Town, int, bool], Awaitable[bool]]) -> None:
    """Repeat an act with a cut at each of its trips in turn, until it ends before the cut."""
    for answered in (False, True):
        for at in itertools.count(1):
            over: list[bool] = []

            async def one(town: Town, at: int = at, answered: bool = answered, over: list[bool] = over) -> None:
                over.append(await check(town, at, answered))

            played(one)
            if over[0]:
                assert at > 2
                break


def a_claim(worker: str = "w#1", **words: Any) -> Claim:
    return Claim(**{"worker": worker, "queues": (("default", 99),), "limit": 99, **words})


async def everything(storage: ShardedRedis) -> dict[str, Record]:
    rows = (await storage.find(Query(order="oldest", limit=1_000))).records
    found = {row.job.id: row for row in rows}
    assert len(found) == len(rows)
    held = [await shard.find(Query(limit=1_000)) for shard in storage._shards]
    assert sum(len(page.records) for page in held) == len(rows), "a job is in two shards"
    return found


def spread_over(count: int) -> list[NewJob]:
    return [NewJob(id=f"job-{n}", task="t") for n in range(count)]


def test_a_call_over_several_shards_is_stored_whole_or_not_at_all() -> None:
    async def check(town: Town, at: int, answered: bool) -> bool:
        jobs = spread_over(9)
        over = await died_at(town, at, answered, lambda process: process.enqueue(jobs))
        other = await town.process()
        town.clock.advance(10)
        found = await other.claim(a_claim())
        rows = await everything(other)
        assert sorted(rows) in ([], [job.id for job in jobs])
        assert len(found.records) == len(rows)
        if over:
            assert rows
        return over

    every_cut(check)


def test_a_call_over_several_shards_that_is_repeated_stores_nothing_twice() -> None:
    async def check(town: Town, at: int, answered: bool) -> bool:
        jobs = spread_over(9)
        over = await died_at(town, at, answered, lambda process: process.enqueue(jobs))
        other = await town.process()
        assert [row.job.id for row in await other.enqueue(jobs)] == [job.id for job in jobs]
        claimed = (await other.claim(a_claim())).records
        assert len(claimed) == 9
        await other.settle([Outcome(id=row.id, version=row.version, state=State.SUCCEEDED, keep=0) for row in claimed])
        town.clock.advance(70)
        assert await other.prune(99) == 9  # before interrupted calls are completed: nothing of them runs again
        town.clock.advance(10)
        assert (await other.claim(a_claim("w#2"))).records == ()
        assert await everything(other) == {}
        return over

    every_cut(check)


@pytest.mark.slow
@pytest.mark.parametrize("fused", [False, True])
def test_a_workflow_that_needs_a_key_moves_to_the_first_shard(fused: bool) -> None:
    async def check(town: Town, at: int, answered: bool) -> bool:
        roots = [NewJob(id=f"root-{n}", task="t") for n in range(4)]
        first = await town.process()
        await first.enqueue(roots)
        parents = (await first.claim(a_claim("w#1", lease=1000))).records
        children = [
            tuple(NewJob(id=f"{row.id}.{n}", task="t", root=row.id, parent=row.id, key=f"{n}-{row.id}") for n in (1, 2))
            for row in parents
        ]
        outcomes = [
            Outcome(
                id=row.id,
                version=row.version,
                state=State.WAITING,
                function_done=True,
                followups=followups,
                after=tuple(job.id for job in followups),
            )
            for row, followups in zip(parents, children, strict=True)
        ]

        async def act(process: ShardedRedis) -> None:
            await (process.settle_claim(outcomes, a_claim("w#2")) if fused else process.settle(outcomes))

        over = await died_at(town, at, answered, act)
        other = await town.process()
        seen = await other.get([row.id for row in parents])
        assert all(row is not None for row in seen), "a workflow is nowhere"
        assert [each.status for each in await other.settle(outcomes)] == ["applied"] * 4
        rows = await everything(other)
        assert len(rows) == 12
        function_done = (await other.claim(a_claim("w#2"))).records
        assert sorted(row.id for row in function_done) == sorted(job.id for followups in children for job in followups)
        await other.settle([Outcome(id=row.id, version=row.version, state=State.SUCCEEDED) for row in function_done])
        ends = (await other.claim(a_claim("w#3"))).records
        assert sorted(row.id for row in ends) == [row.id for row in in_their_order(parents)]
        return over

    every_cut(check)


def in_their_order(rows: Sequence[Record]) -> list[Record]:
    return sorted(rows, key=lambda row: row.id)


def test_a_wait_for_another_workflow_brings_it_to_the_first_shard() -> None:
    async def check(town: Town, at: int, answered: bool) -> bool:
        first = await town.process()
        ups = [NewJob(id=f"up-{n}", task="t") for n in range(3)]
        await first.enqueue(ups)
        down = NewJob(id="down", task="t", after=tuple(up.id for up in ups))
        over = await died_at(town, at, answered, lambda process: process.enqueue([down]))
        other = await town.process()
        [row] = await other.enqueue([down])
        assert (row.state, row.pending) == (State.WAITING, 3)
        claimed = (await other.claim(a_claim())).records
        assert sorted(each.id for each in claimed) == [up.id for up in ups]
        await other.settle([Outcome(id=each.id, version=each.version, state=State.SUCCEEDED) for each in claimed])
        assert [each.id for each in (await other.claim(a_claim("w#2"))).records] == ["down"]
        assert len(await everything(other)) == 4
        return over

    every_cut(check)


async def kept(shard: RedisStorage) -> dict[bytes, bytes]:
    """All keys of a shard, as a replica that lags behind has them."""
    names = await shard._pool.command("KEYS", f"{shard._tag}*")
    return {
        name: await shard._pool.command("DUMP", name) for name in names if name.startswith(f"{shard._tag}:".encode())
    }


async def failed_over(shard: RedisStorage, keys: dict[bytes, bytes]) -> None:
    """Replace the shard's keys by the replica's: later changes are lost."""
    for name in await kept(shard):
        await shard._pool.command("DEL", name)
    for name, value in keys.items():
        await shard._pool.command("RESTORE", name, 0, value)


def test_a_fail_over_of_the_first_shard_keeps_earlier_jobs() -> None:
    """A workflow moves to the first shard, whose node fails over without it. It was stored an hour ago, so it is moved
    again."""

    async def law(town: Town) -> None:
        first = await town.process()
        up = next(id for id in (f"up-{n}" for n in range(99)) if first._layout.of(id))
        await first.enqueue([NewJob(id=up, task="t"), NewJob(id=f"{up}-child", task="t", root=up)])
        town.clock.advance(3_600)
        before = await kept(first._first)
        await first.enqueue([NewJob(id="down", task="t", after=(up,))])
        await failed_over(first._first, before)
        other = await town.process()
        assert await other.get([up]) == [None]
        await other.prune(10)
        await other.prune(10)
        rows = (await other.claim(a_claim())).records
        assert sorted(row.id for row in rows) == [up, f"{up}-child"]
        ends = [Outcome(id=row.id, version=row.version, state=State.SUCCEEDED) for row in rows]
        assert [told.status for told in await other.settle(ends)] == ["applied", "applied"]
        await other.prune(10)
        assert len(await everything(other)) == 2
        town.clock.advance(301)
        await other.prune(10)
        for shard in other._shards:
            assert await shard.read("EXISTS", "sent") == 0

    played(law)


def test_a_claim_repeated_after_a_crash_anywhere_returns_its_jobs() -> None:
    async def check(town: Town, at: int, answered: bool) -> bool:
        first = await town.process()
        await first.enqueue(spread_over(9))
        over = await died_at(town, at, answered, lambda process: process.claim(a_claim(limit=6)))
        other = await town.process()
        again = (await other.claim(a_claim(limit=6))).records
        running = [row for row in (await everything(other)).values() if row.state is State.RUNNING]
        assert sorted(row.id for row in again) == sorted(row.id for row in running)
        assert again
        return over

    every_cut(check)


def test_the_room_of_a_task_is_kept_over_all_shards() -> None:
    """Their number is exact over all shards, their order only within one."""

    async def law(town: Town) -> None:
        storage = await town.process()
        await storage.enqueue(spread_over(12))
        assert all([(await shard.find(Query())).records for shard in storage._shards])
        assert len((await storage.claim(a_claim("w#1", tasks={"t": (2, None)}))).records) == 2
        assert len((await storage.claim(a_claim("w#2", limit=7, tasks={"t": (7, None)}))).records) == 7
        assert len((await storage.claim(a_claim("w#3", tasks={"t": (None, None)}))).records) == 3

    played(law)


def test_endings_and_claims_share_their_requests() -> None:
    """Each shard gets two requests: one with its endings and a claim in its queue, one with its share of the limit."""

    async def law(town: Town) -> None:
        storage = await town.process()
        roots = [NewJob(id=random_id(n, n % SHARDS), task="t") for n in range(4 * SHARDS)]
        for root in roots:
            await storage.enqueue([root])
        first = (await storage.claim(a_claim(limit=2 * SHARDS))).records
        cut = Cut(1_000, True)
        cut.into(storage)
        outcomes = [Outcome(id=row.id, version=row.version, state=State.SUCCEEDED) for row in first]
        settled, claimed = await storage.settle_claim(outcomes, a_claim("w#2"))
        assert 1_000 - cut.left <= 2 * SHARDS
        assert {each.status for each in settled} == {"applied"}
        assert sorted(row.id for row in (*first, *claimed.records)) == sorted(root.id for root in roots)
        assert [row.id for row in claimed.records] == [row.id for row in (await storage.claim(a_claim("w#2"))).records]

    ordinary(law)


def test_a_member_of_a_workflow_enqueued_alone_is_not_stored_twice() -> None:
    """The process that died had stored where its workflow would be. The job is not there yet, and must not be stored
    twice."""

    async def check(town: Town, at: int, answered: bool) -> bool:
        flow = [
            NewJob(id="flow", function_done=True, task="t", after=("m-0", "m-1")),
            *(NewJob(id=f"m-{n}", task="t", root="flow", parent="flow") for n in range(2)),
        ]
        over = await died_at(town, at, answered, lambda process: process.enqueue(flow))
        other, third = await town.process(), await town.process()
        for n in range(2):
            await other.enqueue([flow[1 + n]] if n else [NewJob(id="m-0", task="t")])
        await third.enqueue(flow)
        assert sorted(await everything(other)) == ["flow", "m-0", "m-1"]
        claimed = (await third.claim(a_claim())).records
        assert sorted(row.id for row in claimed) == ["m-0", "m-1"]
        await other.settle([Outcome(id=row.id, version=row.version, state=State.SUCCEEDED) for row in claimed])
        assert [row.id for row in (await other.claim(a_claim("w#2"))).records] == ["flow"]
        return over

    every_cut(check)


# --- the shard of each job


def random_id(number: int, shard: int | None = None) -> str:
    """An id as Treadle generates it; on request one that belongs to this shard."""
    layout = Layout(SHARDS)
    found = (RANDOM.format(n) for n in itertools.count(number * 1_000))
    return next(id for id in found if shard is None or layout.of(id) == shard)


async def placed(storage: ShardedRedis) -> list[set[str]]:
    pages = [await shard.find(Query(limit=1_000)) for shard in storage._shards]
    return [{row.id for row in page.records} for page in pages]


def ordinary(law: Law) -> None:
    """Ids that are spread over all shards by default."""
    played(law, is_random)


def test_workflows_are_spread_and_stay_where_they_are() -> None:
    async def law(town: Town) -> None:
        storage = await town.process()
        roots = [random_id(n, n % SHARDS) for n in range(6)]
        await storage.enqueue([NewJob(id=root, task="t") for root in roots])
        claimed = (await storage.claim(a_claim())).records
        assert [row.id for row in claimed] == sorted(roots)  # one creation time: by id, over all shards
        children = {row.id: f"{derived(row.id, row.version)}-000001" for row in claimed}
        await storage.settle(
            [
                Outcome(
                    id=row.id,
                    version=row.version,
                    state=State.WAITING,
                    function_done=True,
                    after=(children[row.id],),
                    followups=(NewJob(id=children[row.id], task="t", root=row.id, parent=row.id, lane="x", delay=3),),
                )
                for row in claimed
            ]
        )
        for shard, there in enumerate(await placed(storage)):
            own = roots[shard::SHARDS]
            assert there == {*own, *(children[root] for root in own)}
        page = await storage.find(Query(root=roots[1], order="oldest"))
        assert {row.id for row in page.records} == {roots[1], children[roots[1]]}

    ordinary(law)


CHOSEN = [
    md5(b"order 4711").hexdigest(),  # the form that derived ids once had
    "order-4711",
    f"{derived('x', 1)}:mail",
    f"{derived('x', 1)}-000001-mail",
    f"{derived('x', 1)}-1",
    f"{derived('x', 1)}-000001a",
]
DERIVED = [
    derived("x", 2),
    f"{derived('x', 2)}-000001",
    f"{derived('x', 2)}-1234567",
    f"{derived('x', 2)}-0123456789ab-000001",
    f"{derived('x', 2)}-0123456789ab",
    "treadle:signal:abc:1",
    f"treadle:{'f' * 31}",
]


@pytest.mark.parametrize("id", CHOSEN)
def test_a_chosen_id_of_several_workflows_is_stored_once(id: str) -> None:
    async def law(town: Town) -> None:
        storage = await town.process()
        roots = [random_id(n, n % SHARDS) for n in range(2 * SHARDS)]
        await storage.enqueue([NewJob(id=root, task="order") for root in roots])
        later = "refused" if id.startswith("treadle:") else "applied"  # such an id belongs to one workflow, see law 15
        for number, row in enumerate((await storage.claim(a_claim())).records):
            charge = NewJob(id=id, task="charge", root=row.id, parent=row.id)
            out = Outcome(
                id=row.id,
                version=row.version,
                state=State.WAITING,
                function_done=True,
                after=(id,),
                followups=(charge,),
            )
            assert [each.status for each in await storage.settle([out])] == [later if number else "applied"]
        assert sorted(await everything(storage)) == sorted([*roots, id])
        assert [row.id for row in (await storage.claim(a_claim("w#2"))).records].count(id) == 1

    ordinary(law)


@pytest.mark.parametrize("id", [*CHOSEN, *DERIVED])
def test_the_server_and_we_agree_on_which_ids_are_derived(id: str) -> None:
    """The script keeps a derived id in its parent's shard, and moves the workflow of a chosen one to the first."""

    async def law(town: Town) -> None:
        storage, root = await town.process(), random_id(1, 1)
        await storage.enqueue([NewJob(id=root, task="t")])
        [row] = (await storage.claim(a_claim())).records
        born = NewJob(id=id, task="t", root=root, parent=root)
        await storage.settle(
            [Outcome(id=root, version=row.version, state=State.WAITING, after=(id,), followups=(born,))]
        )
        there = await placed(storage)
        assert there == ([set(), {root, id}, set()] if is_derived(id) else [{root, id}, set(), set()])

    assert is_derived(id) == (id in DERIVED)
    ordinary(law)


def test_chosen_ids_limits_and_keys_are_in_the_first_shard() -> None:
    async def law(town: Town) -> None:
        storage = await town.process()
        await storage.set_limits([Limit("one", slots=1)])
        for job in (
            NewJob(id="chosen", task="t"),
            NewJob(id=random_id(1, 1), task="t", key="k"),
            NewJob(id=random_id(2, 2), task="t", limits=(("one", 1),)),
            NewJob(id=random_id(3, 1), task="t", limits=(("one", 1),)),
        ):
            await storage.enqueue([job])
        first, *others = await placed(storage)
        assert (len(first), others) == (4, [set()] * (SHARDS - 1))
        claimed = (await storage.claim(a_claim())).records
        assert sorted(row.id for row in claimed) == sorted(first - {random_id(3, 1)})

    ordinary(law)


@pytest.mark.slow
def test_an_id_is_known_with_and_without_a_limit_or_workflow() -> None:
    """Once with a limit and once without, alone and as a member of a workflow, in any order."""

    async def law(town: Town) -> None:
        storage, id, root = await town.process(), random_id(1, 1), random_id(2, 2)
        forms = [
            [NewJob(id=id, task="t", payload="[1]")],
            [NewJob(id=id, task="t", payload="[2]", limits=(("x", 1),))],
            [NewJob(id=root, task="t"), NewJob(id=id, task="t", payload="[3]", root=root, parent=root)],
            [NewJob(id="chosen", task="t", after=(id,), wait_timeout=9)],
        ]
        for n, order in enumerate(itertools.permutations(forms)):
            storage._seen.clear()
            town._ns = f"{town._ns}-{n}"
            storage = await town.process()
            asked = [await (await town.process()).enqueue(jobs) for jobs in order]
            known = {row.job.payload for rows in asked for row in rows if row.id == id}
            assert len(known) == 1, order
            assert len([row for row in (await everything(storage)).values() if row.id == id]) == 1
            await town.close()
            town._open.clear()

    ordinary(law)


def test_a_job_waits_for_an_id_that_is_stored_later() -> None:
    async def law(town: Town) -> None:
        storage, id = await town.process(), random_id(1, 2)
        await storage.enqueue([NewJob(id="waits", task="t", after=(id,), wait_timeout=60)])
        await storage.enqueue([NewJob(id=id, task="t")])
        [row] = (await storage.claim(a_claim())).records
        await storage.settle([Outcome(id=id, version=row.version, state=State.SUCCEEDED)])
        assert [row.id for row in (await storage.claim(a_claim("w#2"))).records] == ["waits"]

    ordinary(law)


def test_a_job_that_runs_while_its_workflow_moves_is_settled_by_its_holder() -> None:
    async def law(town: Town) -> None:
        holder, other, id = await town.process(), await town.process(), random_id(1, 1)
        await holder.enqueue([NewJob(id=id, task="t")])
        [row] = (await holder.claim(a_claim(lease=10))).records
        await other.enqueue([NewJob(id="waits", task="t", after=(id,))])
        assert [len(each) for each in await placed(other)] == [2, 0, 0]
        town.clock.advance(9)
        renewal = LeaseRenewal(id=id, version=row.version, note="half")
        assert (await holder.heartbeat(Presence(worker="w"), [renewal], 10)).lost == set()
        town.clock.advance(9)
        [held] = await other.get([id])
        assert held is not None
        assert (held.state, held.note) == (State.RUNNING, "half")
        [told] = await holder.settle([Outcome(id=id, version=row.version, state=State.SUCCEEDED, result="1")])
        assert told.status == "applied"
        [told] = await holder.settle([Outcome(id=id, version=row.version, state=State.SUCCEEDED, result="1")])
        assert told.status == "applied"
        [waits] = await other.get(["waits"])
        assert waits is not None
        assert waits.state is State.READY

    ordinary(law)


def test_a_pointer_is_removed_with_its_last_row() -> None:
    async def law(town: Town) -> None:
        storage, id, other = await town.process(), random_id(1, 1), random_id(2, 1)
        for job in (id, other):
            await storage.enqueue([NewJob(id=job, task="t", limits=(("x", 1),))])
        row, _ = sorted((await storage.claim(a_claim())).records, key=lambda row: row.id)
        await storage.settle([Outcome(id=id, version=row.version, state=State.SUCCEEDED, keep=0)])

        async def pointers() -> list[str]:
            await storage.prune(99)
            return sorted(each.decode() for each in await storage._shards[1].read("HKEYS", "left"))

        assert await pointers() == [id, other]
        town.clock.advance(90_000)  # its row was pruned long ago
        assert await pointers() == [id, other]
        town.clock.advance(100)
        assert await pointers() == [id, other]  # not at once: a transfer may be in progress
        town.clock.advance(100)
        assert await pointers() == [other]

    ordinary(law)


# --- the number of shards, and refused URLs


def test_a_namespace_keeps_its_number_of_shards() -> None:
    async def law(town: Town) -> None:
        await town.process()
        for wrong in (2, SHARDS + 1):
            with pytest.raises(BadUrl, match=rf"has shards={SHARDS}, found shards={wrong}.*treadle storage move"):
                await town.process(wrong)
        with pytest.raises(BadUrl, match=rf"has shards={SHARDS}, found shards=1"):
            await town.plain()

    played(law)


def test_a_namespace_that_was_never_spread_is_not_spread_by_its_url() -> None:
    async def law(town: Town) -> None:
        await (await town.plain()).close()
        with pytest.raises(BadUrl, match=rf"has shards=1, found shards={SHARDS}"):
            await town.process()

    played(law)


@pytest.mark.parametrize("wrong", ["0", "-1", "x", "65", "1.5", ""])
def test_shards_is_a_number(wrong: str) -> None:
    with pytest.raises(BadUrl, match="shards: expected"):
        connect(f"redis://localhost/0?shards={wrong}")


def test_a_queue_can_be_paused_but_not_limited() -> None:
    async def law(town: Town) -> None:
        storage = await town.process()
        for rule in (Limit("queue:default", slots=3), Limit("queue", rate=1), Limit("queue:default", max_waiting=9)):
            with pytest.raises(Unsupported, match=r"whole queue.*slots=0"):
                await storage.set_limits([Limit("x", slots=1), rule])
        assert (await storage.stats()).limits == ()
        await storage.enqueue(spread_over(6))
        await storage.set_limits([Limit("queue:default", slots=0)])
        assert (await storage.claim(a_claim())).records == ()
        assert [use.key for use in (await storage.stats()).limits] == ["queue:default"]
        await storage.set_limits([Limit("queue:default")])
        assert len((await storage.claim(a_claim("w#2"))).records) == 6

    played(law)


def test_shards_without_a_server_raise() -> None:
    async def play() -> None:
        storage = ShardedRedis("redis://127.0.0.1:1/0", shards=SHARDS)
        with pytest.raises(StorageUnavailable):
            await storage.open()
        await storage.close()

    asyncio.run(play())
