"""Reads the pages of streams. Readers of this process at the end of one stream share its watch and its reads."""

from __future__ import annotations

import asyncio
import contextvars
import copy
from collections import deque
from collections.abc import AsyncIterator, Sequence
from typing import Final

from msgspec import Struct

from treadle.concurrency.spawn import started
from treadle.core.errors import StorageError
from treadle.core.model import Record
from treadle.storage import whole
from treadle.storage.contract import Storage
from treadle.workflow.streams import Page, check_page, page_id, page_of

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

    async def pages(self, place: StreamPlace, number: int) -> AsyncIterator[Page]:
        """The pages with entries from this number on: those that are stored, and then each as it comes, until the job
        has ended. Raises StorageError, ForeignRow and BadResult."""
        key: Key = (asyncio.get_running_loop(), id(place.storage), place.id(0))
        hub: _Hub | None = None
        try:
            while True:
                if hub is not None and (pages := await hub.pages(number)) is not None:
                    if not pages:
                        return
                else:
                    pages = await place.pages(number, AT_ONCE)
                    if not pages and (hub is not None or place.row.state.final):
                        return  # the job had ended before this read, or the page was deleted since
                    if not pages:
                        hub = self._hubs.get(key)
                        if hub is None:
                            hub = self._hubs[key] = _Hub(place, number)
                        hub.readers += 1
                number += len(pages)
                for page in pages:
                    if page is not None:
                        yield page
        finally:
            if hub is not None:
                hub.readers -= 1
                if not hub.readers:
                    hub.stop()
                    if self._hubs.get(key) is hub:
                        del self._hubs[key]


class _Hub:
    """The end of one stream, for all its readers in this process. `readers`: how many they are."""

    def __init__(self, place: StreamPlace, number: int) -> None:
        """`number`: the next page."""
        self.readers = 0
        self._place, self._next = place, number
        self._kept: deque[Page | None] = deque(maxlen=KEPT)
        self._is_over = False
        self._error: Exception | None = None
        self._changed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._task = started(self._follow(), context=contextvars.Context())

    async def pages(self, number: int) -> list[Page | None] | None:
        """The pages from this one on, as soon as there are any; []: the stream is over. None: they are not kept any
        more."""
        while number >= self._next:
            if self._error is not None:
                raise copy.copy(self._error)
            if self._is_over:
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
        has_ended, looks_at_job, came = False, True, 0  # `came`: pages of which a notification came
        while True:
            watched = place.id(self._next + came)
            heard = asyncio.ensure_future(_heard(place.storage, [f"job:{watched}", f"job:{job}"]))
            try:
                await asyncio.sleep(0)  # watch before the read, so that a page in between is noticed
                ids = [place.id(number) for number in range(self._next, self._next + NEXT)]
                *rows, row = await place.read([*ids, *([job] if looks_at_job else ids[:1])])
                pages = place.ended(rows)
                if pages:
                    self._kept.extend(pages)
                    self._next += len(pages)
                    self._notify()
                elif has_ended:
                    return
                if looks_at_job and (row is None or row.state.final):
                    has_ended = True  # of the rows of one read, pages may be the earlier ones: read them once more
                looks_at_job = False
                if has_ended or len(pages) != came:
                    came = 0
                    continue
                topics = await heard
                came = int(f"job:{watched}" in topics)
                looks_at_job = not topics or f"job:{job}" in topics
            finally:
                heard.cancel()
                await asyncio.wait([heard])  # leave no task behind


async def _heard(storage: Storage, topics: Sequence[str]) -> set[str]:
    """The topics that were published within some seconds."""
    try:
        return await storage.watch(topics, LOOK_EVERY)
    except StorageError:
        await asyncio.sleep(LOOK_EVERY)
        return set()
