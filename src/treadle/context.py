"""What a running function may ask about its own job: `current()`.

Without it a task would not know its id, its fencing token, or that it should stop.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextvars import ContextVar
from datetime import datetime
from typing import Any

import msgspec

from treadle.clock import moment
from treadle.errors import BadOption, TreadleError
from treadle.model import Record


class NotRunning(TreadleError, RuntimeError):
    """`current()` was called outside a job."""


Results = Callable[[Sequence[str]], Awaitable[list[Any]]]
"""Ids to what became of them: a result, or the exception that says why there is none."""


class Context:
    """The job that runs here. Reading it costs nothing; `progress` reaches the storage with the next heartbeat."""

    __slots__ = ("_cancelled", "_noted", "_results", "note", "record", "why", "worker")

    def __init__(self, record: Record, worker: str, noted: Callable[[], None], results: Results | None = None) -> None:
        self.record, self.worker, self._results = record, worker, results
        self.note: str | None = None
        self.why: str | None = None  # why it is to stop: timeout, deadline, lost, stop
        self._noted = noted
        self._cancelled: threading.Event | None = None

    @property
    def id(self) -> str:
        """Stable across attempts: the idempotency key for effects outside."""
        return self.record.job.id

    @property
    def task(self) -> str:
        return self.record.job.task

    @property
    def attempt(self) -> int:
        """1 for the first try; tries that were deferred or lost do not count."""
        return self.record.attempt + 1

    @property
    def lost(self) -> int:
        """How many leases ran out on this job before."""
        return self.record.lost

    @property
    def version(self) -> int:
        """Rises with every claim: a fencing token for your own writes ("only if the stored token is lower")."""
        return self.record.version

    @property
    def workflow(self) -> str:
        """The id of the first job of this workflow; its own if it is that."""
        return self.record.job.root or self.record.job.id

    @property
    def parent(self) -> str | None:
        return self.record.job.parent

    @property
    def after(self) -> tuple[str, ...]:
        """The ids it waited for."""
        return self.record.after

    @property
    def deadline(self) -> datetime | None:
        at = self.record.deadline_at
        return None if at is None else moment(at)

    @property
    def error(self) -> str | None:
        """Why the last attempt failed, as stored; None on the first."""
        return self.record.error

    @property
    def headers(self) -> Mapping[str, str]:
        return dict(self.record.job.headers)

    @property
    def labels(self) -> tuple[str, ...]:
        return self.record.job.labels

    @property
    def cancelled(self) -> bool:
        """Whether the function should stop: time is up, the job was cancelled or lost, or the worker stops.
        Async functions are cancelled; those in threads look here now and then, or `wait`."""
        return self.why is not None

    def wait(self, timeout: float) -> bool:
        """In a thread: sleep up to `timeout` seconds; True as soon as the function should stop."""
        if self._cancelled is None:
            self._cancelled = threading.Event()
            if self.why is not None:
                self._cancelled.set()
        return self._cancelled.wait(timeout)

    def stop(self, why: str) -> None:
        """Tell the function to stop. The first reason stays; but that the worker stops gives way to any other."""
        if self.why in (None, "stop"):
            self.why = why
            if self._cancelled is not None:
                self._cancelled.set()

    async def upstream(self) -> list[Any]:
        """The results of the jobs it waited for, in the order of `after`. In the place of one that did not succeed
        stands the exception its `result()` would raise. Raises StorageError."""
        if not self.after:
            return []
        if self._results is None:
            raise NotRunning("upstream() cannot be asked in a process of its own; use pass_result=True")
        return await self._results(self.after)

    async def progress(self, fraction: float, text: str = "") -> None:
        """Note how far it is, 0 to 1, and a word about it; others see it in the row's `note` after a moment."""
        self.report(fraction, text)

    def report(self, fraction: float, text: str = "") -> None:
        """`progress` for functions in threads and processes."""
        found: object = fraction
        if not isinstance(found, int | float) or not 0 <= fraction <= 1:
            raise BadOption("progress", f"expected 0 to 1, found {fraction!r}")
        self.keep_note(msgspec.json.encode({"progress": float(fraction), "text": text}).decode())

    def keep_note(self, note: str) -> None:
        """Have a note saved by the next heartbeat."""
        self.note = note
        self._noted()


_current: ContextVar[Context] = ContextVar("treadle_job")
enter = _current.set


def current() -> Context:
    """The job this code runs in. Raises NotRunning outside of one."""
    found = _current.get(None)
    if found is None:
        raise NotRunning("current() was called outside a job: there is none running here")
    return found


class JobFilter(logging.Filter):
    """Adds job, task, attempt and worker to log records; "-" outside a job. `handler.addFilter(JobFilter())`."""

    def filter(self, record: logging.LogRecord) -> bool:
        here = _current.get(None)
        values: dict[str, Any] = {"job": "-", "task": "-", "attempt": "-", "worker": "-"}
        if here is not None:
            values = {"job": here.id, "task": here.task, "attempt": here.attempt, "worker": here.worker}
        for name, value in values.items():
            setattr(record, name, value)
        return True
