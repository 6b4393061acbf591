"""The tries of a step that has options of its own, and the wait of a run between two of them.

Between two tries the run is suspended, so the job uses no slot. If other steps of the run are in progress, it waits for
them first: their functions would run again if the run ended before their results are stored.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from datetime import timedelta
from typing import Any

from msgspec import Struct

from treadle.core.clock import monotonic
from treadle.core.errors import BadOption
from treadle.durable.checkpoints import Checkpoint, StepRequest
from treadle.policy.judge import Failure, OnError, Verdict, fails_as, verdict_of
from treadle.policy.parts import Limits
from treadle.policy.retry import DEFAULT, Abort, Retry, RetryAfter, RetryNow, seconds
from treadle.serialization.call_codec import CallCodec
from treadle.tasks.options import limits_of


class StepOptions(Struct, frozen=True):
    """How a step is called.

    retry     how often it is tried; None: once, and its error is one of the function's attempt
    timeout   seconds that one try may take; a plain function is not interrupted
    on_error  decides about an error, as the `on_error` of a task
    limits    limits that each try obeys, with the cost of a try
    """

    retry: Retry | None = None
    timeout: float | None = None
    on_error: OnError | None = None
    limits: Limits = ()

    def next_delay(self, error: Exception, tried: Failure, fraction: float) -> float | None:
        """Seconds until the next try; None: there is none. Raises the Defer that `on_error` returns."""
        assert self.retry is not None
        verdict: Verdict = error if isinstance(error, Abort | RetryAfter) else None
        if verdict is None:
            verdict = verdict_of(self.on_error, error, tried)
        if isinstance(verdict, Exception) and not isinstance(verdict, Abort | RetryAfter):
            raise verdict from error
        asked_for = isinstance(verdict, RetryNow | RetryAfter)
        if isinstance(verdict, Abort) or (fails_as(error) is not None and not asked_for):
            return None
        if tried.attempts is not None and tried.attempt >= tried.attempts:
            return None
        if isinstance(verdict, RetryAfter):
            return verdict.seconds
        return 0.0 if isinstance(verdict, RetryNow) else self.retry.delay(tried.attempt, fraction)


PLAIN = StepOptions()
_ends: ContextVar[float | None] = ContextVar("treadle_try_ends", default=None)  # by `monotonic`


def left_of_try() -> float | None:
    """Seconds until the function in this thread has used up the time of its try; None: nothing limits that."""
    ends = _ends.get()
    return None if ends is None else max(0.0, ends - monotonic())


def too_long(key: str, length: float | None) -> TimeoutError:
    """The error of a try that has used up its time."""
    return TimeoutError(f"step {key!r} took longer than its timeout of {length:g} s")


@contextmanager
def limited_in_thread(key: str, length: float | None) -> Iterator[None]:
    """While a plain function runs, which nothing can interrupt: after this time it gets a request to stop, and its try
    has failed when it returns, whatever it returns."""
    if length is None:
        yield
        return
    ends, outer = monotonic() + length, _ends.get()
    token, late = _ends.set(ends if outer is None else min(ends, outer)), None
    try:
        yield
    except Exception as error:
        if monotonic() < ends:
            raise
        late = error
    finally:
        _ends.reset(token)
    if monotonic() >= ends:
        raise too_long(key, length) from late


def step_options(
    retry: Retry | None,
    timeout: float | timedelta | None,
    on_error: OnError | None,
    limits: Iterable[str] | Mapping[str, int],
    cost: int,
) -> StepOptions:
    """Raises BadOption."""
    if retry is not None and not isinstance(retry, Retry):
        raise BadOption("step.retry", f"expected Retry(...), found {retry!r:.60}")
    if retry is not None and retry.then == "pause":
        raise BadOption("step.retry", "then='pause' is an option of the task's retry: it pauses the job, not a step")
    if on_error is not None and (retry is None or not callable(on_error)):
        raise BadOption("step.on_error", f"expected a function, with retry=Retry(...), found {on_error!r:.60}")
    length = None if timeout is None else seconds(timeout, "step.timeout")
    if length == 0:
        raise BadOption("step.timeout", "expected more than 0 s, or None for no limit")
    own = limits_of(limits, cost)
    return StepOptions(None if retry is None else retry.over(DEFAULT), length, on_error, own)


class StepCall(Struct, frozen=True):
    """One call of `step`, with the function bound to its arguments."""

    request: StepRequest
    signature: CallCodec
    function: Callable[[], Any]
    options: StepOptions


def tries_of(entry: Checkpoint | None) -> int:
    """How often the function of the step was called, as far as its entry counts that."""
    return entry.tries if entry is not None and isinstance(entry.tries, int) else 0


class Tries:
    """The steps of one run that are in progress, and those that wait for their next try."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._in_progress: set[str] = set()
        self._waiting: dict[str, tuple[float, tuple[str, ...]]] = {}  # when the next try is due, the steps around it
        self._changed = asyncio.Event()
        self._notify: Callable[[], None] | None = None

    @contextmanager
    def progress(self, request: StepRequest) -> Iterator[None]:
        """While the function of the step runs and its result is stored; in any thread."""
        self._in_progress.add(request.key)
        try:
            yield
        finally:
            self._in_progress.discard(request.key)
            if self._notify is not None:
                self._loop.call_soon_threadsafe(self._notify)
            if self._waiting:
                self._loop.call_soon_threadsafe(self._changed.set)

    def in_progress(self, outer: set[str], changed: Callable[[], None]) -> bool:
        """Whether the function of a step runs, or its result is being stored, without the steps `outer`; `changed` is
        called when one has ended."""
        self._notify = changed
        return bool(self._in_progress - outer)

    async def alone(self, request: StepRequest, until: float) -> tuple[str, float]:
        """Wait until every other step in progress has ended or waits, too. Returns the step whose next try comes first,
        and when that is due."""
        self._waiting[request.key] = until, request.branch.outer
        self._changed.set()  # a step around this one holds up no other any more
        try:
            await asyncio.sleep(0)  # tasks that were created with this one begin
            while self._in_progress - {key for _, outer in self._waiting.values() for key in outer}:
                self._changed.clear()
                await self._changed.wait()
        except BaseException:
            del self._waiting[request.key]
            raise
        key = min(self._waiting, key=lambda key: self._waiting[key][0])
        return key, self._waiting[key][0]
