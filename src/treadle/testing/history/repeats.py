"""The checker's rules about jobs that run more than once: lost leases, attempts, the time between two tries, sleeps and
waits, and acts after which a job must not run again.

Jobs that were reopened are not judged, because their counts begin again.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import pairwise
from typing import Final

from treadle.core.model import FINAL, LOST, State
from treadle.testing.history.entries import Entry, moments
from treadle.testing.history.evidence import TOLERANCE, Evidence, Run, Violation

MAX_LOST: Final = re.compile("max_lost=([0-9]+)")  # in the error of a job that has failed as lost


def check(it: Evidence) -> Iterator[Violation]:
    """Apply all rules of this module."""
    yield from losses(it)
    yield from guilt(it)
    yield from reports(it)
    yield from attempts(it)
    yield from cancels(it)
    if not it.steps_of_clock:
        yield from pauses(it)
        yield from waits(it)


def losses(it: Evidence) -> Iterator[Violation]:
    """The row of a job counts each lost lease. Two claims with consecutive versions prove a lost lease, because every
    outcome raises the version."""
    for id, row in it.rows.items():
        if not row.reopenings:
            claims = [(id, version) in it.claims for version in range(1, row.version + 1)]
            lost = sum(map(all, pairwise(claims)))
            if row.lost < lost:
                yield it.violation("lost", f"{id} lost {lost} leases, its row counts {row.lost}", id)


def guilt(it: Evidence) -> Iterator[Violation]:
    """A job fails as lost only after `max_lost` leases that it lost while nothing else ran in its process, and a lost
    lease takes no attempt."""
    used = {(entry.id, entry.version): entry.facts.get("attempt", 0) for entry in it.entries if entry.what == "began"}
    for (id, version), before in used.items():
        after = used.get((id, version + 1), before)
        if after != before and id in it.rows and not it.rows[id].reopenings:
            text = f"{id} had used {before} attempts, lost the lease of version {version}, and had then used {after}"
            yield it.violation("guilt", text, id)
    for id, row in it.rows.items():
        if row.reason != LOST or row.reopenings or (most := MAX_LOST.search(row.error or "")) is None:
            continue
        lost = [version for claimed, version in it.claims if claimed == id and (id, version + 1) in it.claims]
        runs = {run.version: run for run in it.runs if run.id == id}
        # A worker may die between the note that the job is alone and its function.
        alone = sum(version not in runs or not _neighbours(it, runs[version]) for version in lost)
        if alone < int(most[1]) != 1:
            text = f"{id} has failed as lost, but was alone at {alone} losses of {len(lost)}, with max_lost={most[1]}"
            yield it.violation("guilt", text, id)


def _neighbours(it: Evidence, run: Run) -> list[str]:
    """The jobs that ran in the process of this run while it held its lease, which it has lost."""
    until = it.claims[run.id, run.version + 1]
    return [
        other.id
        for other in it.runs
        if other.actor == run.actor
        and other.id != run.id
        and other.began < until
        and (other.ended is None or other.ended.at > run.began)
    ]


def reports(it: Evidence) -> Iterator[Violation]:
    """No outcome is reported as applied if a claim took the version that it would have given its job: the run had lost
    its lease."""
    for entry in (entry for entry in it.entries if entry.what in ("settled", "again")):
        row, next_version = it.rows.get(entry.id), entry.version + 1
        if row is not None and not row.reopenings and (entry.id, next_version) in it.claims:
            text = f"the outcome of version {entry.version} of {entry.id} was reported as applied, but version"
            yield it.violation("lost", f"{text} {next_version} was claimed", entry.id)


def attempts(it: Evidence) -> Iterator[Violation]:
    """No outcome and no lost lease takes back the attempts that a job has used."""
    most: dict[str, tuple[int, int]] = {}
    begun = (entry for entry in it.entries if entry.what == "began")
    for entry in sorted(begun, key=lambda entry: (entry.id, entry.version)):
        row, used = it.rows.get(entry.id), entry.facts.get("attempt", 0)
        before, version = most.get(entry.id, (0, 0))
        if row is None or row.reopenings:
            continue
        if used < before:
            text = f"{entry.id} had used {before} attempts at version {version}, and {used} at version {entry.version}"
            yield it.violation("attempts", text, entry.id)
        most[entry.id] = max((used, entry.version), (before, version))
    for id, (used, version) in most.items():
        if it.rows[id].attempt < used:
            text = f"{id} had used {used} attempts at version {version}, its row counts {it.rows[id].attempt}"
            yield it.violation("attempts", text, id)


def pauses(it: Evidence) -> Iterator[Violation]:
    """No job that runs again is claimed before the time until its next try is over, counted from the end of the run."""
    ends = moments(it.entries, "ended")
    for entry in (entry for entry in it.entries if entry.what == "again"):
        row, ended = it.rows.get(entry.id), ends.get((entry.id, entry.version))
        if row is None or row.reopenings or ended is None or it.acts_on(entry.id):
            continue
        claimed = it.claims.get((entry.id, entry.version + 2))  # the outcome has the version between them
        early = 0.0 if claimed is None else ended + entry.seconds - claimed
        if early > TOLERANCE:
            text = f"version {entry.version + 2} of {entry.id}, to run again after {entry.seconds:g} s, was claimed"
            yield it.violation("delay", f"{text} {early:g} s too early", entry.id)


def waits(it: Evidence) -> Iterator[Violation]:
    """No sleep ends, and no wait for a signal times out, before its time is over.

    The first run in which the sleep is over decides: later runs return from it at once. The time begins with the call
    of the run before, if that was the first one to call. If the first one was lost, another run may have continued its
    sleep; then the time begins with its claim, from which a run estimates the time of the storage.
    """
    began: dict[tuple[str, str], Entry] = {}
    over: set[tuple[str, str]] = set()
    for entry in it.entries:
        key, row = (entry.id, entry.name), it.rows.get(entry.id)
        if entry.what == "waits":
            began.setdefault(key, entry)
        elif entry.what == "waited" and key in began and key not in over:
            over.add(key)
            first = began[key]
            at_once = first.version == entry.version - 2  # the outcome has the version between them
            since = first.at if at_once else it.claims.get((entry.id, first.version), entry.at - first.seconds)
            early = since + first.seconds - entry.at
            steady = row is not None and not row.reopenings and row.job.deadline is None and not it.acts_on(entry.id)
            if steady and early > TOLERANCE:
                text = f"{entry.name!r} of {entry.id} ended {early:g} s before its time was over"
                yield it.violation("wait", text, entry.id)


def cancels(it: Evidence) -> Iterator[Violation]:
    """After the answer to a cancel the job has ended, and a run that returns later does not count."""
    others = {it.workflow(entry.id) for entry in it.entries if entry.what == "act" and entry.name != "cancel"}
    for id, entry in _cancelled(it).items():
        row = it.rows.get(id)
        if row is None or row.reopenings or it.workflow(id) in others or "" in others:
            continue
        if row.state not in FINAL:
            yield it.violation("cancel", f"{id} was cancelled, but is still {row.state}", id)
        last = (run for run in it.runs if run.id == id and run.version == row.version - 1)
        won_late = any(run.ended is not None and run.ended.at > entry.at + TOLERANCE for run in last)
        if row.state in (State.SUCCEEDED, State.FAILED) and won_late:
            yield it.violation("cancel", f"{id} was cancelled, but a run that ended later counts: {row.state}", id)


def _cancelled(it: Evidence) -> dict[str, Entry]:
    """The first answer to a cancel of each job."""
    cancelled: dict[str, Entry] = {}
    for entry in it.entries:
        if entry.what == "acted" and entry.how == "cancelled":
            cancelled.setdefault(entry.id, entry)
    return cancelled
