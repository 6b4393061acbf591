"""Durable code: steps that run once, sleeps and waits that free the slot, and locks that only one job gets.

When `step` returns, its result is stored. If the worker dies after the function returns and before the step is stored,
the function runs again. A sleep or a wait ends the run with an exception (`Suspend`). The next run starts at the top,
and each stored step returns its stored value.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import copy
import functools
import inspect
import logging
from collections.abc import Callable, Coroutine, Sequence
from contextlib import AbstractContextManager
from datetime import datetime, timedelta
from typing import Any, NoReturn, Protocol

from msgspec.structs import replace

from treadle.concurrency.uncut import shielded
from treadle.core import defaults
from treadle.core.command_lines import command
from treadle.core.errors import BadOption, BadResult, BadStep, ForeignRow, KeyHeld, StepMismatch, StorageError, TooLarge
from treadle.core.model import ASLEEP, OURS, ROUND, NewJob, Outcome, Record, State
from treadle.durable.checkpoints import (
    Checkpoint,
    Checkpoints,
    Failure,
    StepRequest,
    error_of,
    failed,
    running_step,
    valued,
)
from treadle.durable.run_locks import RunLocks
from treadle.durable.step_codec import signature_of, signature_of_kind
from treadle.policy import judge
from treadle.policy.retry import Defer, seconds, until
from treadle.policy.rounds import Round, restarted, round_of
from treadle.serialization.call_codec import CallCodec, Codec, TaggedCodec, decode_any
from treadle.tasks.options import Sizes
from treadle.workflow.signals import SEEN_AT_ONCE, check_signal, signal_id, signal_row, usable

log = logging.getLogger("treadle")

IN_BATCH = object()  # the place of a batch item, whose function also runs for other items

EARLY = 0.001  # s; a sleep that has less than this left is over


class DurableRun(Protocol):
    """The attributes of a run's context that durable code uses."""

    record: Record
    suspended_as: Outcome | None
    began: float
    place: object


class DurableBackend(Protocol):
    """The services of the worker that durable code uses. Each call is repeated until the storage answers."""

    loop: asyncio.AbstractEventLoop
    sizes: Sizes

    def now(self) -> float: ...
    def codec(self, task: str) -> Codec | None: ...
    def arguments(self, record: Record, args: Any, kwargs: Any) -> str: ...
    async def save(self, run: DurableRun) -> None: ...
    async def get(self, ids: Sequence[str]) -> Sequence[Record | None]: ...
    async def store(self, job: NewJob) -> Record: ...
    async def settle(self, outcomes: Sequence[Outcome]) -> None: ...
    async def call(self, run: DurableRun, function: Callable[[], Any]) -> Any: ...
    def around_step(self, run: DurableRun, name: str) -> AbstractContextManager[object]: ...


FOREIGN_LOCK = 30.0  # s until a job asks again for a lock that a job of another queue holds


class Suspend(BaseException):
    """Ends the function of a job that sleeps or waits. Not an Exception, so `except Exception` does not catch it."""


class Stopped(BaseException):
    """Ends a function in a thread that waits for the storage when its run is cancelled."""


class Durable:
    """The durable code of one run."""

    def __init__(self, run: DurableRun, backend: DurableBackend, codec: Codec | None) -> None:
        self.run, self.backend = run, backend
        self.checkpoints = Checkpoints(run.record.job.id, run.record.checkpoints, backend.sizes, run.place)
        self._codec = None if type(codec) is TaggedCodec else codec
        self._round = round_of(run.record.checkpoints)
        self._waited = dict(self._round.turns)  # signals received or no longer waited for -> the last row used
        self._received: set[str] = set()
        self._codecs: dict[int, tuple[Callable[..., Any], CallCodec]] = {}  # by the id of the function
        self._locks = RunLocks(run.record, backend, self._moment, self.checkpoints.note, lambda: backend.save(run))
        self._pending: concurrent.futures.Future[Any] | None = None
        self._interrupted = False
        self.misused: BadStep | None = None  # a branch of this run tried to sleep or to wait

    # --- steps

    def step(self, name: str, function: Callable[..., Any], args: Any, kwargs: Any) -> Coroutine[Any, Any, Any]:
        """Take the step. Its position in the order is where this is called, not where the result is awaited."""
        self._stay(name)
        return self._step(self.checkpoints.ask(name), function, args, kwargs)

    async def _step(self, request: StepRequest, function: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        self._on_loop(request.key)
        if request.entry is not None:
            return self._replayed(request, function)
        signature = self._signature(request.key, function)
        with self.checkpoints.within(request), self.backend.around_step(self.run, request.key):
            if _is_async(function):
                value = await function(*args, **kwargs)
            else:
                value = await self.backend.call(self.run, lambda: function(*args, **kwargs))
                value = await value if inspect.isawaitable(value) else value
        self._keep(request, signature, value)
        await self.backend.save(self.run)
        return self._recorded(request, signature)

    def step_here(self, name: str, function: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        """Take the step in a thread; the function runs in this thread."""
        self._stay(name)
        if _is_async(function):
            raise BadStep(name, "an async function cannot be a step of a function in a thread; make the task async")
        request = self.checkpoints.ask(name)
        if request.entry is not None:
            return self._replayed(request, function)
        signature = self._signature(request.key, function)
        with self.checkpoints.within(request), self.backend.around_step(self.run, request.key):
            value = function(*args, **kwargs)
        self._keep(request, signature, value)
        self.wait_here(self.backend.save(self.run))
        return self._recorded(request, signature)

    def _keep(self, request: StepRequest, signature: CallCodec, value: object) -> None:
        """Record the encoded value. If it cannot be stored, record that, so that no later run calls the function."""
        try:
            self.checkpoints.keep(request, valued(request, signature.encode_result(value), self._codec is not None))
        except (BadResult, TooLarge) as error:
            self.checkpoints.keep(request, failed(request, error))

    def _recorded(self, request: StepRequest, signature: CallCodec) -> Any:
        """The value of the entry, or its failure. The first run gets it decoded, too, so a value that the codec changes
        is noticed at once."""
        entry = self.checkpoints.entries[request.key]
        if isinstance(entry.failure, Failure):
            raise error_of(request.key, entry.failure)
        text = entry.result
        if text is None:
            raise StepMismatch(self.run.record.job.id, request.key, request.after, "a sleep or a wait of that name")
        return signature.decode_result(text)

    def _replayed(self, request: StepRequest, function: Callable[..., Any]) -> Any:
        """The recorded value of a step of an earlier run. Making the codec of its function takes half of that time."""
        kept = self._codecs.get(id(function))
        if kept is None:
            signature = copy.copy(self._signature(request.key, function))  # a task shares its own
            kept = self._codecs[id(function)] = function, signature  # with the function, or its id is reused
        kept[1].name = self._name(request.key)
        return self._recorded(request, kept[1])

    def _name(self, key: str) -> str:
        return f"{self.run.record.job.task}: step {key!r}"

    def _signature(self, name: str, function: Callable[..., Any]) -> CallCodec:
        if not callable(function):
            raise BadStep(name, f"expected a function and its arguments, found {function!r}")
        return signature_of(function, self._name(name), self._codec)

    def key(self, name: str | None) -> str:
        """The idempotency key of a step: the same in every run of this round, also after a retry of a dead job."""
        name = running_step() if name is None else name
        if name is None:
            raise BadStep("step_key", "give the name of the step, or call it within the function of the step")
        restarts = f"@{self._round.number}" if self._round.number else ""
        return f"{self.run.record.job.id}{restarts}:{name}"

    # --- sleeping and waiting

    async def sleep(self, request: StepRequest, length: float | timedelta | None, moment: datetime | None) -> None:
        now, entry = self._moment(), request.entry
        if (length is None) == (moment is None):
            raise BadOption("sleep", "give seconds or until=, not both")
        if entry is None:
            remaining = seconds(length, "sleep") if length is not None else until(moment, "sleep", now)
        elif isinstance(entry.until, float):
            remaining = 0.0 if self._came_due(request.key) else entry.until - now
            if length is not None:
                remaining = min(remaining, seconds(length, "sleep"))
        else:
            raise StepMismatch(self.run.record.job.id, request.key, request.after, "another step of that name")
        if remaining > EARLY:
            self.checkpoints.keep(request, Checkpoint(request.after, until=now + remaining))
            self._leave(judge.asleep(self.run.record, request.key, remaining, now))
        if entry is not None and isinstance(entry.until, float) and entry.until > now + EARLY:
            # The storage's clock was set back, and this time was written before: for later runs the sleep is over, too.
            self.checkpoints.keep(request, Checkpoint(entry.after, until=now))

    def _came_due(self, key: str) -> bool:
        """Whether the last run ended by suspending for this sleep, and the storage has queued the job when it was over.
        After a step back of its clock the storage corrects the due time of the row, but not the time in the entry. A
        run that ended in any other way has left no such reason: the time in the entry decides."""
        return self.run.record.reason == ASLEEP + key

    async def wait_for(self, name: str, request: StepRequest, timeout: float | timedelta | None, kind: Any) -> Any:
        entry = request.entry
        if entry is None:
            entry = await self._arrived(name, request, None if timeout is None else seconds(timeout, "timeout"))
            self.checkpoints.keep(request, entry)
            await self.backend.save(self.run)
        if isinstance(entry.turn, int):
            self._waited[name] = entry.turn
        if entry.gave_up:
            job = self.run.record.job
            within = "in time" if timeout is None else f"within {seconds(timeout, 'timeout'):g} s"
            raise TimeoutError(
                f"{job.task} {job.id} did not receive the signal {name!r} {within}; "
                f"{command('jobs', 'signal', job.id, name)} sends it to a later wait"
            )
        self._received.add(name)
        text = entry.result
        if text is None:
            raise StepMismatch(self.run.record.job.id, request.key, request.after, "another step of that name")
        return decode_any(text) if kind is Any else signature_of_kind(kind, "wait_for").decode_result(text)

    async def _arrived(self, name: str, request: StepRequest, timeout: float | None) -> Checkpoint:
        """The entry for a signal that has arrived, or for a wait that timed out. Raises Suspend to wait for it."""
        if name in self._received:
            raise BadStep(name, f"this run has already received the signal; wait for another name, such as '{name}:2'")
        row, used = self.run.record, self._waited.get(name, 0)
        turn, signal = await self._row(name, used, timeout is not None)
        if signal is None and timeout != 0:
            to_deadline = None if row.deadline_at is None else max(EARLY, row.deadline_at - self._moment())
            limits = [limit for limit in (timeout, to_deadline) if limit is not None]
            # The row of an ended job ends at its deadline: while it is open, the workflow cannot be pruned.
            new = signal_row(row, name, turn, min(limits, default=defaults.SIGNAL_ROW))
            self._leave(judge.awaiting(row, (new.id,), (new,)))
        if signal is not None and signal.state is State.SUCCEEDED:
            return valued(request, signal.result or "null", False, turn)
        if signal is not None and not signal.state.final and timeout != 0:
            self._leave(judge.awaiting(row, (signal.id,)))
        return Checkpoint(request.after, gave_up=True, turn=turn if signal is not None and signal.state.final else used)

    async def _row(self, name: str, used: int, timed: bool) -> tuple[int, Record | None]:
        """The row in which this wait and the signal are joined. A wait without a timeout uses the next row when a row
        has expired."""
        row, start = self.run.record, used + 1
        while True:
            turns = range(start, start + SEEN_AT_ONCE)
            rows = await self.backend.get([signal_id(row.job.id, name, turn) for turn in turns])
            for turn, signal in zip(turns, rows, strict=True):
                if signal is not None:
                    check_signal(signal, row)
                if signal is None or usable(signal, row, timed):
                    return turn, signal
            start += SEEN_AT_ONCE

    def _moment(self) -> float:
        """Now, by the storage's clock: the time of the last claim, plus the time since then by this process's clock."""
        now = self.backend.now()
        claimed = self.run.record.started_at
        return now if claimed is None else claimed + max(0.0, now - self.run.began)

    def _leave(self, outcome: Outcome) -> NoReturn:
        self.run.suspended_as = outcome
        raise Suspend

    def restart(self, args: Any, kwargs: Any) -> NoReturn:
        """End this round: the function begins anew with these arguments, and without the steps of this round."""
        payload = self.backend.arguments(record := self.run.record, args, kwargs)
        if (size := len(payload.encode())) > (most := self.backend.sizes.payload):
            raise TooLarge(f"the arguments of a restart of job {record.job.id}", size, most)
        self._leave(restarted(record, Round(self._round.number + 1, self._waited), payload))

    def alone(self, what: str, here: bool = False) -> None:
        """Raise BadStep unless the function itself calls: a sleep in one of its tasks could not suspend the others."""
        self._stay(what)
        if self.run.place is IN_BATCH:
            raise BadStep(what, "a job of a batch cannot sleep; return Defer(...) as its result instead")
        if here:
            return
        self._on_loop(what)
        if self.run.place is not None and asyncio.current_task() is not self.run.place:
            # Stored, because the error of the task may never be retrieved: asyncio.wait does not raise it.
            self.misused = BadStep(
                what,
                "this suspends the whole function, so await it in the function itself, not in a task of gather, "
                "wait_for or a TaskGroup",
            )
            raise self.misused

    def _stay(self, step: str) -> None:
        """Raise BadStep if the function continues although the run has been suspended."""
        if self.run.suspended_as is not None:
            raise BadStep(step, SWALLOWED)

    # --- once-locks

    async def win(self, key: str, keep: float | timedelta) -> bool:
        """Whether this job holds the lock. Stores the lock if it is free.

        Raises Defer while a job of another queue holds it: that job does not do the work of this one, and it must not
        make this one fail.
        """
        try:
            return await self._locks.win(key, seconds(keep, "once.keep"))
        except (ForeignRow, KeyHeld) as error:
            job = self.run.record.job
            log.warning("%s %s waits for the once-lock %r, which another queue holds", job.task, job.id, key)
            raise Defer(FOREIGN_LOCK) from error

    async def give_back(self, key: str) -> None:
        """Release the lock, if this run got it."""
        await self._locks.give_back(key)

    async def concluded(self, outcome: Outcome) -> Outcome:
        """The outcome with the checkpoints that are not known to be stored. If the attempt failed, its locks are
        released first: after a crash in between, no job could get them until they expire."""
        counted = outcome.attempt > self.run.record.attempt
        failed = outcome.state is State.FAILED or (counted and outcome.state is not State.SUCCEEDED)
        if self._locks.remaining(failed):
            try:
                await shielded(self._locks.conclude(failed))
            except (asyncio.CancelledError, StorageError):
                log.warning("could not release the once-locks of job %s; they will expire", outcome.id)
        pairs = tuple(self.checkpoints.unsaved.items())
        if pairs and any(name == ROUND for name, _ in outcome.checkpoints):
            pairs = tuple([pair for pair in pairs if pair[0].startswith(OURS)])  # the steps end with their round
        return replace(outcome, checkpoints=(*outcome.checkpoints, *pairs)) if pairs else outcome

    def lost(self) -> None:
        """The job no longer belongs to this run: stop repeating its calls."""
        self._locks.lost()

    # --- threads

    def wait_here(self, work: Coroutine[Any, Any, Any]) -> Any:
        """In a thread: run the coroutine on the worker's event loop and wait for it."""
        try:
            asyncio.get_running_loop()
        except RuntimeError:
            pass
        else:
            work.close()
            raise BadStep(
                "sync", "current().sync is for functions in threads; here, await the same method of current()"
            )
        self._pending = future = asyncio.run_coroutine_threadsafe(work, self.backend.loop)
        if self._interrupted:
            future.cancel()
        try:
            return future.result()
        except concurrent.futures.CancelledError:
            raise Stopped from None
        finally:
            self._pending = None

    def interrupt(self) -> None:
        """The run was cancelled: a thread that waits for the storage stops waiting."""
        self._interrupted = True
        if self._pending is not None:
            self._pending.cancel()

    def _on_loop(self, what: str) -> None:
        if asyncio.get_running_loop() is not self.backend.loop:
            raise BadStep(what, "was awaited on another event loop; in a thread use current().sync")


SWALLOWED = (
    "the function continued after sleep() or wait_for(), which suspend it by an exception: an `except BaseException`, "
    "a bare `except` or a `return` in a `finally` caught that; catch Exception instead, or raise it again"
)

REPLACED = (
    "It was raised while sleep() or wait_for() suspended the function, for example by a `finally` or an `async with`. "
    "The next attempt sleeps or waits on."
)


def is_suspension(error: BaseException | None) -> bool:
    """Whether this is a Suspend, or an exception group of nothing else."""
    if isinstance(error, BaseExceptionGroup):
        return all(is_suspension(part) for part in error.exceptions)
    return isinstance(error, Suspend)


def _is_async(function: Callable[..., Any]) -> bool:
    while isinstance(function, functools.partial):
        function = function.func
    function = getattr(function, "__wrapped__", function)  # a task wraps its function
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(getattr(function, "__call__", None))  # noqa: B004
