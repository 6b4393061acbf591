"""Values out of range: every storage refuses them with the same error and stores nothing. Laws 1, 8 and 14."""

from __future__ import annotations

from math import inf, nan
from typing import Any, Final

import pytest

from treadle.core.errors import BadOption, TooLarge
from treadle.core.limit_model import Declare, Limit, LimitChange, Pause, Resume
from treadle.core.model import LeaseRenewal, NewJob, Outcome, Presence
from treadle.core.ranges import MOST_CHECKPOINTS
from treadle.storage.capabilities import fused
from treadle.storage.contract import Storage
from treadle_testkit.conformance.kit import (
    READY,
    RUNNING,
    SUCCEEDED,
    ask,
    claim_one,
    done,
    job,
    out,
    row,
    said,
    state,
)

ERRORS: Final = (BadOption, TooLarge)
SPANS: Final = (-1.0, nan, inf, -inf, 1e10, 2**80)  # seconds
COUNTS: Final = (-1, 2**31, 2**63, 2**80)
NAMES: Final = ("", "a\x1b[2J", "a\nb", "\x7f", "\u202e", "n" * 600)
IDS: Final = (*NAMES, "a b", "a/b")
LONG: Final = "x" * (16 * 2**20 + 1)


def odd_jobs() -> list[NewJob]:
    """For each field of a job, each kind of value that is out of range."""
    fields: list[tuple[str, Any]] = [
        (name, value)
        for name in (
            "delay",
            "keep",
            "keep_failed",
            "aging",
            "key_window",
            "deadline",
            "wait_timeout",
            "lease",
            "stride",
        )
        for value in SPANS
    ]
    fields += [("run_at", value) for value in (nan, inf, -inf, 1e12, 2**80)]
    fields += [("deadline_at", 1.7e9), ("lease", 0.0), ("stride", 0.0), ("stride", 1001.0)]
    fields += [("priority", value) for value in (-32769, 32768, 2**62, 2**63, 2**80, -(2**80))]
    fields += [(name, value) for name in ("required", "failures_allowed") for value in COUNTS]
    fields += [("limits", (("a", cost),)) for cost in (0, -1000, *COUNTS)]
    fields += [
        ("limits", (("treadle.a", 1),)),
        ("limits", (("queue:other", 1),)),
        ("limits", tuple((f"l{n}", 1) for n in range(65))),
    ]
    fields += [(name, value) for name in ("queue", "key", "lane", "nonce") for value in NAMES]
    fields += [("task", value) for value in (*NAMES[1:], "two words")]
    fields += [("labels", (value,)) for value in NAMES] + [("labels", tuple(f"l{n}" for n in range(100)))]
    fields += [("limits", ((value, 1),)) for value in NAMES]
    fields += [(name, value) for name in ("id", "root", "parent") for value in IDS]
    fields += [("after", (value,)) for value in IDS]
    fields += [("headers", (("a\x1b", "b"),)), ("headers", (("a", "b\x1b"),)), ("headers", (("a", "b" * 70_000),))]
    fields += [("payload", LONG), ("retry", "x" * (2**20 + 1))]
    return [
        job("a", **{"wait_timeout": 9.0, name: value} if name == "after" else {name: value})
        if name != "id"
        else job(value)
        for name, value in fields
    ]


def _field(name: str, value: Any) -> dict[str, Any]:
    return {name: value}


def odd_changes() -> list[LimitChange]:
    rules = [Limit("a", **_field(name, value)) for name in ("slots", "rate", "burst") for value in COUNTS]
    rules += [Limit("a", rate=1, per=value) for value in (0.0, *SPANS)]
    rules += [Limit(name, slots=1) for name in NAMES]
    return [
        *rules,
        *map(Declare, rules),
        *(make(name) for name in NAMES for make in (Pause, Resume)),
        *(make("a", "held", value) for value in (nan, inf, 2**80) for make in (Pause, Resume)),
    ]


def odd_outcomes(of: Any) -> list[Outcome]:
    outcomes = [done(of, **{name: value}) for name in ("keep", "delay") for value in SPANS]
    outcomes += [out(of, READY, delay=value) for value in SPANS]
    outcomes += [done(of, **{name: value}) for name in ("attempt", "required", "failures_allowed") for value in COUNTS]
    outcomes += [Outcome(id=of.job.id, version=version, state=SUCCEEDED) for version in (2**31, 2**63, 2**80, -(2**80))]
    outcomes += [out(of, READY, after=(value,)) for value in IDS]
    outcomes += [done(of, result=LONG), done(of, value=LONG), done(of, error=LONG), done(of, note=LONG)]
    return [*outcomes, done(of, reason="x" * 600), done(of, checkpoints=(("s", "x" * MOST_CHECKPOINTS),))]


async def test_law01_a_job_with_a_value_out_of_range_is_refused(storage: Storage) -> None:
    """Alone, with one other job, and with so many that a storage may use its bulk path."""
    many = [job(f"beside{n}") for n in range(9)]
    for odd in odd_jobs():
        for jobs in ([odd], [many[0], odd], [*many, odd], [odd, *many, odd]):
            with pytest.raises(ERRORS):
                await storage.enqueue(jobs)
    assert await storage.get(["a", *(new.id for new in many)]) == [None] * 10
    assert (await storage.stats()).counts == ()
    await storage.enqueue([job("a", key="k"), *many])  # the refused jobs hold no key
    assert await state(storage, "a") == READY


async def test_law08_no_cost_of_a_job_makes_room_for_others(storage: Storage) -> None:
    await storage.set_limits([Limit("a", slots=2)])
    with pytest.raises(BadOption):
        await storage.enqueue([job("debtor", limits=(("a", -1000),))])
    await storage.enqueue([job(f"j{n}", limits=(("a", 1),)) for n in range(6)])
    assert len((await storage.claim(ask(9))).records) == 2
    assert [use.used for use in await storage.limits() if use.key == "a"] == [2]


async def test_law14_an_outcome_with_a_value_out_of_range_is_refused_alone(storage: Storage) -> None:
    await storage.enqueue([job("j0"), job("j1")])
    first, second = [await claim_one(storage) for _ in range(2)]
    odd = [*odd_outcomes(first), *(done(first, followups=(new,)) for new in odd_jobs() if new.id == "a")]
    for outcome in odd:
        [answer] = await storage.settle([outcome])
        assert answer.status == "refused", outcome
        assert answer.reason
    assert await state(storage, "j0") == RUNNING
    assert await storage.get(["a"]) == [None]
    assert await said(storage, odd[0], done(second), odd[-1]) == ["refused", "applied", "refused"]
    assert await said(storage, done(first)) == ["applied"]


async def test_law14_a_number_that_cannot_be_read_is_refused(storage: Storage) -> None:
    """A client that reads a page with such a number fails, also for all other rows of the page."""
    number, digits = "7" * 4_301, "7" * 5_000
    for payload in (f"[{number}]", f'["a",{{"b":-{digits}}}]', f'["{digits}\\"",{number}.5]'):
        with pytest.raises(BadOption, match=r"at most 4,300 digits"):
            await storage.enqueue([job("a"), job("b", payload=payload)])
    assert await storage.get(["a", "b"]) == [None, None]
    fine = (f"[{number[1:]}]", f'["{digits}"]', f'["\\"{digits}","{digits}\\\\"]')
    await storage.enqueue([job(f"j{number}", payload=payload) for number, payload in enumerate(fine)])
    a = await claim_one(storage)
    for fields in ({"result": number}, {"value": f"[{number}]"}, {"checkpoints": (("s", f'{{"a":{number}}}'),)}):
        [answer] = await storage.settle([done(a, **{"result": "1", **fields})])
        assert (answer.status, "at most 4,300 digits" in (answer.reason or "")) == ("refused", True)
    with pytest.raises(BadOption, match=r"at most 4,300 digits"):
        await storage.heartbeat(Presence(worker="w"), [LeaseRenewal(a.id, a.version, (("s", number),))], 30.0)
    assert await said(storage, done(a, result=f'"{digits}"')) == ["applied"]


async def test_more_a_claim_with_a_value_out_of_range_is_refused(storage: Storage) -> None:
    await storage.enqueue([job("a")])
    odd: list[dict[str, Any]] = [{"worker": name} for name in NAMES[1:]] + [{"lease": span} for span in SPANS]
    odd += [{"limit": count} for count in COUNTS] + [{"queues": (("default", count),)} for count in COUNTS]
    odd += [{"queues": ((name, 1),)} for name in NAMES] + [{"tasks": {name: (1, None)}} for name in NAMES if name]
    odd += [{"tasks": {"t": (count, None)}} for count in COUNTS] + [{"tasks": {"t": (1, span)}} for span in SPANS]
    for fields in odd:
        with pytest.raises(ERRORS):
            await storage.claim(ask(**fields))
        if both := fused(storage):
            with pytest.raises(ERRORS):
                await both.settle_claim([], ask(**fields))
    assert await state(storage, "a") == READY


async def test_more_a_heartbeat_with_a_value_out_of_range_is_refused(storage: Storage) -> None:
    await storage.enqueue([job("a")])
    a = await claim_one(storage)
    held = LeaseRenewal("a", a.version)
    odd: list[dict[str, Any]] = [{name: value} for name in ("uptime", "paused", "ttl", "age") for value in SPANS]
    odd += [{name: value} for name in ("pid", "slots", "running") for value in COUNTS]
    odd += [{"gathering": (("t", span, 1.0),)} for span in SPANS[1:]]
    presences = [Presence(**{"worker": "w", **fields}) for fields in odd]
    presences += [Presence(worker=name) for name in NAMES] + [Presence(worker="w", tasks=(name,)) for name in NAMES]
    for worker in presences:
        with pytest.raises(ERRORS):
            await storage.heartbeat(worker, [held], 30.0)
    for lease in SPANS:
        with pytest.raises(ERRORS):
            await storage.heartbeat(Presence(worker="w"), [held], lease)
    for renewal in (LeaseRenewal("a", 2**63), LeaseRenewal("a", 2**80), LeaseRenewal("a", a.version, note=LONG)):
        with pytest.raises(ERRORS):
            await storage.heartbeat(Presence(worker="w"), [renewal], 30.0)
    assert (await storage.stats()).workers == ()
    assert (await row(storage, "a")).note is None


async def test_more_a_change_of_limits_with_a_value_out_of_range_is_refused(storage: Storage) -> None:
    """The other changes of the same call are refused too."""
    for change in odd_changes():
        with pytest.raises(ERRORS):
            await storage.set_limits([Limit("beside", slots=1), change])
    assert await storage.limits() == ()
