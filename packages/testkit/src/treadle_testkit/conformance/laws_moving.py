"""Moving jobs to another storage: the copy is exact, and marks control what both storages allow meanwhile.

For `Movable` storages: another storage loads what one unloads, and then answers every call as the first would.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from msgspec.structs import replace

from treadle.core.errors import MoveFailed, StorageMoved, StorageUnavailable
from treadle.core.limit_model import Limit
from treadle.core.model import Record
from treadle.storage.capabilities import fused
from treadle.storage.contract import Storage
from treadle.storage.transfer import Carried, Role, digest, handed_over
from treadle.testing.clock import HandClock
from treadle_testkit.conformance.kit import (
    READY,
    RUNNING,
    ask,
    beat,
    claim,
    claim_ids,
    claim_one,
    done,
    ids,
    job,
    jobs,
    out,
    renewal,
    row,
    said,
    settle,
    states,
)
from treadle_testkit.conformance.moving_kit import carry, everything, mark, movable, zoo
from treadle_testkit.conformance.run import Another


async def test_more_a_moved_row_is_the_same(storage: Storage, clock: HandClock, another: Another) -> None:
    """Each row and the data stored along with it, also after a second move."""
    movable(storage)
    await zoo(storage, clock)
    before = await everything(storage)
    target, third = await another(), await another()
    await carry(storage, target)
    await carry(target, third, step=100)
    for copy in (target, third):
        after = {carried.record.job.id: carried for carried in await everything(copy)}
        assert sorted(after) == sorted(carried.record.job.id for carried in before)
        for carried in before:
            copied = after[carried.record.job.id]
            assert copied.record == carried.record
            assert (copied.holds_key, copied.behind) == (carried.holds_key, carried.behind)
            assert set(map(str, copied.edges)) == set(map(str, carried.edges)), carried.record.job.id
        assert digest(after.values()) == digest(before)
    rates = [(await movable(peer).unload(None, 1)).rates for peer in (storage, target, third)]
    assert [sorted(map(str, starts)) for starts in rates] == [sorted(map(str, rates[0]))] * 3
    assert [(await peer.stats()).limits for peer in (target, third)] == [(await storage.stats()).limits] * 2


async def test_more_a_moved_storage_continues_the_same(storage: Storage, clock: HandClock, another: Another) -> None:
    """From here on both get the same calls and return the same."""
    movable(storage)
    await zoo(storage, clock)
    target = await another()
    await carry(storage, target)
    lives = [await life(peer) for peer in (storage, target)]
    clock.advance(120)
    lives = [[*one, *(await life(peer))] for one, peer in zip(lives, (storage, target), strict=True)]
    clock.advance(100_000)
    for peer, one in zip((storage, target), lives, strict=True):
        one.append(await peer.prune(1_000))
        one += [(carried.record.job.id, carried.record.state) for carried in await everything(peer)]
    assert lives[0] == lives[1]


async def life(storage: Storage) -> list[Any]:
    """Typical calls: claims, endings, keys, and the reopening of a failed job."""
    log: list[Any] = []
    for _ in range(4):
        rows = await claim(storage, 5, "default", "shut", worker="v")
        log.append([_seen(record) for record in rows])
        log.append([(answer.status) for answer in await storage.settle([done(record) for record in rows])])
    log.append(ids(await storage.enqueue([job("k-2", key="k"), job("w-2", key="w"), job("nobody-yet")])))
    [bad] = await storage.get(["bad"])
    if bad is not None and bad.state.final:
        log.append(await said(storage, out(bad, READY)))
    [later] = await storage.get(["promise"])
    if later is not None and not later.state.final:
        log.append(await said(storage, done(later)))
    log.append(await states(storage, "fan chain unknown doomed parent child waits behind dies kept-1 kept-2 sibling"))
    log.append((await storage.stats()).limits)
    return log


def _seen(found: Record) -> Any:
    return (
        found.job.id,
        found.version,
        found.lost,
        found.attempt,
        found.started_at,
        found.checkpoints,
        found.note,
        found.queue_position,
    )


async def test_more_a_load_may_be_repeated(storage: Storage, clock: HandClock, another: Another) -> None:
    """Chunks may have any size: a load leaves known rows unchanged and stores the mark with each chunk."""
    movable(storage)
    await zoo(storage, clock)
    target = await another()
    cursor: str | None = None
    while True:
        load = await movable(storage).unload(cursor, 4)
        for _ in range(2):
            await movable(target).load(load, mark("filling", cursor=load.cursor, jobs=4))
            assert await movable(target).read_mark() == mark("filling", cursor=load.cursor, jobs=4)
        if load.cursor is None:
            break
        cursor = load.cursor
    await carry(storage, target, step=100)
    assert digest(await everything(target)) == digest(await everything(storage))


async def test_more_jobs_that_a_rate_admits_during_a_move_are_the_same(
    storage: Storage, clock: HandClock, another: Another
) -> None:
    """A target that opens queues the blocked jobs that now have room; the digests of both are still equal."""
    movable(storage)
    await storage.set_limits([Limit("pace", rate=1, per=60)])
    await storage.enqueue(jobs("first second", limits=(("pace", 1),)))
    assert await claim_ids(storage, 9) == ["first"]
    clock.advance(61)
    target = await another()
    await carry(storage, target)
    assert [(await row(peer, "second")).queue_position is None for peer in (storage, target)] == [True, False]
    assert digest(await everything(target)) == digest(await everything(storage))


async def test_more_a_moved_running_job_is_queued_when_its_lease_has_expired(
    storage: Storage, clock: HandClock, another: Another
) -> None:
    """The job is queued again at its old position and not counted as lost. Until then no worker can claim it, and its
    holder cannot settle it."""
    movable(storage)
    await storage.enqueue(jobs("first second third"))
    first = await claim_one(storage, lease=10)
    target = await another()
    load = await movable(storage).unload(None, 100)
    moved = tuple(Carried(record=handed_over(carried.record)) for carried in load.jobs)
    await movable(target).load(type(load)(moved), mark("filling"))
    await movable(target).set_mark(mark("arrived"))
    assert await claim_ids(target) == ["second"]
    assert await beat(target, renewal(first)) == {"first"}
    clock.advance(10)
    [again] = await claim(target)
    assert (again.job.id, again.lost, again.version) == ("first", 0, first.version + 1)


async def test_more_a_closing_storage_accepts_no_new_jobs(storage: Storage, another: Another) -> None:
    """Running jobs may be settled, and their children are stored; claims return no jobs."""
    movable(storage)
    await storage.enqueue(jobs("a b c"))
    a, b = await claim(storage, 2)
    await movable(storage).set_mark(mark("closing"))
    with pytest.raises(StorageMoved) as error:
        await storage.enqueue(jobs("x"))
    assert error.value.target == "sqlite:///elsewhere.db"
    with pytest.raises(StorageMoved):
        await storage.set_limits([Limit("one", slots=1)])
    assert await claim(storage) == []
    assert await storage.prune(10) == 0
    assert await beat(storage, renewal(b)) == set()
    await settle(storage, done(a, followups=(job("child"),)))
    assert await states(storage, "a b c child x") == ["succeeded", "running", "ready", "ready", None]


async def test_more_a_storage_that_was_left_changes_no_more(storage: Storage) -> None:
    """Heartbeats return running jobs as lost; reading continues to work."""
    movable(storage)
    await storage.enqueue(jobs("a b"))
    a = await claim_one(storage)
    await movable(storage).set_mark(mark("gone"))
    assert await beat(storage, renewal(a)) == {"a"}
    assert await said(storage, done(a)) == ["stale"]
    for refused in (storage.enqueue(jobs("x")), storage.claim(ask()), storage.set_limits([Limit("one", slots=1)])):
        with pytest.raises(StorageMoved):
            await refused
    if both := fused(storage):
        settled, claimed = await both.settle_claim([done(a)], ask())
        assert ([answer.status for answer in settled], claimed.records) == (["stale"], ())
        with pytest.raises(StorageMoved):
            await both.settle_claim([], ask())
    assert await storage.prune(10) == 0
    assert await states(storage, "a b x") == ["running", "ready", None]
    assert (await row(storage, "a")).version == a.version


async def test_more_a_storage_that_is_being_filled_is_unavailable(storage: Storage) -> None:
    """Workers and producers may already use it: they retry until the move has ended."""
    movable(storage)
    await storage.enqueue(jobs("a"))
    a = await claim_one(storage)
    await movable(storage).set_mark(mark("filling"))
    refused: Sequence[Any] = (
        storage.enqueue(jobs("x")),
        storage.claim(ask()),
        storage.settle([done(a)]),
        beat(storage, renewal(a)),
        storage.set_limits([Limit("one", slots=1)]),
    )
    for call in refused:
        with pytest.raises(StorageUnavailable, match="receives the jobs"):
            await call
    assert await storage.prune(10) == 0
    assert await states(storage, "a x") == ["running", None]


@pytest.mark.parametrize("role", ["arrived", "aborted"])
async def test_more_a_storage_works_after_its_move_ended_or_was_aborted(storage: Storage, role: Role) -> None:
    """Jobs can be enqueued, settled and claimed again."""
    movable(storage)
    await storage.enqueue(jobs("a b"))
    a = await claim_one(storage)
    roles: tuple[Role, ...] = ("closing", "gone", "filling")
    for shut in roles:
        await movable(storage).set_mark(mark(shut))
    await movable(storage).set_mark(mark(role))
    assert (await movable(storage).read_mark()) == mark(role)
    await storage.enqueue(jobs("c"))
    await settle(storage, done(a))
    assert await claim_ids(storage, 5) == ["b", "c"]


@pytest.mark.parametrize(
    ("stored", "late", "allowed"),
    [
        (("filling", 1, "one", 5), ("filling", 1, "one", 6), True),
        (("filling", 1, "one", 5), ("filling", 1, "one", 5), True),  # repeated after a lost answer
        (("filling", 1, "one", 5), ("filling", 1, "one", 4), False),  # arrives after a later call of the same run
        (("filling", 1, "one", 5), ("filling", 2, "two", 1), True),  # takes the move over
        (("filling", 2, "two", 1), ("filling", 1, "one", 6), False),  # a stalled run that resumes
        (("filling", 2, "two", 1), ("filling", 2, "one", 1), False),  # two runs that began at once
        (("arrived", 2, "two", 9), ("filling", 3, "one", 1), False),  # the move has ended
        (("partial", 2, "two", 9), ("arrived", 3, "one", 1), False),
        (("aborted", 2, "two", 9), ("closing", 3, "one", 1), False),
    ],
)
async def test_more_a_late_mark_of_an_earlier_run_is_refused(
    storage: Storage,
    another: Another,
    stored: tuple[Role, int, str, int],
    late: tuple[Role, int, str, int],
    allowed: bool,
) -> None:
    """A stalled run of the command cannot undo the work of later runs: its mark and its rows are refused."""
    before, after = (mark(role, turn=turn, run=run, step=step) for role, turn, run, step in (stored, late))
    await movable(storage).set_mark(before)
    source = await another()
    await source.set_limits([Limit("one", slots=1)])
    await source.enqueue(jobs("a"))
    load = await movable(source).unload(None, 9)
    if allowed:
        await movable(storage).load(load, after)
        await movable(storage).set_mark(after)
        assert await movable(storage).read_mark() == after
        assert await states(storage, "a") == [READY]
        return
    with pytest.raises(MoveFailed):
        await movable(storage).set_mark(after)
    with pytest.raises(MoveFailed):
        await movable(storage).load(load, after)
    assert await movable(storage).read_mark() == before
    assert await states(storage, "a") == [None]
    assert (await storage.stats()).limits == ()


async def test_more_a_new_move_starts_after_another_has_ended(storage: Storage) -> None:
    await movable(storage).set_mark(mark("arrived", turn=2, run="one", step=9))
    away = replace(mark("closing", turn=3, run="two", step=1), move="m2")
    await movable(storage).set_mark(away)
    assert await movable(storage).read_mark() == away


async def test_more_a_partial_copy_of_an_aborted_move_is_unavailable(storage: Storage) -> None:
    await storage.enqueue(jobs("a"))
    await movable(storage).set_mark(mark("partial"))
    for refused in (storage.enqueue(jobs("x")), storage.claim(ask())):
        with pytest.raises(StorageUnavailable, match="aborted"):
            await refused


async def test_more_another_connection_obeys_a_mark(storage: Storage, connect: Any) -> None:
    """Another connection obeys it from its next call on."""
    movable(storage)
    other = await connect()
    await other.enqueue(jobs("a"))
    await movable(storage).set_mark(mark("gone"))
    with pytest.raises(StorageMoved):
        await other.enqueue(jobs("b"))
    assert await movable(other).read_mark() == mark("gone")
    assert await states(other, "a") == [READY]
    assert RUNNING not in await states(storage, "a")
