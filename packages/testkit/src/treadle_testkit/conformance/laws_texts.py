"""Texts that a storage cannot keep unchanged: it refuses them, stores nothing, and continues. Laws 1 and 14."""

from __future__ import annotations

from typing import Any

import pytest

from treadle.core.errors import BadOption
from treadle.core.model import LeaseRenewal, NewJob, Outcome, Presence
from treadle.storage.capabilities import fused
from treadle.storage.contract import Storage
from treadle_testkit.conformance.kit import (
    READY,
    RUNNING,
    SUCCEEDED,
    ask,
    claim_one,
    done,
    ids,
    job,
    out,
    row,
    said,
    settle,
    state,
)

HALF = "\ud800"  # half of a surrogate pair
NAMES: tuple[tuple[str, Any], ...] = (
    ("id", "{}"),
    ("task", "{}"),
    ("queue", "{}"),
    ("key", "{}"),
    ("lane", "{}"),
    ("root", "{}"),
    ("parent", "{}"),
    ("nonce", "{}"),
    ("labels", ("{}",)),
    ("limits", (("{}", 1),)),
    ("after", ("{}",)),
)
TEXTS: tuple[tuple[str, Any], ...] = (
    ("payload", '["{}"]'),
    ("retry", "{}"),
    ("headers", (("{}", "x"),)),
    ("headers", (("x", "{}"),)),
)
ODD_NAMES = ("\0", "k\0a", f"k{HALF}", "n" * 600)


def filled(pattern: Any, text: str) -> Any:
    """The pattern with the text inserted."""
    if isinstance(pattern, str):
        return pattern.replace("{}", text)
    return tuple(filled(part, text) for part in pattern) if isinstance(pattern, tuple) else pattern


def odd_jobs(id: str) -> list[NewJob]:
    """One job for each field that takes text, and for each kind of text."""
    fields = [(name, filled(pattern, text)) for name, pattern in NAMES for text in ODD_NAMES]
    fields += [(name, filled(pattern, HALF)) for name, pattern in TEXTS]
    return [job(**{"id": id, "wait_timeout": 9.0, name: value}) for name, value in fields]


def plain_odd_jobs(id: str) -> list[NewJob]:
    """The jobs that have no other options."""
    names = ("id", "task", "queue")
    return [job(**{"id": id, name: text}) for name in names for text in ODD_NAMES]


async def test_law01_a_text_that_cannot_be_kept_is_refused(storage: Storage) -> None:
    """Alone, together with another job, which is not stored either, and twice in one call."""
    for odd in (*odd_jobs("a"), *plain_odd_jobs("a")):
        for jobs in ([odd], [job("beside"), odd], [odd, odd]):
            with pytest.raises(BadOption):
                await storage.enqueue(jobs)
    assert await storage.get(["a", "beside"]) == [None, None]
    await storage.enqueue([job("a", key="k"), job("b", key="l"), job("beside")])
    assert [record.job.id for record in await storage.enqueue([job("c", key="k"), job("b")])] == ["a", "b"]
    assert [await state(storage, id) for id in ("a", "b", "beside")] == [READY] * 3


async def test_law14_an_outcome_with_a_text_that_cannot_be_kept_is_refused_alone(storage: Storage) -> None:
    await storage.enqueue([job(f"j{n:02}") for n in range(3)])
    first, second, third = [await claim_one(storage) for _ in range(3)]
    odd: list[Outcome] = [done(second, followups=(new_job,)) for new_job in odd_jobs("kid")]
    odd += [done(second, **{name: HALF}) for name in ("result", "value", "error", "reason", "note")]
    odd += [
        done(second, checkpoints=((HALF, "1"),)),
        done(second, checkpoints=(("step", HALF),)),
        done(second, checkpoints=(("\0", "1"),)),
    ]
    odd += [out(second, READY, after=(text,)) for text in ODD_NAMES]
    for outcome in odd:
        [answer] = await storage.settle([outcome])
        assert answer.status == "refused", outcome
        assert answer.reason
    assert await said(storage, done(first, result="1"), odd[0], done(third)) == ["applied", "refused", "applied"]
    assert await storage.get(["kid"]) == [None]
    await settle(storage, done(second, result='"a\0b"'))  # U+0000 is allowed in texts that are not names
    assert [await state(storage, id) for id in ("j00", "j01", "j02")] == [SUCCEEDED] * 3
    assert (await row(storage, "j01")).result == '"a\0b"'


async def test_law14_a_settle_and_claim_refuses_an_outcome_with_a_bad_text_alone(storage: Storage) -> None:
    both = fused(storage)
    if both is None:
        pytest.skip("this storage settles and claims in two calls")
    await storage.enqueue([job(f"j{n:02}") for n in range(4)])
    first, second = [await claim_one(storage) for _ in range(2)]
    odd = done(second, followups=(job("kid", task=HALF),))
    settled, claimed = await both.settle_claim([odd, done(first, result="1"), odd], ask())
    assert [answer.status for answer in settled] == ["refused", "applied", "refused"]
    assert ids(claimed.records) == ["j02"]
    settled, claimed = await both.settle_claim([odd], ask())
    assert [answer.status for answer in settled] == ["refused"]
    assert ids(claimed.records) == ["j03"]
    assert [await state(storage, id) for id in ("j00", "j01")] == [SUCCEEDED, RUNNING]


@pytest.mark.parametrize("text", ODD_NAMES)
async def test_more_a_heartbeat_with_a_text_that_cannot_be_kept_is_refused(storage: Storage, text: str) -> None:
    await storage.enqueue([job("a")])
    a = await claim_one(storage)
    for worker in (
        Presence(worker=text),
        Presence(worker="w", host=text),
        Presence(worker="w", queues=(text,)),
        Presence(worker="w", tasks=(text,)),
    ):
        with pytest.raises(BadOption):
            await storage.heartbeat(worker, [], 30.0)
    if HALF in text:
        for renewal in (
            LeaseRenewal("a", a.version, note=text),
            LeaseRenewal("a", a.version, checkpoints=(("s", text),)),
        ):
            with pytest.raises(BadOption):
                await storage.heartbeat(Presence(worker="w"), [renewal], 30.0)
    assert (await storage.stats()).workers == ()
    await storage.heartbeat(Presence(worker="w"), [LeaseRenewal("a", a.version, note="half done")], 30.0)
    assert (await row(storage, "a")).note == "half done"
