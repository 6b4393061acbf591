"""The random steps of `property.py`, as strategies of Hypothesis."""

from __future__ import annotations

from typing import Any, Final

from treadle.core.limit_model import Limit
from treadle.core.query_model import MetricsRow
from treadle.testing.clock import HandClock

Step = tuple[Any, ...]
BEGIN: Final = HandClock().moment


def steps() -> Any:
    """A step is plain data: its numbers select among the current jobs, so that a shortened sequence is still valid."""
    from hypothesis import strategies as st

    few, specs = st.integers(0, 3), st.lists(_specs(), min_size=1, max_size=3)
    endings = st.lists(_endings(specs), min_size=1, max_size=3)
    rules = st.lists(_rules(), min_size=1, max_size=2)
    rows = st.lists(_metrics(), max_size=3)
    requests = _asked()
    often = [
        st.tuples(st.just("enqueue"), specs),
        st.tuples(st.just("claim"), requests),
        st.tuples(st.just("settle"), endings),
    ]
    return st.one_of(
        st.tuples(st.just("advance"), st.sampled_from([0.0, 11.0, 31.0, 0.5, 2.0, 5.0, 100.0])),
        *often,
        *often,
        st.tuples(
            st.just("beat"), st.lists(st.tuples(st.integers(0, 30), few), max_size=3), st.sampled_from([5.0, 30.0])
        ),
        st.tuples(st.just("limits"), rules),
        st.tuples(st.just("prune"), st.integers(1, 5)),
        st.tuples(st.just("metrics"), rows, rows),
        st.tuples(st.just("again"), st.sampled_from(["enqueue", "claim", "settle", "claim before"])),
    )


def _specs() -> Any:
    """Options of a new job."""
    from hypothesis import strategies as st

    some, maybe = st.integers(0, 30), st.sampled_from
    return st.fixed_dictionaries(
        {},
        optional={
            "old": some,
            "task": maybe(["t", "u", ""]),
            "payload": maybe(["[1]"]),
            "nonce": maybe(["1", "2"]),
            "queue": maybe(["q", "r"]),
            "priority": st.integers(-1, 2),
            "delay": maybe([5.0, 20.0]),
            "key": maybe(["k", "l"]),
            "key_conflict": maybe(["keep", "raise", "replace"]),
            "key_window": maybe([10.0, 40.0]),
            "key_until": maybe(["started"]),
            "ups": st.lists(some, max_size=3),
            "required": st.integers(1, 2),
            "failures_allowed": maybe([None, 1]),
            "wait_timeout": maybe([15.0]),
            "limits": st.lists(
                st.tuples(maybe(["x", "x:1", "y"]), st.integers(1, 3)), max_size=2, unique_by=lambda it: it[0]
            ),
            "lane": maybe(["a", "b"]),
            "stride": maybe([0.5, 2.0]),
            "aging": maybe([4.0]),
            "keep": maybe([0.0, 100.0]),
            "deadline": maybe([12.0, 30.0]),
            "run_at": maybe([BEGIN - 9.0, BEGIN + 8.0, BEGIN + 25.0]),
            "deadline_at": maybe([BEGIN + 16.0, BEGIN + 40.0]),
            "lease": maybe([7.0]),
            "parent": some,
            "function_done": st.booleans(),
        },
    )


def _endings(specs: Any) -> Any:
    """An outcome of a job; its `followups` are made of `specs`."""
    from hypothesis import strategies as st

    some, maybe = st.integers(0, 30), st.sampled_from
    return st.fixed_dictionaries(
        {"to": maybe(["succeeded", "failed", "cancelled", "ready", "waiting"]), "job": some},
        optional={
            "any": st.booleans(),
            "behind": st.just(1),
            "delay": maybe([3.0, 25.0]),
            "attempt": st.integers(0, 3),
            "result": maybe(["1"]),
            "reason": maybe(["children", "error", "asked"]),
            "note": maybe(["n"]),
            "checkpoints": maybe([(("s", "1"),), (("s", "2"), ("r", "1"))]),
            "followups": specs,
            "ups": st.lists(some, max_size=2),
            "required": st.integers(1, 2),
            "failures_allowed": maybe([0, 1]),
            "function_done": st.booleans(),
            "keep": maybe([0.0, 50.0]),
            "spent": maybe([(("x", 0),), (("x:1", 2), ("y", 1)), (("x", 5), ("y", 0))]),
        },
    )


def _rules() -> Any:
    from hypothesis import strategies as st

    maybe = st.sampled_from
    bounds = st.builds(
        Limit,
        name=maybe(["queue", "queue:q"]),
        slots=maybe([None, None, 1]),
        max_waiting=st.integers(1, 4),
        when_full=maybe(["drop_oldest", "drop_lowest", "refuse"]),
    )
    limits = st.builds(
        Limit,
        name=maybe(["x", "x:1", "y", "queue", "queue:q"]),
        slots=maybe([None, 0, 1, 2, 3]),
        rate=maybe([None, None, 0, 1, 2]),
        per=maybe([10.0]),
        how=maybe(["window", "bucket"]),
        burst=maybe([None, 3]),
        hold=maybe(["running", "ended"]),
    )
    return st.one_of(limits, bounds)


def _asked() -> Any:
    """Options of a claim."""
    from hypothesis import strategies as st

    some, maybe = st.integers(0, 30), st.sampled_from
    return st.fixed_dictionaries(
        {"limit": st.integers(1, 5)},
        optional={
            "queues": maybe([(("q", 9),), (("r", 1), ("q", 1)), (("q", 1), ("r", 9))]),
            "tasks": maybe([{"t": (None, None)}, {"t": (1, 4.0), "u": (2, None)}]),
            "lease": maybe([10.0]),
            "ids": st.lists(some, min_size=1, max_size=2),
            "running": st.lists(some, max_size=2),
        },
    )


def _metrics() -> Any:
    from hypothesis import strategies as st

    maybe = st.sampled_from
    return st.builds(
        MetricsRow,
        at=maybe([0.0, 60.0, 600.0, 660.0]),
        span=maybe([60.0, 600.0]),
        source=maybe(["", "w"]),
        data=maybe([b"", b"1", b"\xff"]),
    )
