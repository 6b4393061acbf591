"""Children that a function waits for: `current().call`, `map` and `as_completed`.

The settle that suspends a run stores the children of its waits, in one commit. The id of a child follows from the job,
its round and the key of the call, so a repeated run finds its children. Their results and failures are entries of the
parent's history. A job with a key or an id of its own may be another one: an enqueue stores it before the run is
suspended, and the entry names the row.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence, Set
from contextlib import suppress
from typing import Any, Final

import msgspec
from msgspec import UNSET, Raw, UnsetType
from msgspec.structs import replace

from treadle.core import ids
from treadle.core.errors import UNREADABLE, BadStep, JobNotDone, error_line
from treadle.core.job import JobSpec, not_done
from treadle.core.model import OURS, NewJob, Record, State
from treadle.durable.checkpoints import WAIT, Checkpoint, StepRequest, read_entry
from treadle.durable.failures import failure_of
from treadle.durable.fingerprints import checksum_of
from treadle.durable.pending import Pending
from treadle.durable.step_taker import StepTaker
from treadle.policy.rounds import round_of
from treadle.workflow import encoding_of
from treadle.workflow.plan import called_stem

READ: Final = 500  # rows per read: bounds the time that one call takes of the storage
LIVES: Final = 8  # reopenings of a job whose children are found again
HELD: Final = 60.0  # s between two reads of a job that held the key: it may wait for this one
MOST_LOOKED: Final = 1_000  # rows that are read to find out whether it does
AS_TEXT: Final = "treadle:text"

Spec = JobSpec[Any, Any]


def name_of(specs: Sequence[Spec]) -> str:
    """The task of these jobs, for the key of their entry."""
    tasks = {spec.new.task.removeprefix("treadle.") for spec in specs}
    return tasks.pop() if len(tasks) == 1 else "jobs"


def checksum_of_jobs(specs: Sequence[Spec]) -> Any:
    """A checksum of what these jobs do; UNSET if it is large."""
    return checksum_of([(spec.new.task, spec.new.payload) for spec in specs], {})


def child_id(job: str, round: int, key: str, life: int, index: int) -> str:
    """The id of a child, which depends on the job, its round and life, the key of the call, and the index of the
    child."""
    return f"{called_stem(job)}-{ids.digest(round, key, life)[:12]}-{index:06d}"


def lives(reopenings: int) -> range:
    """The lives of a job in which children that are still of use were called, the last one first."""
    return range(reopenings, max(-1, reopenings - LIVES), -1)


def open_children(job: str, round: int, reopenings: int, entries: Mapping[str, Checkpoint]) -> list[str]:
    """The ids of the children of which this history does not say that they have ended: some may have, or may not be
    stored. Those that lost a race are not among them."""
    open_ids, unseen = list[str](), _unseen_in_loops(entries)
    for key, entry in entries.items():
        if not entry.child or is_ended(entry) or entry.lost_race:
            continue
        kind, name = _call_of(key)
        if not entry.jobs:
            open_ids.append(entry.child)
        elif kind != "as_completed" or unseen[name] > 0:
            open_ids += [
                child_id(job, round, key, life, index) for life in lives(reopenings) for index in range(entry.jobs)
            ]
    return open_ids


def _unseen_in_loops(entries: Mapping[str, Checkpoint]) -> Counter[str]:
    """How many children of the loops over `as_completed` the function has not received, by the name of the loops."""
    unseen = Counter[str]()
    for key, entry in entries.items():
        kind, name = _call_of(key)
        if kind == "as_completed":
            unseen[name] += entry.jobs
        elif kind == "ended" and not isinstance(entry.order, UnsetType):
            unseen[name] -= len(entry.order)
    return unseen


def is_loop(key: str) -> bool:
    """Whether this is the key of a loop over `as_completed`."""
    return _call_of(key)[0] == "as_completed"


def _call_of(key: str) -> tuple[str, str]:
    """The kind and the name of the call with this key, such as `as_completed:pages#2`."""
    kind, _, name = key.partition("#")[0].partition(":")
    return kind, name


def open_children_of(record: Record) -> list[str]:
    """The same for a stored job. Entries that cannot be read are left out."""
    entries = dict[str, Checkpoint]()
    for name, text in record.checkpoints:
        if not name.startswith(OURS):
            with suppress(*UNREADABLE):
                entries[name] = read_entry(text)
    return open_children(record.id, round_of(record.checkpoints).number, record.reopenings, entries)


class Children:
    """The children of one call: their ids, their rows, and what is stored for them."""

    def __init__(self, run: StepTaker, request: StepRequest, specs: Sequence[Spec]) -> None:
        self._run, self.request, self.specs = run, request, specs
        self._job, self._life = run.run.record.job.id, run.run.record.reopenings

    def id(self, index: int, life: int | None = None) -> str:
        """The id of a child in this life of the job, or in an earlier one."""
        life = self._life if life is None else life
        return child_id(self._job, self._run.round.number, self.request.key, life, index)

    async def rows(self) -> list[Record | None]:
        """Their rows, with their results; None: not stored. A child that has failed before the job was reopened counts
        as not stored."""
        rows: list[Record | None] = [None] * len(self.specs)
        if self.request.key not in self._run.checkpoints.entries and not self._life:
            return rows
        for life in lives(self._life):
            missing = [index for index, row in enumerate(rows) if row is None]
            stored = await read(self._run, [self.id(index, life) for index in missing])
            for index, row in zip(missing, stored, strict=True):
                if row is not None and (life == self._life or not row.state.final or row.state is State.SUCCEEDED):
                    rows[index] = row
        return rows

    def open(self, rows: Sequence[Record | None], seen: Set[int] = frozenset()) -> tuple[str, ...]:
        """The ids of the children that have not ended, as `rows` returned them. `seen`: the indexes of those whose
        ending is in the history; after a retry of the job their rows may be missing."""
        return tuple(
            [
                self.id(index) if row is None else row.id
                for index, row in enumerate(rows)
                if index not in seen and (row is None or not row.state.final)
            ]
        )

    async def cancel(self) -> None:
        """Cancel those that have not ended."""
        await cancel_all(self._run, [row.id for row in await self.rows() if row is not None and not row.state.final])

    async def new(self, indexes: Sequence[int], lanes: int | None = None) -> tuple[NewJob, ...]:
        """The jobs to store for these children, each after the other jobs of its flow. They are dealt in turn to this
        many lanes; in each lane, a child waits for the ending of the one before it."""
        jobs: list[NewJob] = []
        ids = [self.id(index) for index in indexes]
        for number, (index, id) in enumerate(zip(indexes, ids, strict=True)):
            spec = self.specs[index]
            jobs += [replace(other, root=None, parent=_moved(other.parent, spec.id, id)) for other in spec.others]
            new = replace(spec.new, id=id, nonce=None)
            if lanes is not None and number >= lanes:
                new = replace(new, after=(ids[number - lanes],), failures_allowed=None)
            jobs.append(new)
        return await self._run.adopted(jobs)


def _moved(parent: str | None, old: str, new: str) -> str | None:
    return new if parent == old else parent


async def cancel_all(run: StepTaker, ids: Sequence[str]) -> None:
    """Cancel those of these children that have not ended."""
    for start in range(0, len(ids), READ):
        await run.backend.cancel(run.run.record, ids[start : start + READ])


async def read(run: StepTaker, ids: Sequence[str]) -> list[Record | None]:
    """These rows with their results, some hundred at a time."""
    rows: list[Record | None] = []
    for start in range(0, len(ids), READ):
        rows += await run.backend.get(ids[start : start + READ])
    return rows


def is_ended(entry: Checkpoint | None) -> bool:
    """Whether the wait for children has its value or its failure, or that for a decision has timed out."""
    return entry is not None and (entry.has_value or entry.failure is not UNSET or entry.gave_up)


def error_of_row(row: Record) -> JobNotDone:
    """The error of a child that did not succeed, with the first line of its own error."""
    return not_done(replace(row, error=error_line(row.error)))


def raw_of(row: Record) -> Raw:
    """The stored result as JSON: a text of another format, which a codec of the user has written, in an object."""
    text = row.result or "null"
    try:
        msgspec.json.decode(text, type=Raw)
    except UNREADABLE:
        return Raw(msgspec.json.encode({AS_TEXT: text}))
    return Raw(text.encode())


def value_of(run: StepTaker, spec: Spec, raw: Raw, of: Any) -> Any:
    """The result of a child, decoded. `of`: the tasks that encoded it; UNSET: that of the spec."""
    text = bytes(raw).decode()
    if text.startswith(f'{{"{AS_TEXT}"'):
        text = msgspec.json.decode(text, type=dict[str, str])[AS_TEXT]
    if spec.decode is None or of is not UNSET:
        return run.backend.decoded(None if of is UNSET else of, text)
    return spec.decode(text)


def keep_failure(run: StepTaker, request: StepRequest, row: Record) -> None:
    """Record that the wait has ended with the failure of this child."""
    failure, shown = failure_of(request.key, error_of_row(row), run.checkpoints.round)
    run.errors[request.key] = shown, shown
    run.checkpoints.keep(request, request.entry_of(failure=failure, child=row.id))


def lose(run: StepTaker, request: StepRequest) -> None:
    """Note that this call has lost a race."""
    entry = run.checkpoints.entries.get(request.key)
    if entry is not None and not is_ended(entry):
        run.checkpoints.keep(request, replace(entry, lost_race=True))


class ChildWait:
    """The wait for one child."""

    kind = WAIT

    def __init__(self, run: StepTaker, request: StepRequest, spec: Spec) -> None:
        self._run, self.request, self._spec = run, request, spec
        self._children = Children(run, request, [spec])
        self._is_own = spec.new.key is None and spec.new.nonce is None

    async def look(self) -> Pending | None:
        entry = self._run.checkpoints.entries.get(self.request.key)
        if is_ended(entry):
            return None
        pending, row = await (self._look_at_own() if self._is_own else self._look_at_named())
        if row is not None and row.state.final:
            self._keep(row)
            return None
        return pending

    async def _look_at_own(self) -> tuple[Pending, Record | None]:
        [row] = await self._children.rows()
        if row is not None:
            return Pending((row.id,)), row
        new = await self._children.new([0])
        self._keep_id(self._children.id(0))
        return Pending((self._children.id(0),), new), None

    async def _look_at_named(self) -> tuple[Pending, Record | None]:
        """A job with a key or an id of its own: the stored row may be another one."""
        entry = self._run.checkpoints.entries.get(self.request.key)
        [row] = [None] if entry is None or not entry.child else await read(self._run, [entry.child])
        if row is None:
            new = self._spec.new
            id = new.id if new.nonce is not None else self._children.id(0)
            jobs = await self._run.adopted([replace(new, id=id)])
            [row] = await self._run.backend.store_all(jobs)
            self._keep_id(row.id)
        if row.job.parent == self._run.run.record.job.id or row.state.final:
            return Pending((row.id,)), row
        if await self._waits_for_this(row):
            job = self._run.run.record.job.id
            raise BadStep(self.request.key, f"job {row.id} holds its key and waits for job {job}: neither would end")
        return Pending((row.id,), until=self._run.moment() + HELD), row

    async def _waits_for_this(self, row: Record) -> bool:
        """Whether this row waits for this job, directly or through others."""
        own, seen, level = self._run.run.record.job.id, {row.id}, [row]
        while level and len(seen) < MOST_LOOKED:
            ups = {up for row in level if row.state is State.WAITING for up in row.after} - seen
            if own in ups or row.id == own:
                return True
            seen |= ups
            level = [up for up in await read(self._run, sorted(ups)) if up is not None]
        return row.id == own

    def _keep_id(self, id: str) -> None:
        self._run.checkpoints.keep(self.request, self.request.entry_of(child=id))

    def _keep(self, row: Record) -> None:
        run, request = self._run, self.request
        if row.state is not State.SUCCEEDED:
            keep_failure(run, request, row)
            return
        of = encoding_of(row) if row.function_done or self._spec.decode is None else UNSET
        run.keep_or_fail(request, lambda: request.entry_of(child=row.id, of=of, value=raw_of(row)))

    def value(self) -> Any:
        entry = self._run.recorded(self.request)
        assert isinstance(entry.value, Raw)
        return value_of(self._run, self._spec, entry.value, entry.of)

    async def conclude(self) -> None:
        """Nothing is to be done when it has ended."""

    def lose(self) -> None:
        lose(self._run, self.request)

    async def drop(self) -> None:
        entry = self._run.checkpoints.entries.get(self.request.key)
        if entry is not None and entry.child:
            await self._run.backend.cancel(self._run.run.record, [entry.child])
