"""Law 16: a queue with `max_waiting` refuses jobs or sheds others, in the step that stores the new ones."""

from __future__ import annotations

from typing import Any

import pytest

from treadle.core.errors import BadOption, KeyHeld, QueueFull, UnknownUpstream
from treadle.core.limit_model import Declare, Limit, Pause, Resume
from treadle.core.model import NewJob
from treadle.storage.contract import Storage
from treadle.testing.clock import HandClock
from treadle_testkit.conformance.kit import (
    CANCELLED,
    FAILED,
    READY,
    WAITING,
    advance_due,
    back,
    claim,
    claim_ids,
    claim_one,
    done,
    ids,
    job,
    jobs,
    names,
    row,
    run,
    settle,
    states,
)
from treadle_testkit.conformance.laws_counts import agree
from treadle_testkit.shows import shows


async def bound(storage: Storage, most: int, queue: str = "default", **options: Any) -> None:
    await storage.set_limits([Limit(f"queue:{queue}", max_waiting=most, **options)])


async def waiting(storage: Storage, queue: str = "default") -> int:
    """The number that the bound counts."""
    return sum(count.jobs for count in (await storage.stats()).counts if (count.queue, count.state) == (queue, READY))


async def full(storage: Storage, *new: NewJob) -> QueueFull:
    """Enqueue these jobs, which must be refused."""
    with pytest.raises(QueueFull) as caught:
        await storage.enqueue(new)
    assert [record for record in await storage.get([new_job.id for new_job in new]) if record is not None] == []
    return caught.value


async def shed(storage: Storage, ids: str) -> list[str]:
    """The ids of these jobs that were shed."""
    rows = [record for record in await storage.get(ids.split()) if record is not None]
    assert all(record.state is CANCELLED for record in rows if record.reason == "shed")
    return [record.job.id for record in rows if record.reason == "shed"]


# --- refuse


@shows("a full queue refuses a call as a whole, and says how many jobs wait and how many may", area="Limits")
async def test_law16_a_full_queue_refuses(storage: Storage, clock: HandClock) -> None:
    """The error has queue, bound, waiting jobs and jobs asked for. Jobs of other queues are not stored either."""
    await bound(storage, 3)
    await storage.enqueue(jobs("a b"))
    error = await full(storage, job("o", queue="other"), *jobs("c d"))
    assert (error.queue, error.max_waiting, error.waiting, error.asked) == ("default", 3, 2, 2)
    await storage.enqueue([job("c"), job("o", queue="other")])
    error = await full(storage, job("d"))
    assert (error.waiting, error.asked) == (3, 1)
    assert await claim_ids(storage) == ["a"]
    await storage.enqueue(jobs("d"))  # a running job does not wait
    await agree(storage, clock)


async def test_law16_jobs_of_every_form_need_room(storage: Storage, clock: HandClock) -> None:
    """Jobs with a key, a delay, a lane, labels, limits or headers count like plain ones."""
    await bound(storage, 2)
    await storage.enqueue([job("a", key="a"), job("b", delay=60)])
    for options in (
        {"key": "k"},
        {"key": "k", "key_conflict": "replace"},
        {"delay": 5},
        {"lane": "x"},
        {"labels": ("l",)},
        {"limits": (("api", 1),)},
        {"headers": (("h", "v"),)},
        {"deadline": 9},
        {"nonce": "n"},
        {"priority": 5, "aging": 1.0},
    ):
        await full(storage, job("x", **options))
    await full(storage, *jobs(names(0, 20)))
    await agree(storage, clock)


async def test_law16_jobs_that_do_not_wait_in_the_queue_need_no_room(storage: Storage, clock: HandClock) -> None:
    """Known ids, held keys, jobs that wait for others, promises, and jobs whose function is done."""
    await bound(storage, 2)
    await storage.enqueue([job("a", key="k"), job("b")])
    rows = await storage.enqueue([job("a", key="k"), job("x", key="k"), job("b"), job("b")])
    assert ids(rows) == ["a", "a", "b", "b"]
    await storage.enqueue([job("c", after=("a",)), job("p", task=""), job("d", function_done=True)])
    assert await states(storage, "c p d") == [WAITING, WAITING, READY]
    await full(storage, job("y"))
    await agree(storage, clock)


async def test_law16_a_job_that_replaces_a_ready_one_needs_no_room(storage: Storage, clock: HandClock) -> None:
    """It takes the room of the job that it supersedes, if that one is ready and in the same queue."""
    await bound(storage, 2)
    await storage.enqueue([job("a", key="k"), job("b", key="l", queue="other"), job("c", key="m", delay=60)])
    await storage.enqueue([job("a2", key="k", key_conflict="replace"), job("c2", key="m", key_conflict="replace")])
    assert await states(storage, "a a2 c c2") == [CANCELLED, READY, CANCELLED, READY]
    await full(storage, job("b2", key="l", key_conflict="replace"))
    assert await claim_ids(storage) == ["a2"]
    await storage.enqueue([job("d")])
    await full(storage, job("a3", key="k", key_conflict="replace"))  # the holder runs: it keeps no room
    await storage.enqueue([job("c3", key="m", key_conflict="replace"), job("c4", key="m", key_conflict="replace")])
    assert await states(storage, "c3 c4") == [CANCELLED, READY]
    await agree(storage, clock)


async def test_law16_other_refusals_take_precedence(storage: Storage) -> None:
    """QueueFull is raised only for a call that could be stored otherwise."""
    await bound(storage, 1)
    await storage.enqueue([job("a", key="k")])
    with pytest.raises(KeyHeld):
        await storage.enqueue([job("b"), job("c", key="k", key_conflict="raise")])
    with pytest.raises(UnknownUpstream):
        await storage.enqueue([job("b"), job("c", after=("nobody",))])
    await bound(storage, 1, "x")
    await storage.enqueue([job("x", queue="x")])
    error = await full(storage, job("o", queue="other"), job("y", queue="x"), job("b"))
    assert error.queue == "x"


@shows("a stored job is never refused: retries, releases, follow-up jobs and reopenings need no room", area="Limits")
async def test_law16_accepted_jobs_are_never_refused(storage: Storage, clock: HandClock) -> None:
    """They may exceed the bound, and the queue then admits nothing until enough have left."""
    await bound(storage, 2)
    await storage.enqueue([*jobs("a b"), job("c", after=("a",))])
    a, b = await claim(storage, 2)
    await storage.enqueue(jobs("d e"))
    await settle(storage, done(a, followups=(job("f"), job("g"))), back(b, 5, attempt=1))
    assert await waiting(storage) == 6  # b c d e f g
    await full(storage, job("x"))
    clock.advance(6)
    await run(storage, "f", "g", "c", "d")
    await full(storage, job("x"))
    await run(storage, "e", to=FAILED)
    await storage.enqueue([job("x")])
    await settle(storage, back(await row(storage, "e")))
    assert await waiting(storage) == 3
    claimed = await claim_one(storage, ids=("b",))
    assert claimed.job.id == "b"
    clock.advance(31)
    await advance_due(storage)  # its lease expires
    assert await waiting(storage) == 3
    await agree(storage, clock)


async def test_law16_blocked_jobs_wait(storage: Storage, clock: HandClock) -> None:
    """A job that a limit blocks counts, as it did while it was queued."""
    await storage.set_limits([Limit("api", slots=1), Limit("queue:default", max_waiting=3)])
    await storage.enqueue(jobs("a b c", limits=(("api", 1),)))
    assert await claim_ids(storage, 3) == ["a"]
    await storage.enqueue([job("d")])
    await full(storage, job("e"))
    await agree(storage, clock)


# --- which rule


async def test_law16_the_rule_of_a_queue_replaces_the_common_bound(storage: Storage) -> None:
    """ "queue" bounds each queue that has no rule of its own; the operator's rule wins; a pause lifts no bound."""
    await storage.set_limits([Declare(Limit("queue", max_waiting=1)), Limit("queue:free", slots=5)])
    await storage.enqueue([*jobs("a", queue="a"), *jobs("b", queue="b"), *jobs("f1 f2", queue="free")])
    await full(storage, job("a2", queue="a"))
    await storage.set_limits([Pause("queue:a"), Pause("queue:b", "held", 1e9)])
    await full(storage, job("a2", queue="a"))
    await storage.set_limits([Limit("queue:a", max_waiting=2)])
    await storage.enqueue([job("a2", queue="a")])
    await full(storage, job("a3", queue="a"))
    await storage.set_limits([Limit("queue:a")])  # removed: the rule of all queues applies, which is still paused
    await full(storage, job("a3", queue="a"))
    await storage.set_limits([Limit("queue")])
    await storage.enqueue([job("a3", queue="a")])


async def test_law16_a_bound_limits_no_claim(storage: Storage) -> None:
    """A rule with only `max_waiting` admits any number, and is shown with it."""
    await storage.set_limits([Limit("queue:default", max_waiting=5, when_full="drop_oldest")])
    await storage.enqueue(jobs(names(0, 5)))
    assert len(await claim(storage, 9)) == 5
    [shown] = [limit_use for limit_use in (await storage.stats()).limits if limit_use.key == "queue:default"]
    assert (shown.rule.max_waiting, shown.rule.when_full, shown.rule.slots) == (5, "drop_oldest", None)
    [shown] = [limit_use for limit_use in await storage.limits(use=False) if limit_use.key == "queue:default"]
    assert (shown.rule.max_waiting, shown.rule.when_full) == (5, "drop_oldest")


async def test_law16_resuming_keeps_a_bound(storage: Storage) -> None:
    """If the rule has 0 slots and a bound, resuming removes the slots and keeps the bound."""
    await storage.set_limits([Limit("queue:default", slots=0, rate=9, max_waiting=1), Pause("queue:default")])
    await storage.enqueue([job("a")])
    await storage.set_limits([Resume("queue:default")])
    await full(storage, job("b"))
    [shown] = [limit_use for limit_use in await storage.limits(use=False) if limit_use.key == "queue:default"]
    assert shown.rule == Limit("queue:default", max_waiting=1)
    assert await claim_ids(storage) == ["a"]


async def test_law16_odd_bounds_are_refused(storage: Storage) -> None:
    """A bound of 0 or of another limit than a queue's, and `when_full` without a bound."""
    for rule in (
        Limit("queue:q", max_waiting=0),
        Limit("queue:q", max_waiting=10**9 + 1),
        Limit("api", max_waiting=5),
        Limit("queue:q", slots=1, when_full="drop_oldest"),
    ):
        with pytest.raises(BadOption):
            await storage.set_limits([rule])
    assert [limit_use for limit_use in await storage.limits(use=False) if limit_use.key == "queue:q"] == []
