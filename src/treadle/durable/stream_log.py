"""Stores the pages of one stream for one run, and voids what earlier tries of a step have written.

A page says which tries of steps have begun to write, and which run makes them. The first page of a run voids those of
earlier runs of the same row, and the next try of a step voids the one before it. Two runs settle the same page: the
second one looks at what the first one wrote, and an earlier run of a row stops there.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

from msgspec import Raw
from msgspec.structs import replace

from treadle.core import defaults
from treadle.core.errors import RESULT, StorageError, TooLarge
from treadle.core.events import was_lost
from treadle.core.model import STREAM, NewJob, Outcome, State
from treadle.core.own_checkpoints import own_checkpoints
from treadle.durable.state import DurableState
from treadle.workflow.streams import (
    Group,
    Open,
    Page,
    check_page,
    entries_of,
    find_tail,
    folded,
    note_of,
    page_id,
    page_of,
    page_row,
    stream_note,
    streams_of,
)

MOST_WAITING: Final = 65_536  # bytes of the chunks of a page, unless a single one is longer
SHORTEST: Final = defaults.KEEP_LEAST + 1  # s for which a page is kept: with less, its row would belong to no root
READ_AT_ONCE: Final = 64  # pages
LOCKED_PAUSE: Final = 0.02  # s before a page is settled again whose row another transaction has locked
MANY: Final = "a stream is for what people read while the job runs; store the whole elsewhere, or use another stream"


class Waiting(NamedTuple):
    """A chunk that is to be stored, and the try of a step that wrote it."""

    step: str
    number: int
    text: str
    size: int


class Place(NamedTuple):
    """The end of a stream, as this run knows it.

    number   of the next page
    version  of its row; None: that is not stored
    end      the offset of the next entry
    size     bytes of all chunks before it
    """

    number: int
    version: int | None
    end: int = 0
    size: int = 0
    open: Mapping[str, Open] = {}


class StreamLog:
    """One stream. Not to be used by two tasks at a time.

    keep  seconds for which what is written is kept
    """

    def __init__(self, run: DurableState, name: str) -> None:
        record = run.run.record
        self._run, self._name = run, name
        self._version = record.version
        self._row = "" if record.job.id == run.job else hashlib.sha256(record.job.id.encode()).hexdigest()[:12]
        self._is_new = name not in streams_of(record.checkpoints)
        self._note = note_of(own_checkpoints(record.checkpoints), name)
        self.keep = max(record.job.keep, SHORTEST) if self._note.keep is None else self._note.keep
        # An earlier run may still write: this one stores a page, at which that one stops.
        self._is_fenced = self._is_new or not (was_lost(record) or record.reopenings or self._row)
        self._place: Place | None = None
        self._was_read = False
        self._owners: dict[str, int] = {}  # the tries of this run that have begun to write, by their steps
        self._done = set[str]()  # steps of this run that have succeeded

    def adopt(self, note: str) -> None:
        """Continue behind what a part of the job has written, of which this is the checkpoint."""
        self._is_new, self._note = False, note_of({STREAM + self._name: note}, self._name)
        self._run.checkpoints.note((STREAM + self._name, note))

    def resume(self, step: str, number: int) -> None:
        """This try of the step has begun to write, by another object of this run."""
        self._owners[step] = number

    async def append(self, step: str, number: int, texts: Sequence[str]) -> int:
        """Store these chunks of a try in a page -> the offset behind them."""
        if texts:
            await self.store([Waiting(step, number, text, len(text.encode())) for text in texts], ())
        return await self.end()

    @property
    def next_page(self) -> str:
        """The id of the page that is open, if there is one."""
        number = self._note.page if self._place is None else self._place.number
        return page_id(self._run.job, self._name, number)

    def has_other(self, step: str, number: int) -> bool:
        """Whether another try of this step, or an earlier run, may have written what is to be void."""
        if not self._was_read:
            return not self._is_fenced or self._note.open or self._note.again
        place = self._place
        return place is None or (step in place.open and not self._is_mine(step, number, place.open))

    def complete(self, step: str) -> None:
        """The step has succeeded."""
        self._done.add(step)
        if self._place is not None:
            self._keep_note()

    async def end(self) -> int:
        """The offset behind the last entry."""
        if self._place is None:
            self._place = await self._look()
        return self._place.end

    async def begin_round(self) -> None:
        """The job starts over: what it has written stays, whatever the steps of the next round are."""
        self._note = replace(self._note, base=await self.end())
        self._keep_note()

    async def store(self, group: Sequence[Waiting], to_void: Sequence[tuple[str, int]]) -> bool:
        """Store a page with these chunks, behind what other runs have stored meanwhile; `to_void`: tries that have
        ended, and void what other tries of their steps wrote. False: there was nothing to store."""
        while True:
            place = self._place or await self._look()
            page, owners = self._page(place, group, to_void)
            if page.end > defaults.MAX_CHUNKS:
                raise too_large(f"the stream {self._name!r}, in chunks,", page.end, defaults.MAX_CHUNKS, MANY)
            if page.size > defaults.MAX_STREAM:
                raise too_large(f"the stream {self._name!r}", page.size, defaults.MAX_STREAM, MANY)
            is_needed = bool(page.groups) or not self._is_fenced
            if not is_needed:
                self._place = place
            elif await self._is_settled(place, page):
                self._place = Place(place.number + 1, 0, page.end, page.size, page.open)
                self._owners, self._is_fenced = owners, True
            else:
                self._place = None
                self._run.backend.check(self._run.run)  # another run writes: this one may have ended
                continue
            self._was_read = True
            self._note = replace(self._note, again=False)
            self._keep_note()
            return is_needed

    async def _look(self) -> Place:
        """Where the stream ends. Raises CancelledError if the job no longer belongs to this run."""
        run, name, job = self._run, self._name, self._run.job
        if self._is_new or (self._row and not self._was_read):
            self._is_new = False
            self._keep_note()
            await run.backend.save(run.run)  # before the first chunk: a later run must know of the stream
        tail = await find_tail(run.backend.get, job, name, self._note.page)
        if tail.row is not None:
            check_page(tail.row, run.run.record.job.queue, job, name)
        page = tail.page or Page(self._note.end, 0, size=self._note.size)  # pruned, as it was kept for a short time
        is_late = page.row == self._row and page.version > self._version
        if is_late or any(
            step in page.open and not self._is_mine(step, number, page.open) for step, number in self._owners.items()
        ):
            await run.backend.save(run.run)  # raises CancelledError if another run has the job
        opened = {step: first for step, first in page.open.items() if first.first >= self._note.base}
        if self._note.again:
            opened |= await self._dropped(tail.number)
        if tail.row is None or tail.row.state.final:
            number = tail.number + 1 if tail.number else self._note.page
            return Place(number, None, page.end, page.size, opened)
        return Place(tail.number, tail.row.version, page.end, page.size, opened)

    async def _dropped(self, last: int) -> dict[str, Open]:
        """The first chunks of the steps that are no longer in the history of the job, which runs again from one of its
        steps."""
        run, entries = self._run, []
        for first in range(1, last + 1, READ_AT_ONCE):
            numbers = range(first, min(first + READ_AT_ONCE, last + 1))
            rows = await run.backend.get([page_id(run.job, self._name, number) for number in numbers])
            pages = [page for row in rows if row is not None and (page := page_of(row)) is not None]
            entries += [entry for page in pages for entry in entries_of(page) if entry.offset >= self._note.base]
        firsts = dict[str, Open]()
        for entry in folded(entries):
            if not run.checkpoints.is_over(entry.step):
                firsts.setdefault(entry.step, Open(entry.offset, self._row, 0))
        return firsts

    def _page(
        self, place: Place, group: Sequence[Waiting], to_void: Sequence[tuple[str, int]]
    ) -> tuple[Page, dict[str, int]]:
        """The page of these chunks, and the tries of this run that have begun to write then."""
        checkpoints, draft, owners = self._run.checkpoints, _Draft(place), dict(self._owners)
        for step, first in place.open.items():
            if checkpoints.is_over(step):
                if step not in checkpoints.unsaved:
                    del draft.open[step]  # its chunks stay
            elif first.row == self._row and first.version < self._version:
                draft.void(step)
        for step, number in to_void:
            if step in draft.open and not self._is_mine(step, number, place.open):
                draft.void(step)
        for step, number, text, size in group:
            if step in draft.open and not (owners.get(step) == number and self._is_own(draft.open[step])):
                draft.void(step)
            if step not in draft.open:
                draft.open[step], owners[step] = Open(draft.end, self._row, self._version), number
            draft.add(step, text, size)
        return draft.page(self._row, self._version), owners

    def _is_mine(self, step: str, number: int, open: Mapping[str, Open]) -> bool:
        """Whether this try of this run has begun to write."""
        return self._is_own(open[step]) and self._owners.get(step) == number

    def _is_own(self, first: Open) -> bool:
        return (first.row, first.version) == (self._row, self._version)

    async def _is_settled(self, place: Place, page: Page) -> bool:
        """Store the page; False: another run has stored one in its place."""
        backend, version = self._run.backend, place.version
        if version is None:
            queue = self._run.run.record.job.queue
            stored = check_page(await backend.store(self._open_page(place.number)), queue, self._run.job, self._name)
            if stored.state.final:
                return False
            version = stored.version
        id, followups = page_id(self._run.job, self._name, place.number), (self._open_page(place.number + 1),)
        out = Outcome(id=id, version=version, state=State.SUCCEEDED, result=page.text, followups=followups)
        while True:
            [answer] = await backend.settle([out])
            if answer.status == "applied":
                return True
            if answer.status == "stale":
                break
            if not answer.again:
                raise StorageError(f"the storage refused a page of the stream {self._name!r}: {answer.reason}")
            await asyncio.sleep(LOCKED_PAUSE)
        # The answer to an earlier call may be lost. A text that is encrypted differs each time, so the storage cannot
        # tell that this is the same outcome.
        [row] = await backend.get([id])
        return row is not None and page_of(row) == page

    def _open_page(self, number: int) -> NewJob:
        return page_row(self._run.run.record.job.queue, self._run.job, self._name, number, self.keep)

    def _keep_note(self) -> None:
        """Store with the next checkpoints how far the stream is written."""
        place = self._place
        if place is not None:
            is_open = bool(place.open.keys() - self._done)
            self._note = replace(self._note, page=place.number, end=place.end, size=place.size, open=is_open)
        self._note = replace(self._note, keep=self.keep)
        self._run.checkpoints.note(stream_note(self._name, self._note))


class _Draft:
    """A page that is being made."""

    def __init__(self, place: Place) -> None:
        self._start, self.end, self._size = place.end, place.end, place.size
        self.open = dict(place.open)
        self._steps: dict[str, int] = {}
        self._groups: list[tuple[int, int, list[Raw]]] = []  # step, `to`, values

    def void(self, step: str) -> None:
        """The chunks of the try that is open are void."""
        self._groups.append((self._index(step), self.open.pop(step).first, []))
        self.end += 1

    def add(self, step: str, text: str, size: int) -> None:
        index = self._index(step)
        if not self._groups or self._groups[-1][:2] != (index, -1):
            self._groups.append((index, -1, []))
        self._groups[-1][2].append(Raw(text.encode()))
        self.end += 1
        self._size += size

    def _index(self, step: str) -> int:
        return self._steps.setdefault(step, len(self._steps))

    def page(self, row: str, version: int) -> Page:
        groups = tuple([Group(step, tuple(values), to) for step, to, values in self._groups])
        return Page(self._start, version, row, tuple(self._steps), groups, self.open, self._size)


def too_large(what: str, size: int, most: int, cure: str) -> TooLarge:
    """A further attempt would write the same, so the job fails at once."""
    error = TooLarge(what, size, most, cure)
    error.fails_as = RESULT
    return error
