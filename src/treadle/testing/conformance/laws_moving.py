"""Moving house: what is carried to another storage, and what both say meanwhile. More than a law.

For storages that are `Movable`: what one unloads another loads, and answers every call as the first would have.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from msgspec.structs import replace

from treadle.core.model import Limit, Record
from treadle.errors import MoveFailed, StorageMoved, StorageUnavailable
from treadle.storage.contract import Fused, Movable, Storage
from treadle.storage.transfer import Carried, MoveState, Role, digest, handed_over
from treadle.testing.clock import HandClock
from treadle.testing.conformance.kit import (
    READY,
    RUNNING,
    WAITING,
    ask,
    back,
    beat,
    cancelled,
    claim,
    claim_ids,
    claim_one,
    done,
    failed,
    hold,
    ids,
    job,
    jobs,
    out,
    row,
    said,
    settle,
    states,
    tend,
)
from treadle.testing.conformance.run import Another


def movable(storage: Storage) -> Movable:
    if not isinstance(storage, Movable):
        pytest.skip("this storage's jobs cannot be carried elsewhere")
    return storage


def mark(role: Role, **more: Any) -> MoveState:
    return MoveState(role=role, other="sqlite:///elsewhere.db", move="m1", **more)


async def everything(storage: Storage, step: int = 3) -> list[Carried]:
    found: list[Carried] = []
    cursor: str | None = None
    while True:
        load = await movable(storage).unload(cursor, step)
        found += load.jobs
        cursor = load.cursor
        if cursor is None:
            return found


async def carry(source: Storage, target: Storage, step: int = 3) -> None:
    """All of it, as it stands."""
    cursor: str | None = None
    while True:
        load = await movable(source).unload(cursor, step)
        await movable(target).load(load, mark("filling", cursor=load.cursor))
        cursor = load.cursor
        if cursor is None:
            break
    await movable(target).set_mark(mark("arrived"))


async def zoo(storage: Storage, clock: HandClock) -> None:
    """One of each kind: every state, every way to wait, every hold on something."""
    await storage.set_limits(
        [
            Limit("one", slots=1),
            Limit("pace", rate=2, per=60),
            Limit("sip", rate=6, per=60, how="bucket", burst=2),
            Limit("queue:shut", slots=0),
            Limit("kept", slots=1, hold="ended"),
        ]
    )
    await storage.enqueue(
        [
            job("up"),
            job("bad"),
            job("parent"),
            job("a-run", limits=(("one", 1),), headers=(("a", "b"),)),
            job("beside", limits=(("one", 1),)),
            job("kept-1", limits=(("kept", 1),)),
            job("kept-2", limits=(("kept", 1),)),
            *jobs("pace-1 pace-2 pace-3", limits=(("pace", 1),)),
            *jobs("sip-1 sip-2 sip-3", limits=(("sip", 1),)),
            job("once", key="k", labels=("red", "blue")),
            job("window", key="w", key_window=1000),
            job("later", delay=50, priority=7),
            job("old", aging=2, priority=3),
            job("shut", queue="shut"),
            job("lane-1", lane="x"),
            job("lane-2", lane="x"),
            job("lane-3", lane="y"),
            job("dies", deadline=70),
            job("back"),
            job("lost"),
            job("promise", task=""),
            job("cancel"),
        ]
    )
    await storage.enqueue(
        [
            job("fan", after=("up", "bad", "a-run"), need=2, slack=1),
            job("chain", after=("fan",)),
            job("unknown", after=("nobody-yet",), wait_timeout=40),
            job("doomed", after=("bad",)),
        ]
    )
    rows = {found.job.id: found for found in await claim(storage, 99, "default", "shut", lease=40)}
    await settle(
        storage,
        done(rows["up"], result="1", memo=(("s", "t"),)),
        failed(rows["bad"]),
        done(rows["window"]),
        out(rows["parent"], WAITING, ran=True, then=(job("child", parent="parent", root="parent"),), after=("child",)),
        back(rows["back"], attempt=1, error="boom", note="half"),
        back(rows["kept-1"], delay=9),
        cancelled(rows["cancel"]),
        *(done(rows[id]) for id in ("pace-1", "sip-1")),
    )
    await beat(
        storage, hold(rows["a-run"], memo=(("step", "1"), ("two", "2")), note="busy"), hold(rows["once"]), lease=50
    )
    await storage.enqueue([job("behind", key="k", key_conflict="replace"), job("waits", after=("parent", "later"))])
    clock.advance(45)
    await tend(storage)


async def test_more_what_is_carried_is_the_same(storage: Storage, clock: HandClock, another: Another) -> None:
    """Each row, with what a row does not say; and again from there."""
    movable(storage)
    await zoo(storage, clock)
    before = await everything(storage)
    target, third = await another(), await another()
    await carry(storage, target)
    await carry(target, third, step=100)
    for copy in (target, third):
        after = {each.record.job.id: each for each in await everything(copy)}
        assert sorted(after) == sorted(each.record.job.id for each in before)
        for each in before:
            found = after[each.record.job.id]
            assert found.record == each.record
            assert (found.holds_key, found.behind) == (each.holds_key, each.behind)
            assert set(map(str, found.edges)) == set(map(str, each.edges)), each.record.job.id
        assert digest(after.values()) == digest(before)
    rates = [(await movable(each).unload(None, 1)).rates for each in (storage, target, third)]
    assert [sorted(map(str, found)) for found in rates] == [sorted(map(str, rates[0]))] * 3
    assert [(await each.stats()).limits for each in (target, third)] == [(await storage.stats()).limits] * 2


async def test_more_what_is_carried_goes_on_the_same(storage: Storage, clock: HandClock, another: Another) -> None:
    """Both are asked the same from here on, and answer the same."""
    movable(storage)
    await zoo(storage, clock)
    target = await another()
    await carry(storage, target)
    told = [await life(each) for each in (storage, target)]
    clock.advance(120)
    told = [[*one, *(await life(each))] for one, each in zip(told, (storage, target), strict=True)]
    clock.advance(100_000)
    for each, one in zip((storage, target), told, strict=True):
        one.append(await each.prune(1_000))
        one += [(found.record.job.id, found.record.state) for found in await everything(each)]
    assert told[0] == told[1]


async def life(storage: Storage) -> list[Any]:
    """What happens next: claims, endings, keys, a dead job reopened."""
    told: list[Any] = []
    for _ in range(4):
        rows = await claim(storage, 5, "default", "shut", worker="v")
        told.append([_seen(found) for found in rows])
        told.append([(each.status) for each in await storage.settle([done(found) for found in rows])])
    told.append(ids(await storage.enqueue([job("k-2", key="k"), job("w-2", key="w"), job("nobody-yet")])))
    [bad] = await storage.get(["bad"])
    if bad is not None and bad.state.final:
        told.append(await said(storage, out(bad, READY)))
    [later] = await storage.get(["promise"])
    if later is not None and not later.state.final:
        told.append(await said(storage, done(later)))
    told.append(await states(storage, "fan chain unknown doomed parent child waits behind dies kept-1 kept-2 beside"))
    told.append((await storage.stats()).limits)
    return told


def _seen(found: Record) -> Any:
    return found.job.id, found.version, found.lost, found.attempt, found.started_at, found.memo, found.note, found.place


async def test_more_a_load_may_be_repeated(storage: Storage, clock: HandClock, another: Another) -> None:
    """In whatever pieces it comes: a row that is there is left as it is. The mark is stored with it."""
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


async def test_more_whom_a_rate_lets_in_meanwhile_is_the_same(
    storage: Storage, clock: HandClock, another: Another
) -> None:
    """A target that opens calls in whom it has room for by then; the two still hold the same."""
    movable(storage)
    await storage.set_limits([Limit("pace", rate=1, per=60)])
    await storage.enqueue(jobs("first second", limits=(("pace", 1),)))
    assert await claim_ids(storage, 9) == ["first"]
    clock.advance(61)
    target = await another()
    await carry(storage, target)
    assert [(await row(each, "second")).place is None for each in (storage, target)] == [True, False]
    assert digest(await everything(target)) == digest(await everything(storage))


async def test_more_who_runs_is_ready_again_when_his_lease_is_over(
    storage: Storage, clock: HandClock, another: Another
) -> None:
    """At his turn, uncounted; nobody can have it before, and who had it cannot settle it any more."""
    movable(storage)
    await storage.enqueue(jobs("first second third"))
    first = await claim_one(storage, lease=10)
    target = await another()
    load = await movable(storage).unload(None, 100)
    moved = tuple(Carried(record=handed_over(each.record)) for each in load.jobs)
    await movable(target).load(type(load)(moved), mark("filling"))
    await movable(target).set_mark(mark("arrived"))
    assert await claim_ids(target) == ["second"]
    assert await beat(target, hold(first)) == {"first"}
    clock.advance(10)
    [again] = await claim(target)
    assert (again.job.id, again.lost, again.version) == ("first", 0, first.version + 1)


async def test_more_while_it_closes_nothing_new_comes_in(storage: Storage, another: Another) -> None:
    """What runs may be settled, and its children are stored; claims find nothing."""
    movable(storage)
    await storage.enqueue(jobs("a b c"))
    a, b = await claim(storage, 2)
    await movable(storage).set_mark(mark("closing"))
    with pytest.raises(StorageMoved) as told:
        await storage.enqueue(jobs("x"))
    assert told.value.target == "sqlite:///elsewhere.db"
    with pytest.raises(StorageMoved):
        await storage.set_limits([Limit("one", slots=1)])
    assert await claim(storage) == []
    assert await storage.prune(10) == 0
    assert await beat(storage, hold(b)) == set()
    await settle(storage, done(a, then=(job("child"),)))
    assert await states(storage, "a b c child x") == ["succeeded", "running", "ready", "ready", None]


async def test_more_when_it_is_gone_nothing_changes_any_more(storage: Storage) -> None:
    """Who still runs a job here is told that he has lost it; looking goes on."""
    movable(storage)
    await storage.enqueue(jobs("a b"))
    a = await claim_one(storage)
    await movable(storage).set_mark(mark("gone"))
    assert await beat(storage, hold(a)) == {"a"}
    assert await said(storage, done(a)) == ["stale"]
    for refused in (storage.enqueue(jobs("x")), storage.claim(ask()), storage.set_limits([Limit("one", slots=1)])):
        with pytest.raises(StorageMoved):
            await refused
    if isinstance(storage, Fused):
        settled, claimed = await storage.settle_claim([done(a)], ask())
        assert ([each.status for each in settled], claimed.records) == (["stale"], ())
        with pytest.raises(StorageMoved):
            await storage.settle_claim([], ask())
    assert await storage.prune(10) == 0
    assert await states(storage, "a b x") == ["running", "ready", None]
    assert (await row(storage, "a")).version == a.version


async def test_more_while_it_is_filled_it_is_away(storage: Storage) -> None:
    """Workers and producers may point here already: they try again until the move has ended."""
    movable(storage)
    await storage.enqueue(jobs("a"))
    a = await claim_one(storage)
    await movable(storage).set_mark(mark("filling"))
    refused: Sequence[Any] = (
        storage.enqueue(jobs("x")),
        storage.claim(ask()),
        storage.settle([done(a)]),
        beat(storage, hold(a)),
        storage.set_limits([Limit("one", slots=1)]),
    )
    for each in refused:
        with pytest.raises(StorageUnavailable, match="filled"):
            await each
    assert await storage.prune(10) == 0
    assert await states(storage, "a x") == ["running", None]


@pytest.mark.parametrize("role", ["arrived", "aborted"])
async def test_more_an_open_storage_is_like_any_other(storage: Storage, role: Role) -> None:
    """After a move that has ended, or was given up."""
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
        (("filling", 1, "one", 5), ("filling", 1, "one", 4), False),  # arrives after a later call of its own run
        (("filling", 1, "one", 5), ("filling", 2, "two", 1), True),  # takes the move over
        (("filling", 2, "two", 1), ("filling", 1, "one", 6), False),  # a run that woke up late
        (("filling", 2, "two", 1), ("filling", 2, "one", 1), False),  # two runs that began at once
        (("arrived", 2, "two", 9), ("filling", 3, "one", 1), False),  # the move has ended
        (("partial", 2, "two", 9), ("arrived", 3, "one", 1), False),
        (("aborted", 2, "two", 9), ("closing", 3, "one", 1), False),
    ],
)
async def test_more_a_mark_is_fenced(
    storage: Storage,
    another: Another,
    stored: tuple[Role, int, str, int],
    late: tuple[Role, int, str, int],
    allowed: bool,
) -> None:
    """A run of the command that stood still cannot undo what later runs did: its mark and its rows are refused."""
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


async def test_more_a_new_move_begins_where_another_ended(storage: Storage) -> None:
    await movable(storage).set_mark(mark("arrived", turn=2, run="one", step=9))
    away = replace(mark("closing", turn=3, run="two", step=1), move="m2")
    await movable(storage).set_mark(away)
    assert await movable(storage).read_mark() == away


async def test_more_a_part_of_a_move_that_was_given_up_stays_shut(storage: Storage) -> None:
    await storage.enqueue(jobs("a"))
    await movable(storage).set_mark(mark("partial"))
    for refused in (storage.enqueue(jobs("x")), storage.claim(ask())):
        with pytest.raises(StorageUnavailable, match="given up"):
            await refused


async def test_more_a_mark_is_seen_by_everybody(storage: Storage, connect: Any) -> None:
    """Another connection obeys it with its next call."""
    movable(storage)
    other = await connect()
    await other.enqueue(jobs("a"))
    await movable(storage).set_mark(mark("gone"))
    with pytest.raises(StorageMoved):
        await other.enqueue(jobs("b"))
    assert await movable(other).read_mark() == mark("gone")
    assert await states(other, "a") == [READY]
    assert RUNNING not in await states(storage, "a")
