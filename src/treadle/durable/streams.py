"""Writes the streams of one run: chunks wait for each other for a moment, and go in pages.

The chunks of a step are stored before its result. If the step runs again, its earlier chunks are void before its next
one, or at its end (`stream_log.py`).
"""

from __future__ import annotations

import asyncio
import contextvars
import copy
from collections.abc import Iterator
from typing import Final

from treadle.concurrency.spawn import started
from treadle.core import defaults
from treadle.core.errors import BadOption, BadStep
from treadle.core.model import Outcome, State
from treadle.durable.branches import step_here
from treadle.durable.checkpoints import check_name
from treadle.durable.state import DurableState
from treadle.durable.stream_log import MOST_WAITING, SHORTEST, StreamLog, Waiting, too_large
from treadle.policy.cleanups import is_cleanup
from treadle.serialization.call_codec import Unstorable, encode_any
from treadle.workflow.streams import check_page, streams_of

PACE: Final = 0.1  # s between two pages of a stream, unless much waits
ENOUGH: Final = 16_384  # bytes that wait: they go at once


class RunStreams:
    """The streams of one run, and those that earlier runs of the job have written."""

    def __init__(self, run: DurableState) -> None:
        self._run = run
        self._writers = dict[str, StreamWriter]()

    def writer(self, name: str, keep: float | None = None) -> StreamWriter:
        """The writer of this stream. Raises BadStep for one stream too many."""
        writer = self._writers.get(name)
        if writer is None:
            check_name(name)
            if len({*streams_of(self._run.run.record.checkpoints), *self._writers, name}) > defaults.MAX_STREAMS:
                raise BadStep(name, f"a job writes at most {defaults.MAX_STREAMS} streams; write to one of those")
            writer = self._writers[name] = StreamWriter(self._run, name)
        if keep is not None:
            writer.log.keep = max(keep, SHORTEST)
        return writer

    def _all(self) -> Iterator[StreamWriter]:
        for name in dict.fromkeys([*streams_of(self._run.run.record.checkpoints), *self._writers]):
            yield self.writer(name)

    def adopt(self, name: str, note: str) -> None:
        """A part of the job has written this stream; `note`: its checkpoint."""
        if name not in self._writers and name not in streams_of(self._run.run.record.checkpoints):
            self.writer(name).log.adopt(note)

    async def flush(self) -> None:
        """Store what waits."""
        for writer in tuple(self._writers.values()):
            await writer.flush()

    async def complete(self) -> None:
        """The try of the step that runs here has succeeded; outside of steps, the function of a job that takes none.
        Returns when its chunks are stored, and those of earlier tries are void."""
        step, number = step_here.get()
        for writer in self._all():
            await writer.complete(step, number)

    async def begin_round(self) -> None:
        """The job starts over. Its chunks stay."""
        for writer in self._all():
            await writer.flush()
            await writer.log.begin_round()

    async def conclude(self, outcome: Outcome) -> None:
        """The run ends with this outcome: store what waits. If the job ends, end its open pages, too."""
        try:
            await self.flush()
        finally:
            row = self._run.run.record
            if (outcome.state.final or outcome.function_done) and (row.job.id == self._run.job or is_cleanup(row.job)):
                await self._end_pages()

    async def conclude_lost(self) -> None:
        """The job belongs to another run, or has ended: then end its open pages."""
        [row] = await self._run.backend.get([self._run.job])
        if row is not None and row.state.final:
            await self._end_pages()

    async def _end_pages(self) -> None:
        """End the open pages. Each of them keeps the others of its stream from being pruned."""
        backend, queue, writers = self._run.backend, self._run.run.record.job.queue, list(self._all())
        ended, rows = list[Outcome](), await backend.get([writer.log.next_page for writer in writers])
        for writer, row in zip(writers, rows, strict=True):
            if row is not None and not check_page(row, queue, self._run.job, writer.name).state.final:
                ended.append(Outcome(id=row.id, version=row.version, state=State.SUCCEEDED))
        if ended:
            await backend.settle(ended)

    def lost(self) -> None:
        """The job no longer belongs to this run: nothing more is stored."""
        for writer in self._writers.values():
            writer.stop()


class StreamWriter:
    """Collects the chunks of one stream, on the event loop of the worker. One task stores the pages."""

    def __init__(self, run: DurableState, name: str) -> None:
        self._run, self.name, self.log = run, name, StreamLog(run, name)
        self._waiting: list[Waiting] = []
        self._size = 0  # bytes that wait
        self._to_void: list[tuple[str, int]] = []  # tries that have ended: chunks of other tries of the step are void
        self._hurry = asyncio.Event()
        self._stored_at = float("-inf")
        self._task: asyncio.Task[None] | None = None
        self._waiters: list[asyncio.Future[None]] = []
        self._error: BaseException | None = None

    def waiting(self, value: object) -> Waiting:
        """The chunk, of the try of the step that runs here. Raises BadStep outside of the steps of a durable function,
        BadOption and TooLarge."""
        run, (step, number) = self._run, step_here.get()
        run.backend.check(run.run)
        if step and run.checkpoints.is_over(step):
            raise BadStep(self.name, f"the step {step!r} has ended: a task that it left running writes to the stream")
        if not step:
            if run.checkpoints.has_asked:
                raise BadStep(
                    self.name,
                    "this function takes steps, sleeps or waits, so each of its runs would write this again: write to "
                    'the stream in a step, such as `await here.step("say", out.write, text)`',
                )
            run.checkpoints.written = self.name
        try:
            text = encode_any(value)
        except Unstorable as error:
            raise BadOption("value", f"a chunk of the stream {self.name!r}: {error}") from None
        if (size := len(text.encode())) > defaults.MAX_CHUNK:
            raise too_large(f"a chunk of the stream {self.name!r}", size, defaults.MAX_CHUNK, "write it in parts")
        return Waiting(step, number, text, size)

    async def put(self, chunk: Waiting) -> None:
        """Let the chunk wait for its page. Returns at once unless much waits already."""
        while self._waiting and self._size + chunk.size > MOST_WAITING:
            await self._stored()
        self._raise_error()
        self._waiting.append(chunk)
        self._size += chunk.size
        if self._size >= ENOUGH:
            self._hurry.set()
        self._start()

    async def flush(self) -> None:
        """Store what waits. Raises what has kept a chunk from being stored."""
        self._raise_error()
        while self._waiting or self._to_void:
            self._start()
            self._hurry.set()
            await self._stored()
            self._raise_error()

    async def complete(self, step: str, number: int) -> None:
        """See `RunStreams`."""
        if self.log.has_other(step, number):
            self._to_void.append((step, number))
        await self.flush()
        self.log.complete(step)

    def stop(self) -> None:
        """Store nothing more; writers raise CancelledError."""
        self._fail(asyncio.CancelledError())
        if self._task is not None:
            self._task.cancel()

    def _fail(self, error: BaseException) -> None:
        self._error = self._error or error
        self._waiting, self._to_void, self._size = [], [], 0
        self._notify()

    def _raise_error(self) -> None:
        if isinstance(self._error, Exception):
            raise copy.copy(self._error)
        if self._error is not None:
            raise asyncio.CancelledError

    async def _stored(self) -> None:
        """Wait until the task has stored a page, or has failed."""
        waiter = self._run.backend.loop.create_future()
        self._waiters.append(waiter)
        await waiter

    def _notify(self) -> None:
        for waiter in self._waiters:
            if not waiter.done():
                waiter.set_result(None)
        self._waiters.clear()

    # --- the task that stores pages

    def _start(self) -> None:
        if self._task is None:
            self._task = started(self._work(), loop=self._run.backend.loop, context=contextvars.Context())

    async def _work(self) -> None:
        try:
            while self._waiting or self._to_void:
                await self._pause()
                group, to_void = self._next_group(), tuple(self._to_void)
                if await self.log.store(group, to_void):
                    self._stored_at = self._run.backend.loop.time()
                self._waiting = self._waiting[len(group) :]
                self._size -= sum(chunk.size for chunk in group)
                self._to_void = self._to_void[len(to_void) :]
                self._notify()
        except BaseException as error:  # writers raise it
            self._fail(error)
        finally:
            self._task = None

    async def _pause(self) -> None:
        """Let chunks come together, unless the last page is some time ago, much waits, or a caller waits."""
        loop = self._run.backend.loop
        if (pause := self._stored_at + PACE - loop.time()) > 0:
            timer = loop.call_later(pause, self._hurry.set)
            try:
                await self._hurry.wait()
            finally:
                timer.cancel()
        self._hurry.clear()

    def _next_group(self) -> list[Waiting]:
        """The chunks of the next page: at least one if any waits."""
        group, size = list[Waiting](), 0
        for chunk in self._waiting:
            size += chunk.size
            if group and size > MOST_WAITING:
                break
            group.append(chunk)
        return group
