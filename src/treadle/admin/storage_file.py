"""Exports all jobs of a storage to a file of JSON lines, and imports such a file. `storage/job_lines.py` has the lines.

An import runs as a move from the file: the storage stays closed until all lines are loaded, and a second call resumes.
"""

from __future__ import annotations

import hashlib
import uuid
from codecs import BOM_UTF8
from collections import Counter
from collections.abc import Callable, Iterator
from typing import BinaryIO, Final

from msgspec import Struct

from treadle.admin.storage_move import OPEN, STEP, OpenStorage, Run, Told, chunks, total_of
from treadle.core.errors import MoveFailed
from treadle.core.limit_model import LimitFacts
from treadle.core.query_model import MetricsRow
from treadle.storage import Carried, Chunk, MoveState, Rate, refusal
from treadle.storage.job_lines import VERSION, End, Header, Line, line_of, lines_of, read_line

OTHER: Final = "the file "  # the marks of an import begin their `other` with this
ADDING: Final = "+"  # the marks of an import have the digest of its file as `cursor`; with `add`, this and the digest
LONGEST: Final = 65_536  # bytes of the first line, so that a file of another kind is refused before it is read whole


class Imported(Struct, frozen=True):
    """`jobs` in the file; `known`: those that were stored already; `exported`: the number that the export wrote."""

    jobs: int
    known: int
    exported: int


async def export(
    place: OpenStorage, write: Callable[[bytes], object], *, step: int = STEP, progress: Told = lambda *_: None
) -> End:
    """Write every job, limit, rate and row of metrics as a line. Reads `step` jobs at a time, and changes nothing.

    Raises Unsupported, StorageError, and StorageUnavailable for a storage with a part of the jobs.
    """
    mark = await place.movable.read_mark()
    if mark is not None and mark.role in ("filling", "partial"):
        raise refusal(mark, place.name)
    before, began = await _counts(place), (await place.storage.glance()).at
    write(line_of("export", Header(version=VERSION, storage=place.name, began_at=began)))
    total, counts, is_changed = before.total(), Counter[tuple[str, str, str]](), False
    async for chunk in chunks(place, step):
        for line in lines_of(chunk):
            write(line)
        for record in (carried.record for carried in chunk.jobs):
            counts[record.job.queue, record.job.task, record.state] += 1
            is_changed = is_changed or record.updated_at > began
        progress("exporting", counts.total(), total)
    end = End(jobs=counts.total(), changed=is_changed or not before == counts == await _counts(place))
    write(line_of("end", end))
    return end


async def _counts(place: OpenStorage) -> Counter[tuple[str, str, str]]:
    counts = Counter[tuple[str, str, str]]()
    for count in (await place.storage.stats()).counts:
        counts[count.queue, count.task, count.state] += count.jobs
    return counts


class JobFile:
    """A file that `export` wrote, opened for reading bytes; it must be seekable. Reads each line when it is needed."""

    def __init__(self, lines: BinaryIO, name: str) -> None:
        """Read every line once. Raises MoveFailed with the number of the first line that is wrong."""
        self._lines, self._name = lines, name
        self.jobs, end, digest = 0, None, hashlib.sha256()
        for number, (line, value) in enumerate(self._read(), 1):
            if end is not None:
                raise self._wrong(number, "a line after the end; import one export at a time")
            if number > 1:
                digest.update(line)  # without the first line: a repeated export of the same jobs has the same digest
            self.jobs += isinstance(value, Carried)
            end = value if isinstance(value, End) else None
        if end is None:
            raise MoveFailed(f"{name} has no last line with the kind end, so it was cut off; nothing was imported")
        if end.changed:
            raise MoveFailed(
                f"the jobs changed while {name} was written, so that some may wait for a job that has ended; nothing "
                "was imported. Stop all workers and producers, and export again"
            )
        self.exported = end.jobs
        self.digest = digest.hexdigest()
        self.mark = f"{OTHER}{name} ({self.digest[:12]})"

    def chunks(self, step: int = STEP) -> Iterator[Chunk]:
        """The content, `step` lines at a time. Of several lines with one id in a chunk it has the first."""
        values = list[Line]()
        for _, value in self._read():
            if not isinstance(value, Header | End):
                values.append(value)
            if len(values) == step:
                yield _chunk(values)
                values.clear()
        yield _chunk(values)

    def _read(self) -> Iterator[tuple[bytes, Line]]:
        self._lines.seek(0)
        first = self._lines.readline(LONGEST).removeprefix(BOM_UTF8)
        yield first, self._header(first)
        for number, line in enumerate(self._lines, 2):
            if not line.strip():  # an editor may leave such lines
                continue
            try:
                value = read_line(line)
            except ValueError as error:
                raise self._wrong(number, str(error)) from error
            if isinstance(value, Header):
                raise self._wrong(number, "a second first line; import one export at a time")
            yield line, value

    def _header(self, line: bytes) -> Header:
        try:
            header = read_line(line)
        except ValueError as error:
            raise self._wrong(1, str(error)) from error
        if not isinstance(header, Header):
            raise self._wrong(1, "expected the first line of an export, with the kind export")
        if header.version != VERSION:
            problem = f"expected version {VERSION} of the format, found {header.version}: use a newer Treadle"
            raise self._wrong(1, problem)
        return header

    def _wrong(self, number: int, problem: str) -> MoveFailed:
        return MoveFailed(f"{self._name}, line {number:,}: {problem}; nothing was imported")


def _chunk(values: list[Line]) -> Chunk:
    jobs = {value.record.id: value for value in reversed(values) if isinstance(value, Carried)}
    return Chunk(
        tuple(reversed(jobs.values())),
        tuple(value for value in values if isinstance(value, LimitFacts)),
        tuple(value for value in values if isinstance(value, Rate)),
        metrics=tuple(value for value in values if isinstance(value, MetricsRow)),
    )


async def load(
    file: JobFile, target: OpenStorage, *, add: bool = False, step: int = STEP, progress: Told = lambda *_: None
) -> Imported:
    """Store the jobs, limits, rates and metrics of the file. Jobs that ran are stored as ready, due when their lease
    ends. The target raises StorageUnavailable meanwhile. A call that was interrupted is resumed by the next one with
    the same content and the same `add`, also from a file of another name.

    add  the target may have jobs; only jobs are imported, and those with a known id are left as they are

    Raises Unsupported, StorageError, and MoveFailed: the target has jobs, another move or import is under way, or with
    `add` a job of the file does not fit those of the target. Then nothing was imported.
    """
    mark = await target.movable.read_mark()
    cursor = f"{ADDING}{file.digest}" if add else file.digest
    is_resumed = mark is not None and mark.role == "filling" and mark.cursor == cursor
    before = await total_of(target)
    if not is_resumed:
        _check_free(mark, before, target, add)
    run = Run(file.mark, target, (mark,), str(uuid.uuid4()), progress=progress)
    await run.mark_target("filling", cursor)
    if add:
        try:
            await _check_fits(file, target, step)
        except MoveFailed:
            if not is_resumed:
                await run.mark_target("aborted")
            raise
    done = 0
    for chunk in file.chunks(step):
        done += len(chunk.jobs)
        await run.load(Chunk(chunk.jobs) if add else chunk, cursor, done)
        progress("importing", done, file.jobs)
    added = await total_of(target) - before
    await run.mark_target("arrived", jobs=done)
    return Imported(file.jobs, file.jobs - added, file.exported)


async def abort(target: OpenStorage) -> bool:
    """Open a storage whose import was interrupted -> whether there was one. It keeps the jobs that were imported."""
    mark = await target.movable.read_mark()
    if mark is None or mark.role != "filling" or not mark.other.startswith(OTHER):
        return False
    await Run(mark.other, target, (mark,), mark.move).mark_target("aborted")
    return True


def _check_free(mark: MoveState | None, jobs: int, target: OpenStorage, add: bool) -> None:
    if mark is not None and mark.role == "filling" and mark.other.startswith(OTHER):
        began_adding = (mark.cursor or "").startswith(ADDING)
        option = f" {'with' if began_adding else 'without'} --add" if began_adding != add else ""
        raise MoveFailed(
            f"{target.name} has some of the jobs of {mark.other}: import that file again{option}, or open the storage "
            "with `treadle storage import --abort`"
        )
    if mark is not None and mark.role not in OPEN:
        raise MoveFailed(f"{target.name} takes part in a move from or to {mark.other}: give another storage")
    if jobs and not add:
        raise MoveFailed(
            f"{target.name} already holds {jobs:,} job{'' if jobs == 1 else 's'}: give an empty storage, or --add to "
            "import the jobs that are not there"
        )


async def _check_fits(file: JobFile, target: OpenStorage, step: int) -> None:
    """Raise MoveFailed if a job of the file holds a key that is taken, or waits for a job that has ended. Memory: the
    keys that jobs of the target hold."""
    held = {
        carried.record.job.key: carried.record.id
        async for chunk in chunks(target, step)
        for carried in chunk.jobs
        if carried.holds_key
    }
    for chunk in file.chunks(step):
        names = {carried.record.id for carried in chunk.jobs}
        names |= {edge.up for carried in chunk.jobs for edge in carried.edges if edge.open}
        stored = {row.id: row for row in await target.storage.get(sorted(names)) if row is not None}
        for carried in chunk.jobs:
            id, key = carried.record.id, carried.record.job.key
            if id in stored:
                continue
            if carried.holds_key and key in held:
                raise _misfit(f"job {id} has the key {key!r}, which job {held[key]} of {target.name} holds")
            for up in (edge.up for edge in carried.edges if edge.open):
                if up in stored and stored[up].state.final:
                    raise _misfit(f"job {id} waits for job {up}, which has ended in {target.name}")


def _misfit(problem: str) -> MoveFailed:
    return MoveFailed(f"{problem}; nothing was imported")
