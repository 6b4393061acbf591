"""Steps: functions that run once in the life of a job, whose results and failures are its history.

When `step` returns or raises what is stored, the history has it. If the worker dies after the function returned and
before the step is stored, the function runs again.
"""

from __future__ import annotations

import asyncio
import copy
import functools
import inspect
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from typing import Any, NoReturn

from msgspec import UNSET
from msgspec.structs import replace

from treadle.core.errors import CODE, BadOption, BadResult, BadStep, StepMismatch, TooLarge
from treadle.core.model import Outcome
from treadle.durable import time_limits
from treadle.durable.backend import (
    EARLY,
    IN_BATCH,
    DurableBackend,
    DurableRun,
    Suspend,
    is_suspension,
)
from treadle.durable.checkpoints import CALL, Checkpoint, StepRequest, running_step, valued
from treadle.durable.failures import CUT_OFF, MESSAGE, Failure, error_of, failure_of, leaves
from treadle.durable.fingerprints import checksum_of
from treadle.durable.pending import Pending
from treadle.durable.short_waits import ShortWaits
from treadle.durable.state import DurableState
from treadle.durable.step_codec import is_async, signature_of
from treadle.durable.tries import PLAIN, StepCall, StepOptions, Tries
from treadle.durable.unawaited import Unawaited
from treadle.durable.undo import Undos
from treadle.policy import judge
from treadle.policy.retry import Defer
from treadle.serialization.call_codec import CallCodec, Codec


class StepTaker(DurableState):
    """The steps of one run."""

    def __init__(self, run: DurableRun, backend: DurableBackend, codec: Codec | None) -> None:
        super().__init__(run, backend)
        self._codec = codec
        self.undos = Undos(run.record)
        self._codecs: dict[int, tuple[Callable[..., Any], CallCodec]] = {}  # by the id of the function
        self._tries: Tries | None = None  # made for the first step whose function runs
        self._unawaited = Unawaited()
        self.short_waits = ShortWaits(self)
        self.errors: dict[str, tuple[Exception, Exception]] = {}  # step -> the error it raised, and its function's own

    # --- in coroutines

    def step(
        self, name: str, function: Callable[..., Any], args: Any, kwargs: Any, options: StepOptions = PLAIN
    ) -> Coroutine[Any, Any, Any]:
        """Take the step. Its position in the order is where this is called, not where the result is awaited."""
        if options.timeout is not None and not is_async(function):
            raise BadOption(
                "step.timeout", "a plain function cannot be interrupted; use an async one, or a timeout of its library"
            )
        request = self._request(name, function, args, kwargs, options)
        if request.is_recorded:
            return self._unawaited.add(request.key, self._replay(request, function))
        return self._unawaited.add(request.key, self._step(self._call(request, function, args, kwargs, options)))

    def awaited(self, key: str, work: Callable[[], Coroutine[Any, Any, Any]]) -> Coroutine[Any, Any, Any]:
        """The coroutine of a call that takes a place in the order. A run that returns without awaiting it fails."""

        async def begun() -> Any:
            self._unawaited.forget(key)
            return await work()

        return self._unawaited.add(key, begun())

    async def _replay(self, request: StepRequest, function: Callable[..., Any]) -> Any:
        """A step with a recorded value: most of the time of a wake."""
        self._unawaited.forget(request.key)
        self.stay(request.key)
        self.checkpoints.decide_at(request)
        await self.reached(request)
        return self._replayed(request, function)

    def _replayed(self, request: StepRequest, function: Callable[..., Any]) -> Any:
        self.checkpoints.end(request)
        entry = request.entry
        assert entry is not None
        text = entry.result
        assert text is not None
        kept = self._codecs.get(id(function))
        if kept is None:
            signature = copy.copy(signature_of(function, "", self._codec))  # a task shares its own
            kept = self._codecs[id(function)] = function, signature  # with the function, or its id is reused
        try:
            return kept[1].decode_result(text)
        except BadResult:
            kept[1].name = self._named(request)
            return kept[1].decode_result(text)  # raises the same with the name

    async def _step(self, call: StepCall) -> Any:
        request = call.request
        self._unawaited.forget(request.key)
        self._on_loop(request.key)
        self.stay(request.key)
        self.checkpoints.decide_at(request)
        await self.leave_caught()
        await self.reached(request)
        try:
            while not self.checkpoints.is_over(request.key):
                if time_limits.in_time_limit():
                    await time_limits.check(self, request)
                if (until := self._next_try(request)) is not None:
                    await self._wait_for_try(request, until)
                    continue
                await self.reached(request, CALL)
                with self.tries.progress(request):
                    if self.checkpoints.caught or self.undos.to_store:
                        await self._before_effect()
                    try:
                        self._keep(call, await self._value(call))
                    except Exception as error:
                        self._try_failed(call, error)
                    await self.backend.save(self.run)
            await self.cut_again(request)
            return self._recorded(call)
        except asyncio.CancelledError as error:
            if not self.backend.is_cancelled(self.run):
                self.cut_off(request, error)
            raise
        finally:
            self.checkpoints.end(request)

    async def cut_again(self, request: StepRequest) -> None:
        """Wait to be cut off, if an earlier run was cut off in this step or wait."""
        entry = self.checkpoints.entries.get(request.key)
        if entry is not None and entry.failure == CUT_OFF:
            await time_limits.check(self, request, recorded_only=True)
            await self.backend.loop.create_future()

    def cut_off(self, request: StepRequest, error: asyncio.CancelledError) -> None:
        """Note that the function has cut off the step. A cancellation that nothing asked of this task is an error of
        the step: later runs would wait for it for ever."""
        task = asyncio.current_task()
        if task is None or task.cancelling():
            self.checkpoints.raised(request, CUT_OFF)
            return
        failure = Failure("CancelledError", "asyncio", message="something else cancelled what the step awaited")
        shown = error_of(request.key, failure)
        self.errors[request.key] = shown, shown
        self.checkpoints.raised(request, replace(failure, round=self.checkpoints.round))
        raise shown from error

    async def _before_effect(self) -> None:
        """Store what must be known before the function of a step runs."""
        if self.undos.to_store:
            await self.undos.store(self.backend, self.checkpoints)
        if self.checkpoints.caught:
            await self.backend.save(self.run)

    async def _value(self, call: StepCall) -> Any:
        with self._around(call.request):
            if not is_async(call.function):
                value = await self.backend.call(self.run, call.function)
                return await value if inspect.isawaitable(value) else value
            if call.options.timeout is None:
                return await call.function()
            try:
                async with asyncio.timeout(call.options.timeout) as limit:
                    return await call.function()
            except TimeoutError as error:
                if not limit.expired():
                    raise
                text = f"step {call.request.key!r} took longer than its timeout of {call.options.timeout:g} s"
                raise TimeoutError(text) from error

    async def _wait_for_try(self, request: StepRequest, until: float) -> None:
        """Suspend the run until the next try of a step is due, if that takes longer than a short wait. A task of the
        function raises the suspension in place of its step; what awaits the task raises it in the function."""
        if self.short_waits.fits(Pending(until=until)):
            await self.short_waits.hold(Pending(until=until))
            return
        key, until = await self.tries.alone(request, until)
        outcome = self.suspended_for(Pending(until=until, sleep=key))
        if self.run.place is None or asyncio.current_task() is self.run.place:
            self.leave(outcome)
        self._between = outcome
        raise Suspend

    # --- in threads

    def step_here(
        self, name: str, function: Callable[..., Any], args: Any, kwargs: Any, options: StepOptions = PLAIN
    ) -> Any:
        """Take the step in a thread; the function runs in this thread."""
        if is_async(function):
            raise BadStep(name, "an async function cannot be a step of a function in a thread; make the task async")
        request = self._request(name, function, args, kwargs, options)
        if self.checkpoints.leaving:
            self.wait_here(self.leave_caught())
        self.checkpoints.reach(request)
        if request.is_recorded:
            return self._replayed(request, function)
        call = self._call(request, function, args, kwargs, options)
        try:
            while not self.checkpoints.is_over(request.key):
                if time_limits.in_time_limit():
                    self.wait_here(time_limits.check(self, request))
                if (until := self._next_try(request)) is not None:
                    if self.short_waits.fits(Pending(until=until)):
                        self.wait_here(self.short_waits.hold(Pending(until=until)))
                        continue
                    key, until = self.wait_here(self.tries.alone(request, until))
                    self.leave(self.suspended_for(Pending(until=until, sleep=key)))
                self.checkpoints.reach(request, CALL)
                with self.tries.progress(request):
                    if self.checkpoints.caught or self.undos.to_store:
                        self.wait_here(self._before_effect())
                    try:
                        with self._around(request):
                            value = call.function()
                        self._keep(call, value)
                    except Exception as error:
                        self._try_failed(call, error)
                    self.wait_here(self.backend.save(self.run))
            return self._recorded(call)
        finally:
            self.checkpoints.end(request)

    # --- in both

    def _request(
        self, name: str, function: Callable[..., Any], args: Any, kwargs: Any, options: StepOptions
    ) -> StepRequest:
        self.stay(name)
        if options.retry is not None and self.run.place is IN_BATCH:
            raise BadStep(name, "a step of a batch has no `retry`: between two tries the other jobs would have to wait")
        if not callable(function):
            raise BadStep(name, f"expected a function and its arguments, found {function!r}")
        self.backend.check(self.run)  # the step could not be stored, so its function must not run either
        return self.checkpoints.ask(name, checksum_of(args, kwargs))

    def _call(
        self, request: StepRequest, function: Callable[..., Any], args: Any, kwargs: Any, options: StepOptions
    ) -> StepCall:
        signature = signature_of(function, self._named(request), self._codec)
        return StepCall(request, signature, functools.partial(function, *args, **kwargs), options)

    def _named(self, request: StepRequest) -> str:
        """The name of the step in errors of its codec."""
        return f"{self.run.record.job.task}: step {request.key!r}"

    @property
    def tries(self) -> Tries:
        if self._tries is None:
            self._tries = Tries(self.backend.loop)
        return self._tries

    @contextmanager
    def _around(self, request: StepRequest) -> Iterator[None]:
        """While the function of the step runs."""
        with self.checkpoints.within(request), self.backend.around_step(self.run, request.key):
            yield

    def _keep(self, call: StepCall, value: object) -> None:
        """Record the encoded value."""
        request = call.request

        def entry() -> Checkpoint:
            text = call.signature.encode_result(value)
            tries = UNSET if call.options.retry is None else self._tried(request) + 1
            return valued(request, text, self._codec is not None, tries=tries)

        self.keep_or_fail(request, entry)

    def keep_or_fail(self, request: StepRequest, entry: Callable[[], Checkpoint]) -> None:
        """Record this entry. If it cannot be stored, record that, so that no later run does the same work."""
        try:
            self.checkpoints.keep(request, entry())
        except (BadResult, TooLarge) as error:
            if isinstance(error, BadResult):
                error = BadResult(error.task, error.problem[:MESSAGE])  # a user's codec may raise a longer one
            failure, _ = failure_of(request.key, error)
            self.checkpoints.keep(request, request.entry_of(failure=failure), is_last=True)

    def _try_failed(self, call: StepCall, error: Exception) -> None:
        """Record the error of a try if the step has options of its own; otherwise raise it, as every later run will if
        the function catches it."""
        request, retry = call.request, call.options.retry
        if judge.fails_as(error) == CODE:
            raise error
        failure, shown = failure_of(request.key, error, self.checkpoints.round)
        if retry is None or isinstance(error, Defer):
            self.errors[request.key] = shown, error
            self.checkpoints.raised(request, failure)
            self._raise(request.key)
        tries = self._tried(request) + 1
        tried = judge.Failure.of(self.run.record, tries, retry)
        try:
            delay = call.options.next_delay(error, tried, self.backend.random())
        except Defer as deferral:
            self._try_failed(call, deferral)  # raises it
            return
        until = UNSET if delay is None else self.latest_moment() + delay
        self.errors[request.key] = shown, error
        self.checkpoints.keep(request, request.entry_of(failure=failure, tries=tries, until=until))

    def _raise(self, key: str) -> NoReturn:
        """Raise the error of a step that is known in this run."""
        shown, error = self.errors[key]
        if shown is error:
            raise error
        raise shown from error

    def suspended_for(self, pending: Pending) -> Outcome:
        """The outcome of a run that is suspended for this, and for the waits of its other tasks."""
        return time_limits.limited(pending).suspended(self.run.record, self.moment())

    def _tried(self, request: StepRequest) -> int:
        entry = self.checkpoints.entries.get(request.key)
        return entry.tries if entry is not None and isinstance(entry.tries, int) else 0

    def _next_try(self, request: StepRequest) -> float | None:
        """When the next try of a step is due; None: now."""
        entry = self.checkpoints.entries.get(request.key)
        if entry is None or not isinstance(entry.until, float):
            return None
        if entry is request.entry and self.came_due(request.key):
            return None
        if entry is not request.entry and request.key in self.checkpoints.around:
            return entry.until  # the steps inside must be found again, which takes a new run
        return entry.until if entry.until - self.moment() > EARLY else None

    def _recorded(self, call: StepCall) -> Any:
        """The value of the entry, or its failure. The first run gets it decoded, too, so a value that the codec changes
        is noticed at once."""
        text = self.recorded(call.request).result
        assert text is not None
        return call.signature.decode_result(text)

    def recorded(self, request: StepRequest) -> Checkpoint:
        """The entry, which has a value. Raises the failure of one that has failed."""
        entry = self.checkpoints.entries[request.key]
        if isinstance(entry.failure, Failure):
            if entry.failure.round is not UNSET:
                self.checkpoints.raised(request, entry.failure)
            if request.key not in self.errors:
                shown = error_of(request.key, entry.failure)
                self.errors[request.key] = shown, shown
            self._raise(request.key)
        if not entry.has_value:
            raise StepMismatch(self.run.record.job.id, request.key, request.after, "a sleep or a wait of that name")
        return entry

    def key(self, name: str | None) -> str:
        """The idempotency key of a step: the same in every run of this round, even after a retry of a dead job."""
        name = running_step() if name is None else name
        if name is None:
            raise BadStep("step_key", "give the name of the step, or call it within the function of the step")
        restarts = f"@{self.round.number}" if self.round.number else ""
        return f"{self.run.record.job.id}{restarts}:{name}"

    # --- the end of a run

    def left_by(self, error: BaseException) -> tuple[BaseException, bool]:
        """Returns the error of the user's function behind the error that left it, and whether the history has that
        error. If so, every further attempt would raise it at the same place."""
        parts, is_final = list(leaves(error)), False
        for key, (shown, original) in self.errors.items():
            if any(shown is part for part in parts):
                entry = self.checkpoints.entries.get(key)
                is_final = is_final or (entry is not None and not entry.is_tried)
                error = original if error is shown else error
        return error, is_final

    def in_progress(self, outer: set[str], changed: Callable[[], None]) -> bool:
        """Whether a step is in progress, other than these; `changed` is called when one has ended."""
        return self._tries is not None and self._tries.in_progress(outer, changed)

    @property
    def is_between_tries(self) -> bool:
        """Whether a task of the function has suspended the run between two tries of its step."""
        return self._between is not None

    def suspended_by(self, error: BaseException) -> None:
        """Note that the run is suspended, if a task between two tries of its step has ended the function."""
        if self._between is not None and is_suspension(error):
            self.run.suspended_as = self.run.suspended_as or self._between

    def misuse(self) -> BadStep | None:
        """Why the run fails although its function has returned or sleeps."""
        if self._misused is None and self.run.suspended_as is None:
            self._misused = self._unawaited.forgotten()
        return self._misused
