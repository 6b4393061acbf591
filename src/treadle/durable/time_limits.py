"""`current().timeout`: a time limit around durable code, kept over all runs of a job.

It takes effect at the wait during which it passes, or at the next step. Its entry names that wait or step, so
that later runs leave the block at the same place. In a coroutine it acts as `asyncio.timeout` does: it cancels the task
that has entered the block, which raises TimeoutError at the end of the block. In a thread an exception that `except
Exception` does not catch leaves the block.
"""

from __future__ import annotations

import asyncio
from contextvars import ContextVar, Token
from datetime import timedelta
from types import TracebackType
from typing import Any, Final, NoReturn

from msgspec import UNSET
from msgspec.structs import replace

from treadle.durable.backend import EARLY, Leaving
from treadle.durable.checkpoints import MARK, Checkpoint, StepRequest
from treadle.durable.pending import Pending
from treadle.durable.state import DurableState
from treadle.policy.retry import seconds

KEY: Final = "timeout"
_here: ContextVar[tuple[TimeLimit, ...]] = ContextVar("treadle_time_limits", default=())


class TimePassed(Leaving):
    """Leaves the block of a time limit in a thread."""

    def __init__(self, limit: TimeLimit) -> None:
        self.limit = limit


class TimeLimit:
    """`async with current().timeout(60):`, or `with current().sync.timeout(60):`. Raises TimeoutError."""

    def __init__(self, run: DurableState, length: float | timedelta, name: str | None) -> None:
        self._run, self._length = run, seconds(length, "timeout")
        self._key = KEY if name is None else f"{KEY}:{name}"
        self._timeout: asyncio.Timeout | None = None
        self._token: Token[Any] | None = None
        self._request: StepRequest  # made when the block is entered
        self._is_over = False
        self._before: Checkpoint | None = None  # the entry before the limit has taken effect in this run

    @property
    def _until(self) -> float:
        entry = self._run.checkpoints.entries[self._request.key]
        assert isinstance(entry.until, float)
        return entry.until

    def _enter(self) -> None:
        run, request, entry = self._run, self._request, self._request.entry
        limits = run.is_own(request.key)
        if limits and (entry is None or not isinstance(entry.until, float)):
            entry = Checkpoint(request.after, until=run.latest_moment() + self._length, life=run.checkpoints.round)
            run.checkpoints.keep(request, entry)
        run.checkpoints.end(request)
        if limits or (entry is not None and entry.cut):
            self._token = _here.set((*_here.get(), self))

    def _exit(self) -> None:
        if self._token is not None:
            _here.reset(self._token)
        self._is_over = True

    async def __aenter__(self) -> None:
        self._request = self._run.asked(self._key)
        await self._run.reached(self._request, MARK)
        self._enter()
        self._timeout = asyncio.timeout(None)
        await self._timeout.__aenter__()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._timeout is not None
        self._exit()
        try:
            await self._timeout.__aexit__(kind, error, trace)
        except TimeoutError as passed:
            raise self._error() from passed
        if self._before is not None:  # something else has cancelled the block in that moment
            self._run.checkpoints.keep(self._request, self._before)

    def __enter__(self) -> None:
        self._request = self._run.asked(self._key)
        self._run.checkpoints.reach(self._request, MARK)
        self._enter()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._exit()
        if isinstance(error, TimePassed) and error.limit is self:
            raise self._error() from None

    def _error(self) -> TimeoutError:
        job = self._run.run.record.job
        text = f"{job.task} {job.id}: {self._request.key!r} of {self._length:g} s has passed"
        return self._run.timed_out(self._request, text)

    async def _leave(self, request: StepRequest) -> NoReturn:
        """Leave the block at this wait or step, in this run and in every later one."""
        checkpoints = self._run.checkpoints
        entry = checkpoints.entries[self._request.key]
        if not entry.cut:
            self._before = entry
            checkpoints.keep(self._request, replace(entry, cut=request.key))
            await self._run.backend.save(self._run.run)
        if entry.life is not UNSET:
            # The step or wait is noted as cut off in the same moment, and decided in the same moment.
            checkpoints.timed_out(replace(self._request, branch=request.branch))
        self._is_over = True
        if self._timeout is None:
            raise TimePassed(self)
        self._timeout.reschedule(asyncio.get_running_loop().time())
        while True:
            await self._run.backend.loop.create_future()  # until it is cancelled


async def check(run: DurableState, request: StepRequest, recorded_only: bool = False) -> None:
    """Leave the block of a time limit that has passed before this step, or during this wait. `recorded_only`: if an
    earlier run has left it here; a wait that is over by now is not looked at then."""
    here = [limit for limit in _here.get() if not limit._is_over]
    for limit in sorted(here, key=lambda limit: limit._until):
        cut = run.checkpoints.entries[limit._request.key].cut
        has_passed = limit._until - run.moment() <= EARLY or run.came_due(limit._request.key)
        if cut == request.key or (not cut and has_passed and not recorded_only):
            await limit._leave(request)


def nearest(until: float | None, key: str) -> tuple[float | None, str]:
    """The instant, or the first time limit if that comes before; and its key."""
    for limit in _here.get():
        if not limit._is_over and (until is None or limit._until < until):
            until, key = limit._until, limit._request.key
    return until, key


def limited(pending: Pending) -> Pending:
    """The same, until the first time limit at most."""
    until, sleep = nearest(pending.until, pending.sleep)
    return replace(pending, until=until, sleep=sleep)


def in_time_limit() -> bool:
    """Whether the code that runs here is in the block of a time limit."""
    return bool(_here.get())
