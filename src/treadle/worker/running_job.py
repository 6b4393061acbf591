"""One job that runs in this worker, and the outcomes of ended jobs that the storage has not confirmed yet."""

from __future__ import annotations

import asyncio
import contextvars
import functools
import sys
from typing import Any

from msgspec import Struct

from treadle.core.events import was_lost
from treadle.core.model import Outcome, Record
from treadle.execution import SystemTask
from treadle.execution.job_run import JobRun
from treadle.policy.judge import Rules
from treadle.tasks.core import TaskCore

if sys.version_info >= (3, 12):  # a no-op job: 1.7 us if started eagerly, 5.8 us in a turn of its own
    new_task = functools.partial(asyncio.Task, eager_start=True)
else:
    new_task = asyncio.Task  # `create_task` does the same and takes 0.6 us longer


class RunningJob(Struct, eq=False):
    """A claimed job, from its start until its outcome is stored."""

    record: Record
    task: TaskCore | SystemTask
    job_run: JobRun
    rules: Rules
    lease: float
    handle: asyncio.Task[Any] | None = None
    context: contextvars.Context | None = None  # the context of its asyncio task; None: it was not started
    begun: bool = False  # the first step of its asyncio task has run
    called: bool = False  # its function was called, or it failed instead: `Middleware.judged` is called for it
    cancelled: bool = False
    ended: bool = False
    refused: bool = False  # the storage has refused its outcome
    blocked_since: float = 0.0  # the loop's time when its outcome was first refused because of a locked row; 0: never
    uses: tuple[tuple[str, int], ...] | None = None  # resources that it has taken; an item of a batch: none
    noted: bool = False  # its row says what a lease means that is lost now, see `policy/guilt.py`
    in_batch: bool = False  # an item of a batch: it takes no slot, its call does

    def request_stop(self) -> None:
        """Set the flag that the function may read, and leave the function running."""
        self.job_run.stop("stop")

    def stop(self, why: str) -> None:
        """Cancel the function if it can be cancelled, and set the flag that it may read. Only the first call counts."""
        if self.ended or self.cancelled:
            return
        self.cancelled = True
        self.job_run.stop(why)
        # An asyncio task cancelled before its first step never runs its `finally`, and its slot would be lost.
        if self.handle is not None and self.begun:
            self.handle.cancel()


Ended = tuple[RunningJob, Outcome]


class Unconfirmed:
    """Each outcome is in `waiting`, or in `sent` under the dispatcher whose request carries it."""

    __slots__ = ("sent", "waiting")

    def __init__(self) -> None:
        self.waiting: list[Ended] = []
        self.sent: dict[int, list[Ended]] = {}

    def take(self) -> list[Ended]:
        """Remove and return all waiting outcomes."""
        taken, self.waiting = self.waiting, []
        return taken

    def put_back(self, ended: list[Ended]) -> None:
        """Put back the outcomes of a failed request, before all others. Settling twice is safe (law 10)."""
        self.waiting[:0] = ended

    def runs(self, but: int | None = None) -> list[RunningJob]:
        """The runs whose outcomes are not confirmed, except those whose outcomes dispatcher `but` has sent."""
        sent = [run for number, ended in self.sent.items() if number != but for run, _ in ended]
        return sent + [run for run, _ in self.waiting]


def settled_before(record: Record) -> int:
    """The version of the outcome after which this job was claimed, which the storage has applied; 0: the claim followed
    none, because it is the first one or the lease of an earlier one had expired."""
    return 0 if was_lost(record) else max(0, record.version - 2)
