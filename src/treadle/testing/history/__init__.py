"""Checks that a fleet kept Treadle's promises: each process records a history, and `check` compares all histories with
the rows at the end.

    history = History("worker-1", path="worker-1.jsonl")
    Recorder(history).attach(app)  # jobs and runs; code that makes steps, signals and acts records them itself
    ...
    violations = check(read(*paths), rows, limits, lease=5.0)

Each rule allows every effect that a fault can have (a second run after a kill, a claim without a run) and nothing else.
So each violation is a defect of the engine, of the storage or of the program under test.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from treadle.core.limit_model import LimitUse
from treadle.core.model import Record
from treadle.core.query_model import CountDrift
from treadle.testing.history import bounds, holding, jobs, places, repeats, starts
from treadle.testing.history.entries import Entry, History, Recorder, facts_of, ordered, read
from treadle.testing.history.evidence import Evidence, Run, Violation, brief

__all__ = [
    "Entry",
    "Evidence",
    "History",
    "Recorder",
    "Run",
    "Violation",
    "brief",
    "check",
    "facts_of",
    "ordered",
    "read",
]


def check(
    entries: Iterable[Entry],
    rows: Iterable[Record],
    limits: Sequence[LimitUse] = (),
    *,
    lease: float,
    expected: Mapping[str, str | None] | None = None,
    waiting: Iterable[str] = (),
    ticks: Mapping[str, float] | None = None,
    drifts: Sequence[CountDrift] = (),
) -> list[Violation]:
    """Return the violations of Treadle's promises; an empty list if there are none.

    entries   of every process of the fleet, as `Recorder` and programs write them
    rows      all rows of the storage, once the faults are over and the fleet is idle
    limits    the result of `storage.limits()` at that time
    lease     the shortest lease of the workers, in seconds
    expected  by id, the encoded value with which a job must have succeeded, where one run does not determine it: the
              value of a flow or of a join. None: the job must not have succeeded
    waiting   ids of jobs that may still wait at the end, such as for a signal that is never sent
    ticks     by name, the seconds between two ticks of a schedule that leaves none out: it has `catch_up="all"`, and
              was not paused and continued meanwhile
    drifts    the result of `storage.recount()`
    """
    evidence = Evidence(entries, rows, limits, lease)
    return [
        *jobs.check(evidence, frozenset(waiting), expected or {}),
        *repeats.check(evidence),
        *holding.check(evidence),
        *starts.check(evidence, ticks or {}),
        *bounds.check(evidence, drifts),
        *places.check(evidence),
    ]
