"""The operations on the streams of jobs: their names, and their entries as pages or as server-sent events."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from typing import TYPE_CHECKING, Any, Final

import msgspec
from starlette.responses import Response

from treadle.admin import Jobs, ShownStream
from treadle.core.clock import wall
from treadle.core.errors import UnknownJob
from treadle.core.model import Record
from treadle.server.auth import rights
from treadle.server.errors import Refused
from treadle.server.longpoll import BEAT, EventStream, LongPoll
from treadle.server.middleware import unchanged
from treadle.server.operation import Call, Operation
from treadle.server.routes.shown import jobs_of
from treadle.server.settings import Settings
from treadle.server.stream_messages import StreamEntry, StreamNames, StreamPage, StreamRead
from treadle.storage import messages
from treadle.workflow.streams import Entry, names_of

if TYPE_CHECKING:
    from treadle.app.core import AppCore

EVENTS: Final = "text/event-stream"
KEPT: Final = 64  # pages of which the events are kept for the next reader
END: Final = "end"  # the id of the last event: a client that sends it has everything
_encode = msgspec.json.Encoder().encode


class StreamRoutes:
    """The operations on the streams of one app's jobs."""

    def __init__(self, core: AppCore, settings: Settings, waiting: LongPoll) -> None:
        self._core, self._settings, self._waiting = core, settings, waiting
        self._kept: dict[tuple[object, ...], bytes] = {}

    @Operation("GET /v1/jobs/{id}/streams", tag="jobs", scope="read", others=(404,))
    async def names(self, call: Call[None, messages.Nothing]) -> StreamNames:
        """List the streams of a job."""
        return StreamNames(names_of((await self._row(call)).checkpoints))

    @Operation("GET /v1/jobs/{id}/streams/{name}", tag="jobs", scope="read", gives=StreamPage, others=(204, 404, 409))
    async def read(self, call: Call[None, StreamRead]) -> object:
        """Read a stream of a job; with `Accept: text/event-stream`, follow it until the job ends.

        Each event has the offset of its entry as its id, so `Last-Event-ID` continues behind the last one.
        """
        row, name, start = await self._row(call), call.part("name"), call.query.start
        if row.state.final and name not in (names := names_of(row.checkpoints)):
            others = f"; it has {', '.join(names)}" if names else ""
            raise Refused(404, "not_found", f"job {row.id} has ended without a stream {name!r}{others}", id=row.id)
        # While the row has this version, its secrets are the same.
        key = row.id, row.created_at, row.version, name, call.redaction.shapes
        shown = Shown(ShownStream(row, call.redaction), key, self._kept)
        jobs, follows = jobs_of(self._core, call), EVENTS in call.request.headers.get("accept", "")
        if follows and (last := call.request.headers.get("last-event-id")):
            if last == END:
                return Response(status_code=204)
            start = _behind(last)
        entries: Sequence[Entry]
        # Before the response of events begins, nothing is read: this raises what is wrong with the start.
        entries, has_ended = await jobs.page(row.id, name, start, 0 if follows else call.query.limit)
        if follows:
            return EventStream(self._events(call, row, shown, start))
        if not entries and not has_ended and call.query.wait:
            entries, has_ended = await self._next(call, jobs, start)
        next = entries[-1].offset + 1 if entries else start
        return StreamPage([shown.entry(entry) for entry in entries], next, has_ended)

    async def _row(self, call: Call[Any, Any]) -> Record:
        """The row that the path names. For a token without a right to it the job is unknown."""
        row = await jobs_of(self._core, call).get(call.part("id"))
        if not rights.sees(call.token, row):
            raise UnknownJob(row.id)
        return row

    async def _next(self, call: Call[None, StreamRead], jobs: Jobs, start: int) -> tuple[Sequence[Entry], bool]:
        """Wait for the next entries: those that come together, and whether none can follow."""

        async def first() -> list[Entry]:
            async with aclosing(jobs.follow_pages(call.part("id"), call.part("name"), start)) as pages:
                return await anext(pages, [])

        try:
            async with asyncio.timeout(min(call.query.wait, self._settings.max_wait)):
                entries = await self._waiting.unless_stopped(first(), call.request.receive)
        except TimeoutError:
            entries = None
        await unchanged(call.request)
        return (entries or [])[: call.query.limit], entries == []

    async def _events(self, call: Call[Any, Any], row: Record, shown: Shown, start: int) -> AsyncGenerator[bytes, None]:
        """The events of a stream, those of one page at a time."""
        jobs, name = jobs_of(self._core, call), call.part("name")
        async with aclosing(jobs.follow_pages(row.id, name, start)) as pages:
            async for text in self._until_end(call, shown, pages):
                yield text
        if not self._waiting.stopping.is_set() and not call.token.ended(wall()):
            state = (await jobs.get(row.id)).state
            yield b"id: %s\nevent: end\ndata: %s\n\n" % (END.encode(), _encode({"state": state}))

    async def _until_end(
        self, call: Call[Any, Any], shown: Shown, pages: AsyncGenerator[list[Entry], None]
    ) -> AsyncGenerator[bytes, None]:
        """The events of these pages, and a comment after each `BEAT` without one, until the server stops."""
        while True:
            coming = asyncio.ensure_future(_page(pages))
            try:
                while not coming.done():
                    await self._waiting.unless_stopped(asyncio.wait([coming], timeout=BEAT))
                    if self._waiting.stopping.is_set() or call.token.ended(wall()):
                        return
                    if not coming.done():
                        yield b": still here\n\n"
                if (entries := coming.result()) is None:
                    return
                yield shown.events(entries)
            finally:
                coming.cancel()
                await asyncio.wait([coming])  # leave no task behind


class Shown:
    """The entries of one stream for one caller. `kept`: events by their stream, their caller's right and their
    offsets."""

    def __init__(self, stream: ShownStream, key: tuple[object, ...], kept: dict[tuple[object, ...], bytes]) -> None:
        self._stream, self._key, self._kept = stream, key, kept

    def entry(self, entry: Entry) -> StreamEntry:
        if entry.to is not None:
            return StreamEntry(offset=entry.offset, step=entry.step, to=entry.to)
        return StreamEntry(offset=entry.offset, step=entry.step, value=self._stream.value(entry.text))

    def events(self, entries: Sequence[Entry]) -> bytes:
        """The entries that came together, as events. Readers of a stream get the same ones: 1,000 chunks for each of
        100 readers take 1.8 s of CPU instead of 3.4."""
        key = (*self._key, entries[0].offset, entries[-1].offset)
        text = self._kept.get(key)
        if text is None:
            text = self._kept[key] = b"".join(
                b"id: %d\nevent: %s\ndata: %s\n\n"
                % (entry.offset, b"chunk" if entry.to is None else b"reset", _encode(self.entry(entry)))
                for entry in entries
            )
            while len(self._kept) > KEPT:
                del self._kept[next(iter(self._kept))]
        return text


async def _page(pages: AsyncGenerator[list[Entry], None]) -> list[Entry] | None:
    return await anext(pages, None)


def _behind(last: str) -> int:
    """The offset behind that of the last event. Raises Refused (422)."""
    if not (last.isascii() and last.isdigit() and len(last) < 10):
        raise Refused(422, "wrong_header", f"Last-Event-ID: expected the id of an event, found {last[:40]!r}")
    return int(last) + 1
