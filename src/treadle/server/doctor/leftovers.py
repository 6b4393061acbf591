"""Finds rows that faults leave behind and kept counts that differ from the rows; `treadle doctor --repair` cures both.

They are bodies without a job, and invalid rows of Treadle's own tasks. Treadle's own queue holds schedules, holds of
limits and the leader. Any other row there bypassed the checks of enqueue, and no worker runs it.
"""

from __future__ import annotations

import sqlite3
from collections.abc import AsyncIterator, Iterator
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec.structs import replace

from treadle.core import defaults
from treadle.core.errors import JobNotDone, Stale, TreadleError, UnknownJob, Unsupported
from treadle.core.model import Record
from treadle.core.query_model import Query
from treadle.core.ranges import OWN
from treadle.core.words import plural
from treadle.policy.judge import HOLD
from treadle.scheduling import ticker
from treadle.server import system_rows
from treadle.server.doctor.common import Check, fail, ok, warn
from treadle.server.doctor.sqlite import looking, loose_files, schema
from treadle.storage import IDENTITY, IDENTITY_TASK, pages
from treadle.worker import leader
from treadle.workflow.plan import FLOW

if TYPE_CHECKING:
    from treadle.app.core import AppCore
    from treadle.core.query_model import CountDrift

PAGE = 500
NAMED = 3  # rows or counts that a warning names
NO_JOB = "body WHERE seq NOT IN (SELECT seq FROM job)"
CUT = "job WHERE instr(id, char(0)) > 0 OR instr(key, char(0)) > 0"  # SQLite's JSON cuts a text at a NUL
HANGING = ("label", "checkpoints", "slot")  # tables whose rows belong to one of `job`


# --- in a database file


def in_file(file: Path) -> Iterator[Check]:
    """Rows of a SQLite file that no call can find."""
    if schema(file) is None:
        return
    try:
        with looking(file) as db:
            [bodies], [cut] = (db.execute(f"SELECT count(*) FROM {what}").fetchone() for what in (NO_JOB, CUT))
    except sqlite3.Error:
        return  # the check `content` reports it
    if bodies:
        yield fail(
            "bodies",
            f"{plural(bodies, 'body row')} without a job: storing jobs fails with `UNIQUE constraint`",
            "`treadle doctor --repair` removes them",
        )
    if cut:
        yield fail(
            "names",
            f"{plural(cut, 'job')} with U+0000 in the id or key, which no call can find",
            "`treadle doctor --repair` removes them",
        )
    if not bodies and not cut:
        yield ok("rows", "all rows are complete")


def repair_file(file: Path) -> Iterator[Check]:
    """Remove the leftover rows, and the permissions that other users have on the database files."""
    if schema(file) is not None:
        with closing(sqlite3.connect(file, timeout=10.0, isolation_level=None)) as db:
            db.execute("BEGIN IMMEDIATE")
            for table in HANGING:
                db.execute(f"DELETE FROM {table} WHERE job IN (SELECT seq FROM {CUT})")
            cut = db.execute(f"DELETE FROM {CUT}").rowcount
            bodies = db.execute(f"DELETE FROM {NO_JOB}").rowcount
            db.execute("COMMIT")
        if cut or bodies:
            yield ok(
                "repaired",
                f"removed {plural(cut, 'job')} that no call could find, {plural(bodies, 'body row')} without a job",
            )
    for path, mode, wanted in loose_files(file):
        path.chmod(wanted)
        yield ok("repaired", f"changed the permissions of {path.name} from {mode:04o} to {wanted:04o}")


# --- in every storage


async def in_storage(core: AppCore, repair: bool) -> AsyncIterator[Check]:
    """Invalid rows of Treadle's own queue and tasks; cancels them if `repair` is set."""
    invalid = [(row, problem) async for row in _own_rows(core) if (problem := problem_of(row)) is not None]
    if not invalid:
        yield ok("own rows", "Treadle's own queue holds only Treadle's rows")
        return
    if repair:
        for row, problem in invalid:
            yield await _cancelled(core, row, problem)
        return
    some = "; ".join(f"{row.id}: {problem}" for row, problem in invalid[:NAMED])
    yield warn(
        "own rows",
        f"{plural(len(invalid), 'invalid row')} in Treadle's own queue or tasks: {some}",
        "find out which program stored them; `treadle doctor --repair` cancels them",
    )


async def _own_rows(core: AppCore) -> AsyncIterator[Record]:
    """All unfinished rows of Treadle's own queue, and of its own tasks in other queues."""
    stats = await core.queues.stats()
    tasks = {
        (count.queue, count.task) for count in stats.counts if count.task.startswith(OWN) and not count.state.final
    }
    wanted: list[tuple[str, str | None]] = [(defaults.SYSTEM_QUEUE, None)]
    wanted += sorted((queue, task) for queue, task in tasks if queue != defaults.SYSTEM_QUEUE and task != FLOW)
    for queue, task in wanted:
        query = Query(queue=queue, task=task, state=ticker.UNFINISHED, order="oldest", limit=PAGE)
        async for page in pages(core.storage, replace(query, whole=queue == defaults.SYSTEM_QUEUE)):
            for row in page.records:
                yield row


def problem_of(row: Record) -> str | None:
    """Why a row of Treadle's own queue or tasks is invalid; None if it is valid."""
    job = row.job
    if not job.task.startswith(OWN):
        return f"a job of the task {job.task!r}" if job.task else "a promise"
    try:
        if job.task.partition(":")[0] == ticker.TASK:
            system_rows.check_schedule(job)
            system_rows.check_definition(ticker.ScheduleEntry(row).definition)
        elif job.task == HOLD:
            system_rows.check_hold_row(job)
        elif (job.task, job.id) not in ((leader.TASK, leader.ID), (IDENTITY_TASK, IDENTITY)):
            return f"there is no task {job.task!r} for this queue"
    except ticker.UNREADABLE as error:
        return str(error)
    return None


async def _cancelled(core: AppCore, row: Record, problem: str) -> Check:
    try:
        await core.jobs.cancel(row.id, tree=False)
    except (Stale, UnknownJob, JobNotDone) as error:
        return ok("repaired", f"{row.id} ({problem}) has ended meanwhile: {error}")
    except TreadleError as error:
        return fail(
            "own rows", f"{row.id} ({problem}) was not cancelled: {error}", "a worker may be running it: try again"
        )
    return ok("repaired", f"cancelled {row.id}: {problem}")


async def kept_counts(core: AppCore, repair: bool) -> Check:
    """Reads every row, without blocking other calls."""
    try:
        drifts = await core.storage.recount(repair)
    except Unsupported:  # Redis writes while it counts, which a check without writes must not do
        return ok("counts", "not compared with the rows; `treadle doctor --repair` does that, and corrects them")
    if not drifts:
        return ok("counts", "the kept counts equal the rows")
    groups = plural(len(drifts), "kept count")
    if repair:
        return ok("repaired", f"corrected {groups}: {_some(drifts)}")
    return warn(
        "counts",
        f"{groups} differ from the rows, so statistics are wrong: {_some(drifts)}",
        "another program changed the rows, or Treadle has a defect: report it; `treadle doctor --repair` corrects them",
    )


def _some(drifts: tuple[CountDrift, ...]) -> str:
    texts = [
        f"{drift.kept} {drift.kind} jobs of task {drift.task!r} in queue {drift.queue!r}, in fact {drift.counted}"
        for drift in drifts[:NAMED]
    ]
    return "; ".join([*texts, "..."] if len(drifts) > NAMED else texts)
