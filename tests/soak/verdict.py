"""The verdict on the histories and rows of a trial: the shipped checker, and rules for the tasks of the soak."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from itertools import pairwise
from typing import Any

from tests.soak.tasks import EVERY, LEASE, RULES, VALUES, arguments
from treadle import App, Record, State
from treadle.core.limit_model import LimitUse
from treadle.core.model import FINAL
from treadle.core.query_model import CountDrift
from treadle.testing.history import Entry, Evidence, Violation, check

CLOCK = 0.005  # seconds; a time of the storage is rounded, and two times of one call differ


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
    ordered  whether claims are made in queue order. On PostgreSQL a claim skips jobs that another has locked; each
             shard has a queue of its own
    """
    acted = {entry.id for entry in entries if entry.what == "act"}
    expected = dict(_expected(app, rows, acted))
    uses = [
        *(use for use in limits if use.key not in {rule.name for rule in RULES}),
        *(LimitUse(key=rule.name, rule=rule) for rule in RULES),
    ]
    found = check(entries, rows, uses, lease=LEASE, expected=expected)
    it = Evidence(entries, rows, limits, LEASE)
    rules = (_as_asked, _ticks) if it.steps_of_clock else (_as_asked, _delays, _strict, _ticks)
    for rule in rules:
        found += rule(it)
    found += _failed(it, acted)
    if not ordered:
        found = [each for each in found if each.rule != "order"]
    return [*found, *_tables(it, tables), *_counts(it, drifts)]


def _expected(app: App, rows: Iterable[Record], acted: set[str]) -> Iterator[tuple[str, str]]:
    for row in rows:
        n = arguments(app, row) if row.job.task in VALUES else None
        if n is not None and row.job.id not in acted:
            yield row.job.id, str(VALUES[row.job.task](n))


def _as_asked(it: Evidence) -> Iterator[Violation]:
    """The stored rows are those that were requested."""
    for id, row in it.rows.items():
        asked = it.asked.get(id)
        if asked is None:
            continue
        facts = asked.facts
        wanted = (
            facts.get("key"),
            facts.get("priority", 0),
            facts.get("lane"),
            facts.get("required"),
            len(facts.get("after", ())),
        )
        found = row.job.key, row.job.priority, row.job.lane, row.job.required, len(row.job.after)
        if found != wanted:
            yield it.violation("asked", f"{id} has (key, priority, lane, need, after) {found}, asked were {wanted}", id)


def _delays(it: Evidence) -> Iterator[Violation]:
    """No job with a delay is claimed before it is due."""
    for (id, _), at in it.claims.items():
        row = it.rows.get(id)
        if row is not None and row.job.delay and at < row.created_at + row.job.delay - CLOCK:
            yield it.violation("delay", f"{id} was claimed {row.created_at + row.job.delay - at:g} s too early", id)


def _strict(it: Evidence) -> Iterator[Violation]:
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


def _ticks(it: Evidence) -> Iterator[Violation]:
    """Each moment of the schedule has one job, and none is left out, unless the clock was set."""
    moments: dict[float, str] = {}
    for id, row in it.rows.items():
        if row.job.task != "tick":
            continue
        parts = id.split(":")
        if len(parts) != 3 or parts[:2] != ["cron", "tick"]:
            yield it.violation("tick", f"{id} is a second job for a moment of the schedule", id)
            continue
        word = parts[2] if "." in parts[2] else parts[2].replace("Z", ".000Z")
        moments[datetime.strptime(word, "%Y%m%dT%H%M%S.%fZ").timestamp()] = id  # noqa: DTZ007 - only differences count
    for one, other in pairwise(sorted(moments)) if not it.steps_of_clock else ():
        if abs(other - one - EVERY) > CLOCK:
            text = f"between {moments[one]} and {moments[other]} a tick is missing or too many"
            yield it.violation("tick", text, moments[one], moments[other])


def _failed(it: Evidence, acted: set[str]) -> Iterator[Violation]:
    """No job fails for good, and none is cancelled but by an operator or a key."""
    for id, row in it.rows.items():
        replaced = row.state is State.CANCELLED and row.job.key is not None
        # rows of signals end unused when the run that would send them ends
        ours = id.startswith("treadle") or id in acted or replaced
        if row.state in FINAL and row.state is not State.SUCCEEDED and not ours:
            yield it.violation("failed", f"{id} ended as {row.state} ({row.reason}), expected that it succeeds", id)


def _counts(it: Evidence, drifts: Sequence[CountDrift]) -> Iterator[Violation]:
    """The kept counts equal the rows."""
    for each in drifts:
        group = f"{each.kind} jobs of {each.task!r} in queue {each.queue!r}"
        yield it.violation("counts", f"the storage kept {each.kept} {group}, its rows are {each.counted}")


def _tables(it: Evidence, tables: Mapping[str, Sequence[str]]) -> Iterator[Violation]:
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
