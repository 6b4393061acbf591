"""The part of `app.jobs` that reads the streams of jobs."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import aclosing
from typing import Any, Final

from treadle.admin.job_filters import id_of
from treadle.admin.job_messages import JobMessages
from treadle.core.errors import BadOption, Stale
from treadle.core.model import Record
from treadle.core.own_checkpoints import own_checkpoints
from treadle.core.stream_model import Chunk, Reset
from treadle.durable import check_name, decoded_as
from treadle.execution.job_run import refuse_to_wait, waits_here
from treadle.producer import StreamPlace
from treadle.tasks.when import HasId
from treadle.workflow.streams import (
    Entry,
    Page,
    entries_of,
    find_page,
    find_tail,
    first_kept,
    folded,
    names_of,
    note_of,
    page_after,
    page_in,
)

AT_ONCE: Final = 64  # pages of one read
FEW: Final = 16  # pages of one read for a caller that gets them in parts
PAGE: Final = 1024 * 1024  # bytes of the entries of such a part


class JobStreams(JobMessages):
    """`JobMessages` with streams."""

    async def streams(self, job: HasId | str) -> Sequence[str]:
        """The names of the streams that a job has written; `log` has the log lines of its runs. Raises UnknownJob."""
        return names_of((await self.whole(job)).checkpoints)

    async def stream(self, job: HasId | str, name: str, *, returns: Any = Any) -> list[Any]:
        """The values that a job has written to this stream up to now, decoded as `returns`, without those that a later
        try of their step has made void. [] for a stream that was not written.

        Raises UnknownJob; Stale if the first values are no longer kept; BadResult and BadStep.
        """
        place, first = await self._place(job, name, 0)
        tail = await find_tail(place.read, place.row.id, name, _pages_known(place.row, name))
        entries = list[Entry]()
        for number in range(first, tail.number + 1, AT_ONCE):
            for page in await place.pages(number, min(AT_ONCE, tail.number + 1 - number)):
                entries += [] if page is None else entries_of(page)
        if (last := page_in(place.row, name)) is not None:
            last = page_after(last, entries[-1].offset + 1 if entries else 0)
            entries += [] if last is None else entries_of(last)
        return [decoded_as(entry.text, returns, "stream") for entry in folded(entries)]

    def follow(
        self, job: HasId | str, name: str, start: int = 0, *, returns: Any = Any
    ) -> AsyncIterator[Chunk | Reset]:
        """The entries of this stream from the offset `start` on: those that are stored, and then each as it is written,
        until the job has ended. `async for entry in app.jobs.follow(job, "tokens"):`

        A `Chunk` has a value, decoded as `returns`. A `Reset` says that chunks of a step are void, as it runs again. A
        reader that was cut off continues with `start=` one more than the last offset that it has seen. The job need not
        have written to the stream yet. Readers of one process share their reads.

        Raises UnknownJob; Stale if the entries at `start` are no longer kept; BadOption, BadStep, BadResult and
        StorageError.
        """
        return self._followed(job, name, start, returns)

    async def _followed(
        self, job: HasId | str, name: str, start: int, returns: Any
    ) -> AsyncGenerator[Chunk | Reset, None]:
        async with aclosing(self.follow_pages(job, name, start)) as pages:
            async for entries in pages:
                for entry in entries:
                    yield entry_of(entry, returns)

    async def follow_pages(self, job: HasId | str, name: str, start: int = 0) -> AsyncGenerator[list[Entry], None]:
        """As `follow`: the entries that come together, with encoded values."""
        number: object = start
        if isinstance(number, bool) or not isinstance(number, int) or start < 0:
            raise BadOption("start", f"expected an offset, 0 or more, found {start!r}")
        refuse_to_wait("app.jobs.follow")
        waits_here()
        place, first = await self._place(job, name, start)
        async with aclosing(self._client.streams.pages(place, first)) as pages:
            async for page in pages:
                if entries := [entry for entry in entries_of(page) if entry.offset >= start]:
                    yield entries

    async def page(self, job: HasId | str, name: str, start: int, limit: int) -> tuple[list[Entry], bool]:
        """The entries from `start` on that are stored now, `limit` at most and about `PAGE` bytes of them, with
        encoded values; and whether no entry can follow them. Raises as `follow` does."""
        place, number = await self._place(job, name, start)
        entries, pages = list[Entry](), list[Page | None]()
        while len(entries) < limit and sum(len(entry.text) for entry in entries) < PAGE:
            pages = await place.pages(number, FEW)
            if not pages:
                break
            number += len(pages)
            entries += [entry for page in pages if page is not None for entry in entries_of(page)]
            entries = [entry for entry in entries if entry.offset >= start]
        if not pages and (last := page_in(place.row, name)) is not None:
            last = page_after(last, entries[-1].offset + 1 if entries else start)
            entries += [] if last is None else entries_of(last)
        return entries[:limit], not pages and place.row.state.final and len(entries) <= limit

    async def _place(self, job: HasId | str, name: str, start: int) -> tuple[StreamPlace, int]:
        """The stream, and the number of its page with this offset or an earlier one. Raises Stale if the page was
        pruned."""
        check_name(name)
        row = await self.get(id_of(job))
        place, near = StreamPlace(await self._storage(), row, name), _pages_known(row, name)
        first, offset = 1, 0
        if near > 1:
            first, offset = await first_kept(place.read, row.id, name, near)
        if start < offset or not first:
            rest = f"; start={offset} reads the rest" if first else ""
            raise Stale(row.id, f"the first values of its stream {name!r} are no longer kept{rest}")
        if start == offset:
            return place, first
        tail = await find_tail(place.read, row.id, name, near)
        return place, await find_page(place.read, row.id, name, start, first, tail.number)


def _pages_known(row: Record, name: str) -> int:
    """A page that the stream had, or that was its next one, when a run of the job last stored checkpoints."""
    return note_of(own_checkpoints(row.checkpoints), name).page


def entry_of(entry: Entry, returns: Any = Any) -> Chunk | Reset:
    """The entry as readers get it."""
    if entry.to is not None:
        return Reset(entry.offset, entry.to, entry.step)
    return Chunk(entry.offset, decoded_as(entry.text, returns, "follow"), entry.step)
