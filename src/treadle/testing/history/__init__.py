"""What a fleet did against what Treadle promises: each process keeps a history, and `check` compares all of them with
the rows that are left.

    history = History("worker-1", path="worker-1.jsonl")
    Recorder(history).attach(app)  # jobs and runs; steps, signals and acts are added by the code that makes them
    ...
    violations = check(read(*paths), rows, limits, lease=5.0)

Every rule accepts whatever a fault may cause (a run twice after a kill, a claim nobody began) and nothing else, so each
violation is a defect of the engine, of the storage or of the program under test.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from treadle.core.model import LimitUse, Record
from treadle.testing.history import holding, jobs
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
) -> list[Violation]:
    """What of this breaks a promise; an empty list: nothing.

    entries   of every process of the fleet, as `Recorder` and programs write them
    rows      all rows of the storage, once the faults are over and the fleet has come to rest
    limits    the answer of `storage.limits()` then
    lease     the shortest lease of the workers, in seconds
    expected  the encoded value with which a job must have succeeded, by id, for what cannot be known from one run:
              the value of a flow, of a join. None: it must not have succeeded
    waiting   ids of jobs that rightly wait at the end, such as for a signal that nobody gives
    """
    evidence = Evidence(entries, rows, limits, lease)
    return [*jobs.check(evidence, frozenset(waiting), expected or {}), *holding.check(evidence)]
