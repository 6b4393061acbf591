"""The checker's rules about single jobs: each is stored, ends once, and has the value of its winning run."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import Any

from treadle.core.defaults import KEEP, KEEP_FAILED
from treadle.core.ids import stem
from treadle.core.model import FINAL, Record, State
from treadle.policy.parts import step_of
from treadle.testing.history.entries import Entry
from treadle.testing.history.evidence import Evidence, Run, Violation
from treadle.workflow.signals import signal_name

OWN = ("treadle", "cron:")  # prefixes of Treadle's own ids and tasks


def is_own(row: Record) -> bool:
    """Whether the row is Treadle's own and need not end: a schedule and its ticks, a signal, the leader.

    A job that a task enqueued without an id, or composed, has a derived id, and is the program's.
    """
    id, task = row.job.id, row.job.task
    return id.startswith(OWN) and (stem(id) is None or not task or task.startswith(OWN))


def check(it: Evidence, waiting: frozenset[str], expected: Mapping[str, str | None]) -> Iterator[Violation]:
    """Apply all rules of this module."""
    yield from acknowledged(it)
    yield from unfinished(it, waiting)
    yield from unknown(it)
    yield from values(it)
    yield from fences(it)
    yield from steps(it)
    yield from signals(it)
    yield from expectations(it, expected)
    yield from as_asked(it)


def acknowledged(it: Evidence) -> Iterator[Violation]:
    """Every job whose enqueue was acknowledged has a row, unless it may have been pruned or deleted, and that row has
    the task of the enqueue."""
    tasks: dict[tuple[str, str], str] = {}  # the task that an actor last enqueued under an id
    for entry in it.entries:
        who = entry.actor, entry.id
        if entry.what == "asked" and "task" in entry.facts:
            tasks[who] = entry.facts["task"]
        if entry.what != "stored":
            continue
        row = it.rows.get(entry.name or entry.id)
        if row is None and not may_be_gone(it, entry.name or entry.id):
            yield it.violation("acknowledged", f"{entry.id} was acknowledged, but has no row", entry.name or entry.id)
        elif row is not None and not entry.name and tasks.get(who, row.job.task) != row.job.task:
            text = f"{entry.id} was acknowledged as a job of {tasks[who]}, but is one of {row.job.task}"
            yield it.violation("acknowledged", text, entry.id)


def unfinished(it: Evidence, waiting: frozenset[str]) -> Iterator[Violation]:
    """Every row has ended."""
    for id, row in it.rows.items():
        if row.state not in FINAL and id not in waiting and not is_own(row):
            yield it.violation("unfinished", f"{id} is still {row.state}, although nothing blocks it", id)


def unknown(it: Evidence) -> Iterator[Violation]:
    """Every row comes from a recorded enqueue, and none from a call that was refused."""
    for id, row in it.rows.items():
        calls = [entry.what for entry in it.by_id.get(id, ()) if entry.what in ("asked", "stored", "refused")]
        if not calls:
            if not id.startswith(OWN) and (row.job.parent or row.job.root) is None:
                yield it.violation("unknown", f"no recorded call enqueued {id}", id)
        elif calls[-1] == "refused" and calls.count("asked") == 1 and "stored" not in calls:
            yield it.violation("unknown", f"the call that enqueued {id} was refused, but it has a row", id)


def values(it: Evidence) -> Iterator[Violation]:
    """A succeeded job has the value of its winning run, and the try of a step that of the step. Unless an act reopened
    it, one outcome of it was applied."""
    by_id: dict[str, list[Run]] = {}
    for run in it.runs:
        by_id.setdefault(run.id, []).append(run)
    for id, row in it.rows.items():
        runs = by_id.get(id, [])
        if row.state is State.SUCCEEDED and row.result is not None and runs and not step_of(row.job):
            won = [run for run in runs if run.version == row.version - 1] or runs
            ends = [run.ended for run in won if run.ended is not None]
            texts = [end.text for end in ends if end.how == "returned"]
            if row.result not in texts and not any(end.how == "composed" for end in ends):
                yield it.violation("value", f"{id} has the value {row.result}; the run that won returned {texts}", id)
        versions = {entry.version for entry in it.by_id.get(id, ()) if entry.what == "settled"}
        if len(versions) > 1 and not it.acts_on(id):
            yield it.violation("value", f"{id} has ended more than once, as versions {sorted(versions)}", id)


def fences(it: Evidence) -> Iterator[Violation]:
    """Each version begins once, and no two runs of a job hold a lease at the same time. A stalled process may still
    begin a version whose lease it has lost."""
    last: dict[str, Run] = {}
    seen: set[tuple[str, int]] = set()
    for run in it.runs:
        if (run.id, run.version) in seen:
            yield it.violation("fence", f"version {run.version} of {run.id} was begun twice", run.id)
        seen.add((run.id, run.version))
        if run.held_to <= run.held_from:
            continue
        before = last.get(run.id)
        if before is not None and before.held_from <= run.held_from < before.held_to:
            text = f"version {run.version} of {run.id} began while {before.actor} held version {before.version}"
            yield it.violation("overlap", text, run.id)
        last[run.id] = run


def steps(it: Evidence) -> Iterator[Violation]:
    """No later run calls the function of a stored step again, and all runs get the same value. An earlier run in a
    stalled process may call it once more: it cannot know, and its value is not stored."""
    kept: dict[tuple[str, str], Entry] = {}
    for entry in it.entries:
        before = kept.get((entry.id, entry.name))
        if entry.what == "step" and before is not None and entry.version >= before.version:
            yield it.violation("step", f"step {entry.name} of {entry.id} was stored, but ran again", entry.id)
        if entry.what == "kept":
            if before is not None and before.text != entry.text:
                yield it.violation("step", f"step {entry.name} of {entry.id} has two values", entry.id)
            kept.setdefault((entry.id, entry.name), entry)


def signals(it: Evidence) -> Iterator[Violation]:
    """A job receives one of the values that were sent for a signal, and always the same one."""
    sent: dict[tuple[str, str], set[str | None]] = {}
    got: dict[tuple[str, str], str | None] = {}
    for entry in it.entries:
        key = entry.id, entry.name
        if entry.what == "signal":
            sent.setdefault(key, set()).add(entry.text)
        elif entry.what == "received":
            if entry.text not in sent.get(key, ()):
                text = f"{entry.id} received {entry.name} {entry.text}, which no call sent"
                yield it.violation("signal", text, entry.id)
            if got.setdefault(key, entry.text) != entry.text:
                yield it.violation("signal", f"{entry.id} received two values of {entry.name}", entry.id)
    yield from signals_lost(it, got.keys())


def signals_lost(it: Evidence, got: Collection[tuple[str, str]]) -> Iterator[Violation]:
    """An acknowledged signal is stored or was received. A job has one signal per name, unless there were acts on its
    workflow. A job that waits for a stored signal continues."""
    stored: dict[tuple[str, str], list[str]] = {}
    for row in it.rows.values():
        name = signal_name(row)
        if name is not None and row.state is State.SUCCEEDED and row.job.parent is not None:
            stored.setdefault((row.job.parent, name), []).append(row.job.id)
    for entry in it.entries:
        key = entry.id, entry.name
        if entry.what != "signalled" or key in stored or key in got:
            continue
        job = it.rows.get(entry.id)
        over = (job is None or job.state in FINAL) and bool(it.acts_on(entry.id))
        if not over and not (job is None and may_be_gone(it, entry.id)):
            yield it.violation("signal", f"{entry.id} was sent {entry.name}, but it is not stored", entry.id)
    for (id, name), rows in stored.items():
        if len(rows) > 1 and not it.acts_on(id):
            yield it.violation("signal", f"{id} has {len(rows)} rows of the signal {name}", id, *rows)
        waits = it.rows.get(id)
        if waits is not None and waits.state is State.WAITING and set(rows) & set(waits.after):
            yield it.violation("signal", f"{id} still waits for {name}, which is stored", id, *rows)


def expectations(it: Evidence, expected: Mapping[str, str | None]) -> Iterator[Violation]:
    """Jobs with a value known to the caller have that value. If a row was pruned, the runs of its job say which."""
    for id, wanted in expected.items():
        row = it.rows.get(id)
        if row is None:
            yield from _pruned_value(it, id, wanted)
            continue
        if row.state not in FINAL:
            continue  # reported by another rule
        stored = (row.value if row.value is not None else row.result) if row.state is State.SUCCEEDED else None
        if stored != wanted:
            yield it.violation("expected", f"{id} has the value {stored}, expected {wanted}", id)


def as_asked(it: Evidence) -> Iterator[Violation]:
    """A stored row has the options of a call that enqueued it, unless an act changed it."""
    for id, row in it.rows.items():
        calls = [entry.facts for entry in it.by_id.get(id, ()) if entry.what == "asked" and "task" in entry.facts]
        job = row.job
        stored = job.key, job.priority, job.delay, job.lane, job.aging, job.required, len(job.after)
        if calls and not it.acts_on(id) and stored not in map(_options, calls):
            names = "key, priority, delay, lane, aging, required, after"
            text = f"{id} has ({names}) {stored}, asked were {' or '.join(str(_options(facts)) for facts in calls)}"
            yield it.violation("asked", text, id)


def _options(facts: Mapping[str, Any]) -> tuple[Any, ...]:
    usual = {"key": None, "priority": 0, "delay": 0, "lane": None, "aging": 0, "required": None}
    return *(facts.get(name, value) for name, value in usual.items()), len(facts.get("after", ()))


def _pruned_value(it: Evidence, id: str, wanted: str | None) -> Iterator[Violation]:
    entries = it.by_id.get(id, ())
    last = next((entry for entry in reversed(entries) if entry.what == "settled"), None)
    if last is None:
        return  # it was never stored, or its worker was killed before it learned the answer
    returned = [entry for entry in entries if entry.what == "ended" and entry.how in ("returned", "composed")]
    if last.how != "succeeded":
        if wanted is not None:
            yield it.violation("expected", f"{id} was {last.how} before its row was pruned, expected {wanted}", id)
    elif wanted is None or (returned and all(entry.text != wanted and entry.how == "returned" for entry in returned)):
        texts = ", ".join(str(entry.text) for entry in returned)
        yield it.violation("expected", f"{id} had the value {texts} before its row was pruned, expected {wanted}", id)


def may_be_gone(it: Evidence, id: str) -> bool:
    """Whether the row of this job may have been removed: by an act that deleted it, or because its retention passed
    after it had ended."""
    if any(entry.what == "act" and entry.name == "delete" and entry.id in ("", id) for entry in it.entries):
        return True
    ended = _ended(it, id, set())
    return ended is not None and _passed(it, ended[0]) >= ended[1]


def _ended(it: Evidence, id: str, seen: set[str]) -> tuple[float, float] | None:
    """The earliest time at which this job may have ended, and the seconds for which its row is kept from then on; None:
    nothing says that it has ended."""
    seen.add(id)
    request = it.asked.get(id)
    facts = {} if request is None else request.facts
    keeps = {"succeeded": facts.get("keep", KEEP), "failed": facts.get("keep_failed", KEEP_FAILED)}
    keeps["cancelled"] = keeps["succeeded"]
    entries = it.by_id.get(id, ())
    for entry in entries:
        if entry.what == "settled" and entry.how is not None:
            return _earliest(it, entry), keeps[entry.how]
    # Its worker may have been killed before it knew that its outcome was stored.
    newest = max((entry.version for entry in entries if entry.what == "ended"), default=0)
    ends = [entry.at for entry in entries if entry.what == "ended" and entry.version == newest]
    ends += [began for began, _ in it.acts_on(id)]
    for upstream in facts.get("after", ()):  # the ending of an upstream can end this job, too
        if upstream not in seen and (upstream_end := _ended(it, upstream, seen)) is not None:
            ends.append(upstream_end[0])
    return (min(ends), min(keeps.values())) if ends else None


def _earliest(it: Evidence, settled: Entry) -> float:
    """The earliest time at which the storage may have applied this outcome. The answer may have arrived much later."""
    for entry in it.by_id[settled.id]:
        if entry.what == "ended" and entry.version == settled.version:
            return min(entry.at, settled.at)
    return min(it.claims.get((settled.id, settled.version), settled.at), settled.at)


def _passed(it: Evidence, since: float) -> float:
    """The most seconds that passed from then to the last entry, by a clock of the storage that was set meanwhile."""
    ahead = sum(max(0.0, step.seconds) for step in it.steps_of_clock if step.at >= since)
    return it.entries[-1].at - since + ahead
