"""Checks names, texts and numbers before they are stored (`ranges.py` has the ranges). Every storage calls these checks
itself and stores nothing that they refuse.

A quick check of many jobs together comes first; a job is checked in full only if it has something unusual.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from typing import Any, Final, TypeAlias, TypeVar

from treadle.concurrency.spawn import answers_coroutine
from treadle.core import defaults
from treadle.core.errors import BadOption, TooLarge
from treadle.core.limit_model import LimitChange
from treadle.core.long_numbers import MOST_DIGITS
from treadle.core.model import Claim, Claimed, LeaseRenewal, NewJob, Outcome, Presence, Settled
from treadle.core.query_model import MetricsRow
from treadle.core.ranges import (
    COUNT,
    a_span,
    check_change,
    check_claim,
    check_job,
    check_metrics,
    check_outcome,
    check_presence,
    check_renewal,
)

FAR: Final = defaults.MAX_DELAY
SHORT: Final = MOST_DIGITS  # characters; no text up to this length is refused for its size, or for a long number
FEW: Final = 4  # the quick check is used for at least this many jobs
OF_IDS: Final = b"0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz._:@-"

T = TypeVar("T")
S = TypeVar("S")
Settles: TypeAlias = Callable[[S, Sequence[Outcome]], Coroutine[Any, Any, list[Settled]]]
SettlesAndClaims: TypeAlias = Callable[
    [S, Sequence[Outcome], Claim], Coroutine[Any, Any, tuple[list[Settled], Claimed]]
]


def guarded_settle(settle: Settles[S]) -> Settles[S]:
    """Wrap a storage's `settle`: it gets only the outcomes that can be stored, and the others are refused alone."""

    async def rest(self: S, outcomes: Sequence[Outcome], odd: Mapping[int, Settled]) -> list[Settled]:
        return among(odd, await settle(self, _without(odd, outcomes)))

    @answers_coroutine
    @functools.wraps(settle)
    def guarded(self: S, outcomes: Sequence[Outcome]) -> Coroutine[Any, Any, list[Settled]]:
        odd = odd_outcomes(outcomes)
        return rest(self, outcomes, odd) if odd else settle(self, outcomes)

    return guarded


def guarded_settle_claim(both: SettlesAndClaims[S]) -> SettlesAndClaims[S]:
    """Wrap a storage's `settle_claim` as `guarded_settle` does, and check the claim."""

    async def rest(
        self: S, outcomes: Sequence[Outcome], ask: Claim, odd: Mapping[int, Settled]
    ) -> tuple[list[Settled], Claimed]:
        settled, claimed = await both(self, _without(odd, outcomes), ask)
        return among(odd, settled), claimed

    @answers_coroutine
    @functools.wraps(both)
    def guarded(self: S, outcomes: Sequence[Outcome], ask: Claim) -> Coroutine[Any, Any, tuple[list[Settled], Claimed]]:
        check_ask(ask)
        odd = odd_outcomes(outcomes)
        return rest(self, outcomes, ask, odd) if odd else both(self, outcomes, ask)

    return guarded


def check_jobs(jobs: Sequence[NewJob], plain: bool = False) -> None:
    """Raise BadOption or TooLarge for a job with a value out of range. `plain`: the storage knows that none of the jobs
    has a key, a lane, labels, a parent, a lease or jobs it waits for."""
    if len(jobs) < FEW or not _have_usual_names(jobs):
        for job in jobs:
            check_job(job)
        return
    for job in jobs:
        if (
            not job.payload.isascii()
            or len(job.payload) > SHORT
            or job.priority
            or job.delay
            or job.run_at is not None
            or job.deadline is not None
            or job.deadline_at is not None
            or job.limits
            or job.headers
            or job.stride != 1.0
            or not 0.0 <= job.keep <= FAR
            or not 0.0 <= job.keep_failed <= FAR
            or job.required is not None
            or job.wait_timeout is not None
            or job.key_window is not None
            or job.retry is not None
            or (not plain and _is_rich(job))
        ):
            check_job(job)


def _have_usual_names(jobs: Sequence[NewJob]) -> bool:
    """Whether ids, tasks and queues are in range. All names are checked together, and each distinct name only once."""
    ids = [job.id for job in jobs]
    tasks = {job.task for job in jobs}
    names = {job.queue for job in jobs} | tasks
    joined, all_names = "".join(ids), "".join(names)
    return (
        joined.isascii()
        and not joined.encode().translate(None, OF_IDS)
        and all_names.isprintable()
        and not any(" " in task for task in tasks)
        and "" not in ids
        and "" not in names
        and max(map(len, ids)) <= defaults.MAX_NAME
        and max(map(len, names)) <= defaults.MAX_NAME
    )


def _is_rich(job: NewJob) -> bool:
    return bool(
        job.key is not None
        or job.after
        or job.labels
        or job.lane is not None
        or job.parent is not None
        or job.root is not None
        or job.failures_allowed
        or job.failures_allowed is None
        or job.aging
        or job.lease is not None
        or job.nonce is not None
    )


def odd_outcomes(outcomes: Sequence[Outcome]) -> dict[int, Settled]:
    """The outcomes that cannot be stored, by their index in the call. Each fails alone (law 14)."""
    odd: dict[int, Settled] = {}
    for number, out in enumerate(outcomes):
        try:
            check_outcome(out)
        except (BadOption, TooLarge) as error:
            odd[number] = Settled("refused", str(error))
    return odd


def check_beat(worker: Presence, renewals: Iterable[LeaseRenewal], lease: float) -> None:
    """Raise BadOption or TooLarge for a heartbeat with a value out of range."""
    check_presence(worker)
    a_span("lease", lease)
    for renewal in renewals:
        check_renewal(renewal)


def check_ask(ask: Claim) -> None:
    """Raise BadOption for a claim with a value out of range."""
    check_claim(ask, COUNT)


def check_changes(changes: Iterable[LimitChange]) -> None:
    """Raise BadOption for a change of limits with a value out of range."""
    for change in changes:
        check_change(change)


def check_rows(rows: Iterable[MetricsRow], remove: Iterable[MetricsRow]) -> None:
    """Raise BadOption or TooLarge for a row of metrics with a value out of range."""
    for row in (*rows, *remove):
        check_metrics(row)


def _without(odd: Mapping[int, Settled], items: Sequence[T]) -> list[T]:
    """The items of a call without the refused ones."""
    return [item for number, item in enumerate(items) if number not in odd]


def among(odd: Mapping[int, Settled], others: Sequence[Settled]) -> list[Settled]:
    """The results of all outcomes of a call in order: `odd` has some of them by index, `others` the rest."""
    rest = iter(others)
    return [odd[number] if number in odd else next(rest) for number in range(len(odd) + len(others))]
