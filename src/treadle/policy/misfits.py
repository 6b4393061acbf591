"""Decides how long a job waits for a worker whose code can read its arguments, and describes that wait.

The row keeps the end of the wait in a checkpoint, with the round that it belongs to: after a reopening it starts at 0
again.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, Literal

from msgspec.structs import replace

from treadle.core.clock import moment_text
from treadle.core.errors import ARGUMENTS, BadOption, error_line
from treadle.core.model import Outcome, Pairs, Presence, Record, State
from treadle.core.own_checkpoints import own_checkpoints
from treadle.policy.judge import released

Misfits = Literal["fail", "wait"] | float
LONGEST: Final = 600.0  # s that "wait" waits: the time of a rolling deployment
MISFIT: Final = "does not fit the code of "  # the reason of such a row; the name of the worker follows
UNTIL: Final = "treadle:misfit"  # the checkpoint: "<reopenings>:<instant at which the wait ends>"


def longest_wait(option: object) -> float:
    """The seconds that a job may wait for another version; 0: it fails at once. Raises BadOption."""
    if option in ("fail", "wait"):
        return LONGEST if option == "wait" else 0.0
    if isinstance(option, bool) or not isinstance(option, int | float) or not 0 < option <= 86_400:
        raise BadOption("misfits", f"expected 'fail', 'wait' or the seconds to wait, up to a day; found {option!r}")
    return float(option)


def waits_until(record: Record) -> float | None:
    """When the wait of this job ends; None: it has not begun in this round."""
    reopenings, _, until = own_checkpoints(record.checkpoints).get(UNTIL, "").partition(":")
    try:
        return float(until) if reopenings == str(record.reopenings) else None
    except ValueError:  # another program has stored it
        return None


def is_misfit(outcome: Outcome | None) -> bool:
    """Whether a run failed because this code cannot read the arguments."""
    return outcome is not None and outcome.state is State.FAILED and outcome.reason == ARGUMENTS


def left_to_others(record: Record, outcome: Outcome, worker: str, until: float, carried: Pairs = ()) -> Outcome:
    """The job goes back to its queue position, uncounted, with the error that this worker saw."""
    pairs = (*carried, (UNTIL, f"{record.reopenings}:{until!r}"))
    back = released(record, 0.0, pairs, outcome.note, MISFIT + worker)
    return replace(back, error=outcome.error)


def released_by(record: Record) -> str | None:
    """The worker that could not read the arguments of this job and left it to others; None: it does not wait for
    another version."""
    if record.reason is None or not record.reason.startswith(MISFIT) or record.state is not State.READY:
        return None
    return record.reason.removeprefix(MISFIT)


OTHER_CODE: Final = ("StepMismatch", "UnknownVersion")  # errors of jobs that began with other code


def is_by_code(record: Record) -> bool:
    """Whether the worker that released this job could read its arguments, but could not continue it."""
    kind = error_line(record.error).partition(":")[0]
    return kind.rpartition(".")[2] in OTHER_CODE


def differ(one: str, other: str, by_code: bool) -> bool:
    """Whether two versions of a task differ in how they read arguments; `by_code`: or in their code. An unknown one
    counts as another."""
    return not one or not other or (one != other if by_code else one.partition(".")[0] != other.partition(".")[0])


def version_at(worker: Presence, task: str) -> str:
    """The worker's version of a task, as of `tasks.versions.code_of`; "" for a worker that reports none, whose code
    counts as another version."""
    index = worker.tasks.index(task)
    return worker.versions[index] if index < len(worker.versions) else ""


def is_left_by(record: Record, worker: Presence, workers: Iterable[Presence]) -> bool:
    """Whether a worker has the version of the code that could not read the arguments of this job. `workers`: those that
    are alive; the version of one that is not is unknown."""
    by, task = released_by(record), record.job.task
    if by is None or task not in worker.tasks:
        return False
    first = next((other for other in workers if other.worker == by and task in other.tasks), None)
    known = "" if first is None else version_at(first, task)
    return worker.worker == by or not differ(version_at(worker, task), known, is_by_code(record))


def words(record: Record) -> str | None:
    """The words for a job that waits for another version of its task; None: it does not."""
    worker, until = released_by(record), waits_until(record)
    if worker is None:
        return None
    end = "" if until is None else f" until {moment_text(until)}; then it fails"
    why = "has other code than it began with" if is_by_code(record) else "could not read its arguments"
    return (
        f"worker {worker} {why} and released it, uncounted: it waits for a worker with "
        f"another version of task {record.job.task!r}{end}"
    )
