"""Calls with a reach affect only rows of these queues, in the same step that acts. Law 15."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from msgspec.structs import replace

from treadle.core.errors import IdTaken, KeyHeld, TreadleError, UnknownUpstream
from treadle.core.ids import derived
from treadle.core.model import ACT, NewJob, Outcome, State
from treadle.storage.contract import Storage
from treadle.testing.clock import HandClock
from treadle_testkit.conformance.kit import (
    CANCELLED,
    READY,
    SUCCEEDED,
    WAITING,
    ask,
    back,
    beat,
    claim,
    claim_ids,
    claim_one,
    done,
    ids,
    job,
    out,
    refusal,
    renewal,
    row,
    run,
    said,
    settle,
    state,
    states,
)

MINE, OTHERS = ("mine", "mine too"), "others"
OWN = f"{derived('p', 1)}-000001"  # the first job that the run of p creates


def mine(id: str, **options: Any) -> NewJob:
    return job(id, **{"queue": "mine", "reach": MINE, **options})


async def others(storage: Storage, *more: NewJob) -> None:
    """Store jobs of another queue: one ready, one running, one ended, each with a key; and the jobs in `more`."""
    await storage.enqueue(
        [
            *(
                job(f"other-{name}", queue=OTHERS, key=f"t {name}", payload='["secret"]', key_window=1e6)
                for name in ("ended", "running", "ready")
            ),
            *more,
        ]
    )
    await run(storage, "other-ended", result='"secret"')
    await claim(storage, 1, OTHERS, ids=("other-running",), worker="theirs")


Act = Callable[[Storage, str], Awaitable[object]]


def of(options: dict[str, Any], name: str) -> dict[str, Any]:
    """The options with %s replaced by the name of one of the other jobs."""

    def filled(value: Any) -> Any:
        if isinstance(value, tuple):
            return tuple(map(filled, value))
        return value.replace("%s", name) if isinstance(value, str) else value

    return {key: filled(value) for key, value in options.items()}


def asking(kind: type[TreadleError], **options: Any) -> Act:
    """A job of mine that names the other job is refused, and the error reveals nothing about it."""

    async def act(storage: Storage, name: str) -> None:
        with pytest.raises(kind) as caught:
            await storage.enqueue([mine("sibling"), mine(**{"id": "m", **of(options, name)})])
        assert "secret" not in str(caught.value)
        if isinstance(caught.value, KeyHeld):
            assert caught.value.id == ""
        if isinstance(caught.value, IdTaken):
            assert caught.value.task is None
        assert await states(storage, "sibling m") == [None, None]

    return act


def settling(**options: Any) -> Act:
    """An outcome for the other job finds no such job."""

    async def act(storage: Storage, name: str) -> None:
        record = await row(storage, f"other-{name}")
        [answer] = await storage.settle(
            [Outcome(**{"id": record.id, "version": record.version, "state": SUCCEEDED, "reach": MINE, **options})]
        )
        assert (answer.status, answer.reason) == ("stale", "there is no such job")

    return act


async def beating(storage: Storage, name: str) -> None:
    record = await row(storage, f"other-{name}")
    more: dict[str, Any]
    for more in ({}, {"note": "x"}, {"checkpoints": (("step", "1"),)}):
        assert await beat(storage, renewal(record, reach=MINE, **more)) == {record.id}


async def claiming(storage: Storage, name: str) -> None:
    await storage.enqueue([mine(f"own-{name}")])
    wanted = (f"other-{name}", f"own-{name}")
    assert await claim_ids(storage, 9, "mine", ids=wanted[:1], reach=MINE) == []
    assert await claim_ids(storage, 9, "mine", ids=wanted, reach=MINE) == [f"own-{name}"]


def born(**options: Any) -> Act:
    """An outcome of mine that would store such a job is refused, and no part of it is applied."""

    async def act(storage: Storage, name: str) -> None:
        await storage.enqueue([mine(f"parent-{name}")])
        parent = await claim_one(storage, "mine")
        child = mine(**{"id": "child", **of(options, name)})
        answer = await refusal(storage, done(parent, followups=(child,), reach=MINE))
        assert answer.status == "refused"
        assert "secret" not in (answer.reason or "")
        assert await row(storage, parent.id) == parent

    return act


async def waiting(storage: Storage, name: str) -> None:
    await storage.enqueue([mine(f"waits-{name}")])
    record = await claim_one(storage, "mine")
    for function_done in (False, True):
        answer = await refusal(
            storage, out(record, WAITING, after=(f"other-{name}",), function_done=function_done, reach=MINE)
        )
        assert answer.status == "refused"
    assert await row(storage, record.id) == record


ACTS: dict[str, Act] = {
    "id": asking(IdTaken, id="other-%s"),
    "id, twice in a call": asking(IdTaken, id="other-%s", key="t another"),
    "id, with a nonce": asking(IdTaken, id="other-%s", nonce="1"),
    "key, keep": asking(KeyHeld, key="t %s"),
    "key, raise": asking(KeyHeld, key="t %s", key_conflict="raise"),
    "key, replace": asking(KeyHeld, key="t %s", key_conflict="replace"),
    "after": asking(UnknownUpstream, after=("other-%s",)),
    "after, any ending": asking(UnknownUpstream, after=("other-%s",), failures_allowed=None, function_done=True),
    "after, with a timeout": asking(UnknownUpstream, after=("other-%s",), wait_timeout=60.0),
    "root": asking(UnknownUpstream, root="other-%s"),
    "parent": asking(UnknownUpstream, root="other-%s", parent="other-%s"),
    "root, with a parent of mine": asking(UnknownUpstream, root="other-%s", parent="sibling"),
    "settle": settling(),
    "settle, cancel": settling(state=CANCELLED, reason="asked"),
    "settle, retry": settling(state=READY),
    "settle, wait": settling(state=WAITING),
    "settle, keep": settling(keep=0.0),
    "settle, with a checkpoint": settling(checkpoints=(("step", "1"),)),
    "act, cancel": settling(state=CANCELLED, reason="asked", checkpoints=((ACT, "1"),)),
    "act, retry": settling(state=READY, checkpoints=((ACT, "1"),)),
    "act, keep": settling(keep=0.0, checkpoints=((ACT, "1"),)),
    "heartbeat": beating,
    "claim by id": claiming,
    "then, id": born(id="other-%s"),
    "then, key": born(key="t %s"),
    "then, key replaced": born(key="t %s", key_conflict="replace"),
    "then, after": born(after=("other-%s",)),
    "then, parent": born(parent="other-%s", root="other-%s"),
    "wait": waiting,
}


@pytest.mark.parametrize("act", ACTS)
async def test_law15_a_row_out_of_reach_is_not_changed(storage: Storage, act: str) -> None:
    """Ready, running or ended: the storage does not change the row and reveals nothing about it."""
    await others(storage)
    names = [f"other-{name}" for name in ("ready", "running", "ended")]
    before = await storage.get(names)
    for name in ("ready", "running", "ended"):
        await ACTS[act](storage, name)
        assert await storage.get(names) == before


async def test_law15_calls_within_reach_work_as_without_one(storage: Storage, clock: HandClock) -> None:
    """Known ids and held keys return rows, upstreams are waited for, outcomes and heartbeats are applied."""
    [first] = await storage.enqueue([mine("a", key="t k")])
    assert ids(await storage.enqueue([mine("a"), mine("b", key="t k")])) == ["a", "a"]
    with pytest.raises(KeyHeld) as caught:
        await storage.enqueue([mine("b", key="t k", key_conflict="raise")])
    assert caught.value.id == "a"
    await storage.enqueue([mine("b", queue="mine too", key="t k", key_conflict="replace"), mine("c", after=("b",))])
    assert await states(storage, "a b c") == [CANCELLED, READY, WAITING]
    [claimed] = await claim(storage, 1, "mine", ids=("b",), reach=MINE)
    assert await beat(storage, renewal(claimed, reach=MINE, note="x")) == frozenset()
    followups = (mine("d", root="b", parent="b"), mine("e", root="b", parent="d", after=("d",)))
    await settle(
        storage,
        out(
            claimed,
            WAITING,
            function_done=True,
            followups=followups,
            after=("d", "e", "c"),
            reach=MINE,
            failures_allowed=None,
        ),
    )
    assert await states(storage, "b c d e") == [WAITING, WAITING, READY, WAITING]
    assert first.job.reach == MINE


async def test_law15_an_outcome_may_keep_the_upstreams_of_its_job(storage: Storage) -> None:
    """A caller with access to both queues has linked them."""
    await storage.enqueue(
        [job("u", queue=OTHERS), job("a", queue="mine", after=("u",), failures_allowed=None, function_done=True)]
    )
    await run(storage, "u")
    record = await claim_one(storage, "mine")
    await storage.enqueue([job("v", queue=OTHERS)])
    assert (
        await refusal(storage, out(record, WAITING, after=("u", "v"), function_done=True, reach=MINE))
    ).status == "refused"
    assert await said(
        storage, out(record, WAITING, after=("u",), function_done=True, failures_allowed=None, reach=MINE)
    ) == ["applied"]


async def test_law15_a_job_that_waits_for_an_unknown_id_is_refused(storage: Storage) -> None:
    """A job of another queue might get this id later."""
    with pytest.raises(UnknownUpstream):
        await storage.enqueue([mine("a", after=("unborn",), wait_timeout=60.0)])
    assert await states(storage, "a unborn") == [None, None]


async def test_law15_reopening_does_not_name_a_holder_out_of_reach(storage: Storage) -> None:
    await storage.enqueue([mine("a", key="t k")])
    await run(storage, "a", to=State.FAILED)
    await storage.enqueue([job("theirs", queue=OTHERS, key="t k")])
    record = await row(storage, "a")
    answer = await refusal(storage, back(record, reach=MINE))
    assert answer.status == "refused"
    assert "theirs" not in (answer.reason or "")
    assert "theirs" in ((await refusal(storage, back(record))).reason or "")


async def test_law15_each_job_of_a_call_has_its_own_reach(storage: Storage) -> None:
    """A call may contain the jobs of several callers."""
    theirs = job("x", queue=OTHERS, key="t k")
    with pytest.raises(IdTaken):
        await storage.enqueue([theirs, mine("x")])
    with pytest.raises(KeyHeld):
        await storage.enqueue([theirs, mine("a", key="t k")])
    with pytest.raises(UnknownUpstream):
        await storage.enqueue([theirs, mine("a", after=("x",))])
    assert await states(storage, "x a") == [None, None]


# --- Treadle's own ids


@pytest.mark.parametrize("other", [{"queue": OTHERS}, {"root": "r"}, {"root": "p", "parent": "q"}])
async def test_law15_a_derived_id_in_another_workflow_is_refused(storage: Storage, other: dict[str, str]) -> None:
    """A row that another caller stored under a derived id is not mistaken for the expected one."""
    await storage.enqueue([job("p"), job("q"), job("r")])
    child = job(OWN, root="p", parent="p")
    await storage.enqueue([replace(child, **other)])
    before = await row(storage, OWN)
    with pytest.raises(IdTaken) as caught:
        await storage.enqueue([child])
    assert caught.value.task is None
    parent = (await claim(storage, 1, ids=("p",)))[0]
    answer = await refusal(
        storage, out(parent, WAITING, function_done=True, followups=(child,), after=(OWN,), failures_allowed=None)
    )
    assert answer.status == "refused"
    assert await row(storage, OWN) == before


async def test_law15_a_derived_id_is_stored_once(storage: Storage) -> None:
    await storage.enqueue([job("p")])
    child = job(OWN, root="p", parent="p", payload="1")
    [first] = await storage.enqueue([child])
    assert await storage.enqueue([replace(child, payload="2")]) == [first]
    assert await state(storage, OWN) is READY


async def test_law15_a_claim_without_ids_has_no_reach(storage: Storage) -> None:
    await storage.enqueue([job("a")])
    assert ids((await storage.claim(ask(1, reach=MINE))).records) == ["a"]
