"""Acts on many jobs in the background of a process: by ids, by filter, or by group of failures.

An operation reads and changes a few hundred rows at a time, so its memory does not depend on how many match. If it is
stopped, if the storage fails, or if its process dies, the rows that it has changed stay changed.
"""

from __future__ import annotations

import asyncio
import logging
import sys
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from typing import Final, Literal

from msgspec import Struct
from msgspec.structs import replace

from treadle.admin import acts
from treadle.admin.acts import Acts
from treadle.admin.audit import IDS, Act, Audit, Begun, Receipt, Source
from treadle.admin.selection import Selection
from treadle.core.errors import TreadleError
from treadle.core.ids import UuidV7
from treadle.core.model import Record, State
from treadle.core.open_entry import open_entry
from treadle.core.redaction import without_secrets
from treadle.producer import Client
from treadle.storage.contract import Storage

log = logging.getLogger("treadle")

AT_ONCE: Final = 4  # operations that one process runs at once; beyond that it runs each caller's first one only
MOST: Final = 32  # operations that it runs at once in all
KEPT: Final = 3_600.0  # s for which an ended operation is listed
LISTED: Final = 200  # ended operations that are listed
STOPPING: Final = 5.0  # s that operations get to stop when the process ends

Verb = Literal["retry", "cancel", "run_now", "delete"]
RunState = Literal["running", "done", "stopped", "failed"]
Listener = Callable[["Operation", tuple[str, ...]], None]
"""Called with each change of an operation, and the queues that it is restricted to; (): all."""


class Operation(Struct, frozen=True, kw_only=True):
    """The progress of one operation.

    words        the jobs that it is about
    done         jobs that it has changed, with those below them
    passed_over  jobs that it has left as they were, by reason
    scanned      jobs that it has looked at
    total        jobs that it will look at, if their number is known
    more         further jobs matched, and were left alone because it may act on so many only
    error        why it failed; what it has done stays done
    """

    id: str
    act: Verb
    words: str
    state: RunState
    done: int = 0
    passed_over: Mapping[str, int] = {}
    scanned: int = 0
    total: int | None = None
    more: bool = False
    began_at: float = 0.0
    ended_at: float | None = None
    by: str = ""
    error: str | None = None


class RequestKey(Struct, frozen=True):
    """The caller's name for a request to begin an operation, and a digest of what it asks for."""

    key: str
    digest: bytes


class KeyReused(Exception):
    """The caller has begun another operation with this key."""


class TooManyOperations(Exception):
    """This process runs as many operations at once as it may, or this caller runs its share of them."""


class _Run:
    """One operation and the task that runs it."""

    def __init__(
        self, shown: Operation, selection: Selection, tree: bool, at_most: int | None, request: RequestKey | None
    ) -> None:
        self.shown, self.selection, self.tree, self.request = shown, selection, tree, request
        self.room = sys.maxsize if at_most is None else at_most  # jobs that it may still act on
        self.stopping = False
        self.receipt = Receipt()
        self.receipt.done = 0
        self.batch: set[str] = set()
        self.task: asyncio.Task[None] | None = None

    def note(self, row: Record, reason: str | None) -> None:
        """Count one job, see `acts.Note`. Jobs below those of the batch count only if they were changed."""
        if not row.job.task:
            return
        if reason is None:
            self.receipt.done = (self.receipt.done or 0) + 1
            if len(self.receipt.ids) < IDS:
                self.receipt.ids.append(row.id)
        elif row.id in self.batch:
            self.pass_over(_reason(row, reason))

    def pass_over(self, reason: str, count: int = 1) -> None:
        self.receipt.passed_over[reason] = self.receipt.passed_over.get(reason, 0) + count


class Operations:
    """The operations of one process."""

    def __init__(
        self, client: Client, storage: Callable[[], Awaitable[Storage]], audit: Audit, now: Callable[[], float]
    ) -> None:
        self._client, self._storage, self._audit, self._now = client, storage, audit, now
        self._new_id = UuidV7()
        self._runs: dict[str, _Run] = {}
        self._listeners: list[Listener] = []

    def listen(self, listener: Listener) -> None:
        """Call `listener` at each change of any operation. It must not raise."""
        self._listeners.append(listener)

    async def start(
        self,
        act: Verb,
        selection: Selection,
        *,
        tree: bool,
        by: str,
        source: Source,
        at_most: int | None = None,
        request: RequestKey | None = None,
    ) -> Operation:
        """Begin an operation. Raises TooManyOperations, KeyReused and StorageError; nothing is changed then.

        tree     a cancellation includes the children
        at_most  jobs of the selection to act on; their children are not counted
        request  a repeated one begins nothing, and returns the same operation
        """
        if (known := self.begun(by, request)) is not None:
            return known
        running = [run.shown.by for run in self._runs.values() if run.shown.state == "running"]
        if len(running) >= (AT_ONCE if by in running else MOST):  # one caller must not use up the room of others
            raise TooManyOperations
        id = self._new_id()
        shown = Operation(
            id=id,
            act=act,
            words=without_secrets(selection.words),
            state="running",
            total=len(selection.ids) or None,
            began_at=self._now(),
            by=by,
        )
        run = self._runs[id] = _Run(
            shown, selection, tree, at_most, request
        )  # before the first await, so that the bound holds
        try:
            entry = await self._audit.begin(Act(by, source, f"jobs.{act}", "", selection.words))
        except BaseException:
            del self._runs[id]
            raise
        run.task = asyncio.create_task(self._run(run, entry))
        self._tell(run)
        return run.shown

    def begun(self, by: str, request: RequestKey | None) -> Operation | None:
        """The operation that this request of this caller has begun, if any is listed. Raises KeyReused."""
        self._forget()
        if request is None:
            return None
        for run in self._runs.values():
            if run.request is not None and (run.shown.by, run.request.key) == (by, request.key):
                if run.request != request:
                    raise KeyReused
                return run.shown
        return None

    def get(self, id: str, queues: tuple[str, ...] = ()) -> Operation | None:
        """The operation; None if it is unknown, or not restricted to these queues."""
        run = self._find(id, queues)
        return None if run is None else run.shown

    def all(self, queues: tuple[str, ...] = ()) -> list[Operation]:
        """The operations that run, and those that ended within the last hour, the newest first."""
        self._forget()
        return [run.shown for run in reversed(self._runs.values()) if _visible(run, queues)]

    def stop(self, id: str, queues: tuple[str, ...] = ()) -> Operation | None:
        """Make an operation stop after the rows that it is changing now. None if it is unknown."""
        run = self._find(id, queues)
        if run is None:
            return None
        run.stopping = True
        return run.shown

    async def close(self) -> None:
        """Stop all operations, because the process ends."""
        tasks = [run.task for run in self._runs.values() if run.task is not None and not run.task.done()]
        for run in self._runs.values():
            run.stopping = True
        if tasks:
            _, late = await asyncio.wait(tasks, timeout=STOPPING)
            for task in late:
                task.cancel()
            if late:
                await asyncio.wait(late)

    def _find(self, id: str, queues: tuple[str, ...]) -> _Run | None:
        run = self._runs.get(id)
        return run if run is not None and _visible(run, queues) else None

    def _forget(self) -> None:
        ended = [run.shown for run in self._runs.values() if run.shown.ended_at is not None]
        old = [operation.id for operation in ended if self._now() - (operation.ended_at or 0.0) > KEPT]
        for id in {*old, *(operation.id for operation in ended[:-LISTED])}:
            del self._runs[id]

    def _tell(self, run: _Run) -> None:
        for listener in self._listeners:
            listener(run.shown, run.selection.queues)

    # --- running

    async def _run(self, run: _Run, entry: Begun) -> None:
        state: RunState = "done"
        open_entry.set(entry.row.id)  # applies to this asyncio task
        try:
            done = await self._all(run)
            state = "done" if done else "stopped"
        except TreadleError as error:
            state, run.receipt.error = "failed", str(error)
        except asyncio.CancelledError:
            state, run.receipt.error = "stopped", "the process ended"
        except Exception as error:  # a defect of Treadle; the operation must not stay listed as running
            log.exception("operation %s failed", run.shown.id)
            state, run.receipt.error = "failed", f"an error of Treadle; the log has it: {type(error).__name__}"
        self._update(run, state=state, ended_at=self._now(), error=run.receipt.error)
        receipt = run.receipt
        if state == "stopped" and receipt.error is None:
            receipt.error = "stopped"
        with suppress(asyncio.CancelledError):
            await self._audit.end(entry, receipt)

    async def _all(self, run: _Run) -> bool:
        """Act on all rows -> False if it was stopped before."""
        own = Acts(self._client, self._storage, run.selection.queues, run.note)
        async for rows, examined, others in run.selection.read(await self._storage()):
            if self._stops(run):
                return False
            for reason, count in others.items():
                run.pass_over(reason, count)
            allowed = rows[: run.room]
            run.room -= len(allowed)
            for start in range(0, len(allowed), acts.GROUP):
                part = allowed[start : start + acts.GROUP]
                run.batch = {row.id for row in part}
                await self._act(own, run, part)
                if self._stops(run) and start + acts.GROUP < len(rows):
                    self._update(run, scanned=run.shown.scanned + start + len(part))
                    return False
            more = len(allowed) < len(rows)
            self._update(run, scanned=run.shown.scanned + examined, more=more)
            if more:
                return True
            await asyncio.sleep(0)
        return True

    @staticmethod
    def _stops(run: _Run) -> bool:
        return run.stopping  # read again: it may change at every await

    async def _act(self, own: Acts, run: _Run, rows: list[Record]) -> None:
        if run.shown.act == "cancel":
            await own.cancel(rows, run.tree)
        elif run.shown.act == "retry":
            await own.reopen(rows, raising=False)
        else:
            await own.settle(rows, acts.at_once if run.shown.act == "run_now" else acts.delete_now)

    def _update(self, run: _Run, **fields: object) -> None:
        receipt = run.receipt
        run.shown = replace(run.shown, done=receipt.done, passed_over=dict(receipt.passed_over), **fields)
        self._tell(run)


def _visible(run: _Run, queues: tuple[str, ...]) -> bool:
    own = run.selection.queues
    return not queues or (bool(own) and set(own) <= set(queues))


def _reason(row: Record, reason: str) -> str:
    """The reason in a form that many jobs share, so that reasons can be counted."""
    if reason == acts.UNFIT:
        return f"it {'was' if row.state is State.CANCELLED else 'has' if row.state.final else 'is'} {row.state}"
    return "its key is held by another job" if " is held by " in reason else reason
