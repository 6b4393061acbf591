"""The rows of streams: numbered pages, each a row without a task, which the run that writes it settles with its chunks.

A stream is a log of entries, which are chunks and resets. The follow-up of a page is the next one, which is open. So
the version of a row decides which of two writers comes first. A page that has expired, or that an operator has
cancelled, has no entries; the next one follows it.

The first page is the root of the others, so that no workflow of the job has them among its jobs.
"""

from __future__ import annotations

import hashlib
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from typing import Final, NamedTuple

import msgspec
from msgspec import Raw, Struct
from msgspec.structs import replace

from treadle.core import defaults
from treadle.core.errors import UNREADABLE, BadResult, ForeignRow
from treadle.core.model import STREAM, NewJob, Outcome, Pairs, Record, State
from treadle.core.own_checkpoints import own_checkpoints
from treadle.core.ranges import Natural
from treadle.core.stored_text import FORMS, lacks
from treadle.policy.run_log import LOG, TAIL, tail_of
from treadle.storage.contract import Storage
from treadle.workflow.signals import check_place

PAGE: Final = "treadle:page:"  # prefix of the ids of pages
HEADER: Final = "treadle:stream"  # the header with a `PageHeader`: an operator reads it without keys
PROBES: Final = 16  # pages that one call reads between two others
DELETED: Final = 200  # pages of one call
NEAR: Final = 4  # pages that are read backwards from the last one
POWERS: Final = defaults.MAX_CHUNKS.bit_length() + 1

Read = Callable[[Sequence[str]], Awaitable[Sequence[Record | None]]]


class PageHeader(Struct, frozen=True):
    """The header of a page, which operators read."""

    job: str
    stream: str


class Group(Struct, frozen=True, array_like=True):
    """Entries behind each other of one step: chunks, or one reset.

    step    its index in `Page.steps`
    values  the encoded values of the chunks
    to      of a reset, the first offset that is void; -1: these are chunks
    """

    step: int
    values: tuple[Raw, ...] = ()
    to: int = -1

    @property
    def entries(self) -> int:
        return len(self.values) if self.to < 0 else 1


class Open(Struct, frozen=True, array_like=True):
    """The try of a step that may write more.

    first    the offset of its first chunk
    row      the row whose run makes it, as in `Page`
    version  of that run
    """

    first: int
    row: str
    version: int


class Page(Struct, frozen=True, omit_defaults=True):
    """The text of a page.

    start    the offset of its first entry
    row      a digest of the part of the job whose run wrote it; "": the job's own
    version  of that run
    steps    the keys of the steps of its entries
    open     the tries of steps that had begun to write, and had not ended
    size     bytes of all chunks up to here
    """

    start: Natural
    version: int
    row: str = ""
    steps: tuple[str, ...] = ()
    groups: tuple[Group, ...] = ()
    open: dict[str, Open] = {}
    size: int = 0

    @property
    def end(self) -> int:
        """The offset behind its last entry."""
        return self.start + sum(group.entries for group in self.groups)

    @property
    def text(self) -> str:
        return msgspec.json.encode(self).decode()


class StreamNote(Struct, frozen=True, omit_defaults=True):
    """The content of the checkpoint `STREAM` of a job.

    page   the next page, as the run knew it that stored this
    end    the offset of its first entry
    size   bytes of all chunks before it
    open   whether the try of a step had begun to write then, and had not ended
    base   the first offset of this round
    again  an operator has let the job run again from one of its steps: chunks of steps that it has not taken are void
    keep   seconds for which a page is kept
    """

    page: Natural = 1
    end: Natural = 0
    size: Natural = 0
    open: bool = False
    base: Natural = 0
    again: bool = False
    keep: float | None = None


class Entry(NamedTuple):
    """A chunk; with `to`, a reset."""

    offset: int
    step: str
    to: int | None
    text: str


_read_page = msgspec.json.Decoder(Page).decode
_read_note = msgspec.json.Decoder(StreamNote).decode
_read_header = msgspec.json.Decoder(PageHeader).decode


def page_id(job: str, name: str, number: int) -> str:
    """The id of a page. It is a hash, because the job's own id may have the maximum length."""
    return f"{PAGE}{hashlib.sha256(f'{job} {name}'.encode()).hexdigest()[:40]}:{number}"


def page_row(queue: str, job: str, name: str, number: int, keep: float) -> NewJob:
    """The open page of this number, which is kept longer than any run of its job may wait before it writes again."""
    root = None if number == 1 else page_id(job, name, 1)
    return NewJob(
        id=page_id(job, name, number),
        queue=queue,
        root=root,
        deadline=max(keep, defaults.SIGNAL_ROW),
        keep=keep,
        keep_failed=keep,
        headers=((HEADER, msgspec.json.encode(PageHeader(job, name)).decode()),),
    )


def is_page(job: NewJob) -> bool:
    """Whether this row is a page of a stream."""
    return not job.task and job.id.startswith(PAGE)


def header_of(job: NewJob) -> PageHeader | None:
    """The header of a page; None if the row is none, or another program stored something else."""
    try:
        return _read_header(dict(job.headers).get(HEADER, "")) if is_page(job) else None
    except UNREADABLE:
        return None


def check_page(stored: Record, queue: str, job: str, name: str) -> Record:
    """The row of a page of this stream of a job of this queue. Raises ForeignRow if another caller stored it."""
    first = page_id(job, name, 1)
    check_place(stored, queue, None if stored.id == first else first, None)
    if header_of(stored.job) != PageHeader(job, name):
        raise ForeignRow(stored.id, stored.job.queue, queue)
    return stored


def page_of(stored: Record) -> Page | None:
    """The text of a page; None if it is open, or has no entries. Raises BadResult if it cannot be read."""
    if stored.state is not State.SUCCEEDED or stored.result is None:
        return None
    problem = lacks(stored.result) if stored.result.startswith(FORMS) else None
    if problem is None:
        try:
            return _read_page(stored.result)
        except UNREADABLE as error:
            problem = str(error)
    raise BadResult.of_stored(f"the page {stored.id} of a stream", f"cannot be read: {problem}")


def entries_of(page: Page) -> Iterator[Entry]:
    """The entries of a page, in their order."""
    offset = page.start
    for group in page.groups:
        step = page.steps[group.step]
        if group.to >= 0:
            yield Entry(offset, step, group.to, "")
            offset += 1
        for value in group.values:
            yield Entry(offset, step, None, bytes(value).decode())
            offset += 1


def page_after(page: Page, offset: int) -> Page | None:
    """The entries of a page from this offset on; None: there are none."""
    if offset <= page.start:
        return page
    groups, at = list[Group](), page.start
    for group in page.groups:
        if at >= offset:
            groups.append(group)
        elif at + group.entries > offset:
            groups.append(replace(group, values=group.values[offset - at :]))
        at += group.entries
    return replace(page, start=offset, groups=tuple(groups)) if groups else None


def page_in(row: Record, name: str) -> Page | None:
    """The last entries of a stream that are in the row of its job: lines of its log. None: there are none."""
    tail = tail_of(row.checkpoints) if name == LOG else None
    if tail is None or not tail.lines:
        return None
    values = tuple([Raw(msgspec.json.encode(line)) for line in tail.lines])
    return Page(tail.start, row.version, steps=("",), groups=(Group(0, values),))


def folded(entries: Sequence[Entry]) -> list[Entry]:
    """The chunks that are not void, in their order."""
    void = dict[str, list[tuple[int, int]]]()
    for entry in entries:
        if entry.to is not None:
            void.setdefault(entry.step, []).append((entry.to, entry.offset))
    return [
        entry
        for entry in entries
        if entry.to is None and not any(to <= entry.offset < end for to, end in void.get(entry.step, ()))
    ]


def names_of(checkpoints: Pairs) -> list[str]:
    """The names of the streams of a job, with that of its log."""
    has_log = any(name == TAIL for name, _ in checkpoints)
    return [*streams_of(checkpoints), *([LOG] if has_log else [])]


def streams_of(checkpoints: Pairs) -> list[str]:
    """The names of the streams that the functions of a job have written."""
    return [name.removeprefix(STREAM) for name in own_checkpoints(checkpoints) if name.startswith(STREAM)]


def note_of(checkpoints: Mapping[str, str], name: str) -> StreamNote:
    """The checkpoint of this stream; that of a new one if another program has stored something else."""
    try:
        return _read_note(checkpoints.get(STREAM + name, "{}"))
    except UNREADABLE:
        return StreamNote()


def stream_note(name: str, note: StreamNote) -> tuple[str, str]:
    """The checkpoint of a stream."""
    return STREAM + name, msgspec.json.encode(note).decode()


def streams_again(checkpoints: Pairs) -> Pairs:
    """The checkpoints of the streams of a job that runs again from one of its steps."""
    own = own_checkpoints(checkpoints)
    return tuple([stream_note(name, replace(note_of(own, name), again=True)) for name in streams_of(checkpoints)])


class Tail(NamedTuple):
    """The end of a stream.

    number  of the last stored row; 0: there is none
    row     that row
    page    the last one with entries
    """

    number: int
    row: Record | None
    page: Page | None


async def find_tail(read: Read, job: str, name: str, near: int = 1) -> Tail:
    """The end of the stream, which is `near` that page, or behind it."""
    numbers: Sequence[int] = sorted({max(1, near - 1), *(near - 1 + 2**power for power in range(POWERS))})
    low, high, known = 0, defaults.MAX_CHUNKS * 2, dict[int, Record]()
    while True:
        rows = await read([page_id(job, name, number) for number in numbers])
        for number, row in zip(numbers, rows, strict=True):
            if row is not None:
                known[number], low = row, max(low, number)
        high = min([high, *(n for n, row in zip(numbers, rows, strict=True) if row is None and n > low)])
        if high - low <= 1:
            break
        numbers = range(low + 1, high, max(1, (high - low) // PROBES))
    number, last = low, known.get(low)
    while number > 0:
        if number not in known:
            numbers = range(max(1, number - NEAR + 1), number + 1)
            rows = await read([page_id(job, name, n) for n in numbers])
            known |= {n: row for n, row in zip(numbers, rows, strict=True) if row is not None}
        if number not in known:
            break  # it was pruned
        if (page := page_of(known[number])) is not None:
            return Tail(low, last, page)
        number -= 1
    return Tail(low, last, None)


async def find_page(read: Read, job: str, name: str, offset: int, first: int, last: int) -> int:
    """The number of the last page from `first` to `last` that begins at this offset or an earlier one."""
    low, high = first, last + 1
    while high - low > 1:
        numbers = range(low + 1, high, max(1, (high - low) // PROBES))
        rows = await read([page_id(job, name, number) for number in numbers])
        pages = [(n, page) for n, row in zip(numbers, rows, strict=True) if row is not None and (page := page_of(row))]
        before = low, high
        low = max([low, *(number for number, page in pages if page.start <= offset)])
        high = min([high, *(number for number, page in pages if page.start > offset)])
        if (low, high) == before:
            break  # those in between have no entries
    return low


async def first_kept(read: Read, job: str, name: str, near: int) -> tuple[int, int]:
    """The number of the first page with entries that was not pruned, and its first offset, for a stream of `near` or
    more pages; (0, 0): there is none."""
    low, high = 0, near  # the last that is known to be gone, the first that may be there
    numbers: Sequence[int] = (1,)
    while high - low > 1:
        rows = await read([page_id(job, name, number) for number in numbers])
        there = [number for number, row in zip(numbers, rows, strict=True) if row is not None]
        if 1 in there:
            return 1, 0
        high = min([high, *there])
        low = max([low, *(number for number in numbers if number < high and number not in there)])
        numbers = range(low + 1, high, max(1, (high - low) // PROBES))
    for first in range(high, high + NEAR * PROBES, PROBES):
        numbers = range(first, first + PROBES)
        rows = await read([page_id(job, name, number) for number in numbers])
        for number, row in zip(numbers, rows, strict=True):
            if row is not None and (page := page_of(row)) is not None:
                return number, page.start
    return 0, 0


async def delete_streams(storage: Storage, rows: Sequence[Record]) -> None:
    """Let the storage prune the streams of these jobs."""
    for row in rows:
        tail = tail_of(row.checkpoints)
        for name in [*streams_of(row.checkpoints), *([LOG] if tail.open or tail.page > 1 else [])]:
            number, there = 1, True
            while there:
                ids = [page_id(row.id, name, n) for n in range(number, number + DELETED)]
                pages = [page for page in await storage.get(ids) if page is not None]
                await storage.settle([_released(page) for page in pages])
                number, there = number + DELETED, bool(pages)


def _released(page: Record) -> Outcome:
    state = page.state if page.state.final else State.SUCCEEDED
    return Outcome(id=page.id, version=page.version, state=state, keep=0.0)
