"""The verdict on the histories and rows of a trial: the shipped checker, and rules for the tasks of the soak."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any

from tests.soak.tasks import EVERY, LEASE, RULES, VALUES, arguments
from treadle import App, Record, State
from treadle.core.limit_model import LimitUse
from treadle.core.model import FINAL, SHED, SUPERSEDED
from treadle.core.query_model import CountDrift
from treadle.testing.history import Entry, Evidence, Violation, check

CLOCK = 0.005  # seconds; a time of the storage is rounded, and two times of one call differ
IN_QUEUE_ORDER = ("order", "priority", "lane")  # the rules that need claims in queue order


def judge(
    app: App,
    entries: Sequence[Entry],
    rows: Sequence[Record],
    limits: Sequence[LimitUse],
    tables: Mapping[str, Sequence[str]],
    drifts: Sequence[CountDrift] = (),
    *,
    ordered: bool = True,
) -> list[Violation]:
    """All violations.

    tables   the users' own tables: name -> the ids in them
    drifts   the kept counts that differ from the rows
    ordered  whether claims are made in queue order. Each shard has a queue of its own
    """
    acted = {entry.id for entry in entries if entry.what == "act"}
    expected = dict(_expected(app, rows, acted))
    stored = {use.key for use in limits}  # a planted fault may have stored another rule of the name
    uses = [
        *(use for use in limits if use.key not in {rule.name for rule in RULES}),
        *(LimitUse(key=rule.name, rule=rule) for rule in RULES if rule.name in stored),
    ]
    found = check(entries, rows, uses, lease=LEASE, expected=expected, ticks={"tick": EVERY}, drifts=drifts)
    if not ordered:
        found = [each for each in found if each.rule not in IN_QUEUE_ORDER]
    it = Evidence(entries, rows, limits, LEASE)
    found += [] if it.steps_of_clock else strict(it)
    return [*found, *failed(it, acted), *agreeing(it, tables)]


def _expected(app: App, rows: Iterable[Record], acted: set[str]) -> Iterator[tuple[str, str]]:
    for row in rows:
        n = arguments(app, row) if row.job.task in VALUES else None
        if n is not None and row.job.id not in acted:
            yield row.job.id, str(VALUES[row.job.task](n))


def strict(it: Evidence) -> Iterator[Violation]:
    """Under a limit of one slot that is kept until the ending, a job is claimed after the one before has ended."""
    lines: dict[str, list[tuple[float, float, str]]] = {}
    first: dict[str, float] = {}
    for (id, _), at in it.claims.items():
        first[id] = min(at, first.get(id, at))
    for id, at in first.items():
        row = it.rows.get(id)
        for name, _ in row.job.limits if row is not None else ():
            if name.startswith("account:") and row is not None and row.ended_at is not None:
                lines.setdefault(name, []).append((at, row.ended_at, id))
    for name, line in lines.items():
        for (_, ended, one), (began, _, other) in pairwise(sorted(line)):
            if began < ended - CLOCK:
                yield it.violation(
                    "strict", f"{other} was claimed under {name} {ended - began:g} s before {one} ended", one, other
                )


def failed(it: Evidence, acted: set[str]) -> Iterator[Violation]:
    """No job fails for good, and none is cancelled but by an operator, by a job with its key, or to make room."""
    for id, row in it.rows.items():
        replaced = row.state is State.CANCELLED and (
            row.reason == SHED or (row.job.key is not None and row.reason == SUPERSEDED)
        )
        # rows of signals end unused when the run that would send them ends
        ours = id.startswith("treadle") or id in acted or replaced
        if row.state in FINAL and row.state is not State.SUCCEEDED and not ours:
            yield it.violation("failed", f"{id} ended as {row.state} ({row.reason}), expected that it succeeds", id)


def agreeing(it: Evidence, tables: Mapping[str, Sequence[str]]) -> Iterator[Violation]:
    """A user's row, and the job or its ending, were stored together or not at all."""
    for table, task, done in (("soak_order", "ordered", False), ("soak_done", "book", True)):
        if table not in tables:
            continue
        stored = list(tables[table])
        ids = {id for id, row in it.rows.items() if row.job.task == task and (not done or row.state is State.SUCCEEDED)}
        for id in sorted(set(stored) ^ ids):
            where = "has a row of the user's and no job that did it" if id in stored else "has no row of the user's"
            yield it.violation("transaction", f"{id} {where} in {table}", id)
        for id in sorted({id for id in stored if stored.count(id) > 1}) if len(stored) != len(set(stored)) else ():
            yield it.violation("transaction", f"{id} has {stored.count(id)} rows in {table}", id)


def summary(counts: Mapping[str, Any]) -> str:
    """A summary of the trial in one line."""
    return ", ".join(f"{count:,} {name}" for name, count in counts.items() if count)
