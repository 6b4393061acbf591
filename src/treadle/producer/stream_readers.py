"""Reads the pages of streams. Readers of this process at the end of one stream share its watch and its reads."""

from __future__ import annotations

import asyncio
import contextvars
import copy
from collections import deque
from collections.abc import AsyncGenerator, Iterator, Sequence
from contextlib import aclosing, contextmanager
from typing import Final

from msgspec import Struct

from treadle.concurrency.spawn import started
from treadle.core.errors import StorageError
from treadle.core.model import Record
from treadle.storage import whole
from treadle.storage.contract import Storage
from treadle.workflow.streams import Page, check_page, page_after, page_id, page_in, page_of

AT_ONCE: Final = 32  # pages of one read while a reader catches up
NEXT: Final = 4  # pages of one read at the end of the stream
KEPT: Final = 64  # pages that a hub keeps: a reader that is further behind reads by itself
LOOK_EVERY: Final = 5.0  # s between two looks without a notification

Key = tuple[asyncio.AbstractEventLoop, int, str]


class StreamPlace(Struct, frozen=True):
    """A stream of a job. `row`: the job as the caller has read it."""

    storage: Storage
    row: Record
    name: str

    def id(self, number: int) -> str:
        return page_id(self.row.id, self.name, number)

    async def read(self, ids: Sequence[str]) -> Sequence[Record | None]:
        """These rows with their texts."""
        return await whole(self.storage, await self.storage.get(ids), "result")

    async def pages(self, first: int, most: int) -> list[Page | None]:
        """The pages from this one on that have ended; None for one without entries. Raises ForeignRow and BadResult."""
        return self.ended(await self.read([self.id(number) for number in range(first, first + most)]))

    def ended(self, rows: Sequence[Record | None]) -> list[Page | None]:
        """The pages of these rows, up to the first one that is missing or open."""
        pages = list[Page | None]()
        for row in rows:
            if row is None or not check_page(row, self.row.job.queue, self.row.id, self.name).state.final:
                break
            pages.append(page_of(row))
        return pages


class StreamReaders:
    """The streams that this process reads now."""

    def __init__(self) -> None:
        self._hubs: dict[Key, _Hub] = {}

    async def pages(self, place: StreamPlace, number: int) -> AsyncGenerator[Page, None]:
        """The pages with entries from this number on: those that are stored, and then each as it comes, until the job
        has ended. The last entries of a log may be in the row of its job, and in a page later: they come once. Raises
        StorageError, ForeignRow and BadResult."""
        end = 0
        async with aclosing(self._all(place, number)) as pages:
            async for page in pages:
                if page is not None and (new := page_after(page, end)) is not None:
                    end = new.end
                    yield new

    async def _all(self, place: StreamPlace, number: int) -> AsyncGenerator[Page | None, None]:
        is_behind = True
        while is_behind:
            found = await place.pages(number, AT_ONCE)
            is_behind, number = len(found) == AT_ONCE, number + len(found)
            for page in found:
                yield page
        if place.row.state.final:  # it had ended before this read
            yield page_in(place.row, place.name)
            return
        with self._joined(place, number) as hub:
            last: Page | None = None
            while True:
                pages = await hub.pages(number, last)
                if pages is None and not (pages := await place.pages(number, AT_ONCE)):
                    return  # the page was deleted since
                if not pages:
                    if hub.last == last:
                        return
                    last = hub.last
                    yield last
                number += len(pages)
                for page in pages:
                    yield page

    @contextmanager
    def _joined(self, place: StreamPlace, number: int) -> Iterator[_Hub]:
        """The hub of this stream, while a reader waits there for the page of this number."""
        key: Key = (asyncio.get_running_loop(), id(place.storage), place.id(0))
        hub = self._hubs.get(key)
        if hub is None:
            hub = self._hubs[key] = _Hub(place, number)
        hub.readers += 1
        try:
            yield hub
        finally:
            hub.readers -= 1
            if not hub.readers:
                hub.stop()
                if self._hubs.get(key) is hub:
                    del self._hubs[key]


class _Hub:
    """The end of one stream, for all its readers in this process. `readers`: how many they are. `last`: the entries in
    the row of the job, which come after the pages."""

    def __init__(self, place: StreamPlace, number: int) -> None:
        """`number`: the next page."""
        self.readers = 0
        self.last: Page | None = None
        self._place, self._next = place, number
        self._kept: deque[Page | None] = deque(maxlen=KEPT)
        self._is_over = False
        self._error: Exception | None = None
        self._changed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._task = started(self._follow(), context=contextvars.Context())

    async def pages(self, number: int, last: Page | None) -> list[Page | None] | None:
        """The pages from this one on, as soon as there are any; []: `self.last` is another one, or the stream is over.
        None: they are not kept any more."""
        while number >= self._next:
            if self._error is not None:
                raise copy.copy(self._error)
            if self._is_over or self.last != last:
                return []
            await asyncio.shield(self._changed)
        first = self._next - len(self._kept)
        return list(self._kept)[number - first :] if number >= first else None

    def stop(self) -> None:
        self._task.cancel()

    def _notify(self) -> None:
        changed, self._changed = self._changed, asyncio.get_running_loop().create_future()
        changed.set_result(None)

    async def _follow(self) -> None:
        try:
            await self._read_on()
        except Exception as error:
            self._error = error
        finally:
            self._is_over = True
            self._notify()

    async def _read_on(self) -> None:
        """Read the next pages, at each notification, until the job has ended."""
        place, job = self._place, self._place.row.id
        has_ended, came = False, 0  # `came`: pages of which a notification came
        of_job, of_page = _heard(place.storage, job), _heard(place.storage, place.id(self._next))
        looks_at_job, last = True, self.last
        try:
            while True:
                await asyncio.sleep(0)  # watch before the read, so that nothing in between is missed
                ids = [place.id(number) for number in range(self._next, self._next + NEXT)]
                *rows, row = await place.read([*ids, *([job] if looks_at_job else ids[:1])])
                pages = place.ended(rows)
                if pages:
                    self._kept.extend(pages)
                    self._next += len(pages)
                    self._notify()
                elif last != self.last:
                    self.last = last
                    self._notify()
                if has_ended and not pages:
                    return
                if looks_at_job:
                    last = None if row is None else page_in(row, place.name)
                    has_ended = has_ended or row is None or row.state.final
                looks_at_job = False
                if has_ended or last != self.last or len(pages) != came:
                    # Once more: of the rows of one read, the pages may be older than the job.
                    came = 0
                else:
                    await asyncio.wait([of_page, of_job], return_when=asyncio.FIRST_COMPLETED)
                    came = int(of_page.done() and of_page.result())
                if looks_at_job := of_job.done():
                    of_job = _heard(place.storage, job)
                of_page.cancel()
                of_page = _heard(place.storage, place.id(self._next + came))
        finally:
            of_job.cancel()
            of_page.cancel()
            await asyncio.wait([of_job, of_page])  # leave no task behind


def _heard(storage: Storage, id: str) -> asyncio.Task[bool]:
    """Whether a notification about this row comes within some seconds."""

    async def watch() -> bool:
        try:
            return bool(await storage.watch([f"job:{id}"], LOOK_EVERY))
        except StorageError:
            await asyncio.sleep(LOOK_EVERY)
            return False

    return asyncio.ensure_future(watch())
