"""Steps: functions that run once in the life of a job, whose results and failures are its history.

When `step` returns or raises what is stored, the history has it. If the worker dies after the function returned and
before the step is stored, the function runs again.
"""

from __future__ import annotations

import asyncio
import copy
import functools
import inspect
from collections.abc import Callable, Collection, Coroutine, Iterator
from contextlib import contextmanager
from typing import Any, NoReturn

from msgspec import UNSET

from treadle.core.errors import CODE, BadResult, BadStep
from treadle.core.model import Outcome
from treadle.durable import time_limits
from treadle.durable.backend import EARLY, IN_BATCH, DurableBackend, DurableRun, Suspend, is_suspension
from treadle.durable.branches import inside_step, step_here
from treadle.durable.checkpoints import CALL, Checkpoint, StepRequest, valued
from treadle.durable.failures import failure_of
from treadle.durable.fingerprints import checksum_of
from treadle.durable.pending import Pending
from treadle.durable.short_waits import ShortWaits
from treadle.durable.step_codec import is_async, signature_of
from treadle.durable.step_errors import StepErrors
from treadle.durable.streams import RunStreams
from treadle.durable.tries import PLAIN, StepCall, StepOptions, Tries, limited_in_thread, too_long, tries_of
from treadle.durable.unawaited import Unawaited
from treadle.durable.undo import Undos
from treadle.policy import judge
from treadle.policy.retry import Defer
from treadle.serialization.call_codec import CallCodec, Codec
from treadle.workflow.streams import streams_of


class StepTaker(StepErrors):
    """The steps of one run."""

    def __init__(self, run: DurableRun, backend: DurableBackend, codec: Codec | None) -> None:
        super().__init__(run, backend)
        self._codec = codec
        self.undos = Undos(run.record)
        self._codecs: dict[int, tuple[Callable[..., Any], CallCodec]] = {}  # by the id of the function
        self._tries: Tries | None = None  # made for the first step whose function runs
        self._unawaited = Unawaited()
        self.short_waits = ShortWaits(self)
        self.limits_around: Collection[str] = ()  # of the jobs inside of which this run makes a try
        self.streams = RunStreams(self) if streams_of(run.record.checkpoints) else None  # made with the first one

    # --- in coroutines

    def step(
        self, name: str, function: Callable[..., Any], args: Any, kwargs: Any, options: StepOptions = PLAIN
    ) -> Coroutine[Any, Any, Any]:
        """Take the step. Its position in the order is where this is called, not where the result is awaited."""
        request = self._request(name, function, args, kwargs, options)
        if request.is_recorded:
            self._unawaited[request.key] = replay = self._replay(request, function)
            return replay
        return self._unawaited.add(request.key, self._step(self._call(request, function, args, kwargs, options)))

    def awaited(self, key: str, work: Callable[[], Coroutine[Any, Any, Any]]) -> Coroutine[Any, Any, Any]:
        """The coroutine of a call that takes a place in the order. A run that returns without awaiting it fails."""

        async def begun() -> Any:
            self._unawaited.pop(key, None)
            return await work()

        return self._unawaited.add(key, begun())

    async def _replay(self, request: StepRequest, function: Callable[..., Any]) -> Any:
        """A step with a recorded value: most of the time of a wake."""
        self._unawaited.pop(request.key, None)
        self.stay(request.key)
        if self.checkpoints.undecided:
            self.checkpoints.decide_at(request)
        if self.has_ending:
            await self.reached(request)
        return self._replayed(request, function)

    def _replayed(self, request: StepRequest, function: Callable[..., Any]) -> Any:
        request.is_open, entry = False, request.entry
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
        self._unawaited.pop(request.key, None)
        self.on_loop(request.key)
        self.stay(request.key)
        self.checkpoints.decide_at(request)
        await self.leave_caught()
        await self.reached(request)
        try:
            while not self.checkpoints.is_over(request.key):
                if self._ends_in_time(request):
                    await time_limits.check(self, request)
                if (until := self._next_try(request)) is not None:
                    await self._wait_for_try(request, until)
                    continue
                await self.reached(request, CALL)
                if self._is_elsewhere(call):
                    await self.try_elsewhere(call)
                    continue
                with self.tries.progress(request):
                    if self._has_to_store:
                        await self._before_effect()
                    try:
                        self._keep(call, await self._value(call))
                    except Exception as error:
                        self._try_failed(call, error)
                    await self._store_try(request)
            await self.cut_again(request)
            return self._recorded(call)
        except asyncio.CancelledError as error:
            if not self.is_ending:
                self.cut_off(request, error)
            raise
        finally:
            self.checkpoints.end(request)

    def _is_elsewhere(self, call: StepCall) -> bool:
        """Whether a job of its own makes the tries of this step."""
        entry = self.checkpoints.entries.get(call.request.key)
        # A try may be under way although the step has no limits any more.
        is_begun = entry is not None and entry.is_tried and bool(entry.child)
        return (bool(call.options.limits) or is_begun) and not self.makes(call.request.key)

    def _ends_in_time(self, request: StepRequest) -> bool:
        """Whether a time limit may have passed before this step. While a job makes its try, that is a wait."""
        entry = self.checkpoints.entries.get(request.key)
        return time_limits.in_time_limit() and not (entry is not None and entry.child)

    async def try_elsewhere(self, call: StepCall, here: bool = False) -> None:
        """Make one try of a step by a job of its own, which obeys the limits of the step. Raises what the step raises.
        `here`: the function runs in a thread, which is suspended at once."""

    async def _store_try(self, request: StepRequest) -> None:
        """Store the entry of a try. A run that has made the try for which it was ends with it, and stores it then."""
        if self.makes(request.key):
            self.leave_tried()
        await self.backend.save(self.run)

    def end_with(self, outcome: Outcome) -> NoReturn:
        """End the run with this outcome, whichever task of the function calls this."""
        raise NotImplementedError

    def leave_tried(self) -> None:
        """Called when this run has made the try that it was for. Raises Suspend."""

    @property
    def is_ending(self) -> bool:
        """Whether the run ends, so that its tasks are cancelled for no reason of the function."""
        return self.backend.is_cancelled(self.run) or self.is_suspended

    @property
    def _has_to_store(self) -> bool:
        return bool(self.checkpoints.caught) or self.undos.to_store

    async def _before_effect(self) -> None:
        """Store what must be known before the function of a step runs."""
        if self.undos.to_store:
            await self.undos.store(self.backend, self.checkpoints)
        if self.checkpoints.caught:
            await self.backend.save(self.run)

    async def _value(self, call: StepCall) -> Any:
        with self._around(call.request):
            try:
                value = await self._called(call)
            except Exception:
                if self.streams is not None:
                    await self.streams.flush()
                raise
            if self.streams is not None:
                await self.streams.complete()
            return value

    async def _called(self, call: StepCall) -> Any:
        if not is_async(call.function):
            with limited_in_thread(call.request.key, call.options.timeout):
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
            raise too_long(call.request.key, call.options.timeout) from error

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
                if self._ends_in_time(request):
                    self.wait_here(time_limits.check(self, request))
                if (until := self._next_try(request)) is not None:
                    if self.short_waits.fits(Pending(until=until)):
                        self.wait_here(self.short_waits.hold(Pending(until=until)))
                        continue
                    key, until = self.wait_here(self.tries.alone(request, until))
                    self.leave(self.suspended_for(Pending(until=until, sleep=key)))
                self.checkpoints.reach(request, CALL)
                if self._is_elsewhere(call):
                    self.wait_here(self.try_elsewhere(call, here=True))
                    continue
                with self.tries.progress(request):
                    if self._has_to_store:
                        self.wait_here(self._before_effect())
                    try:
                        self._keep(call, self._value_here(call))
                    except Exception as error:
                        self._try_failed(call, error)
                    self.wait_here(self._store_try(request))
            return self._recorded(call)
        finally:
            self.checkpoints.end(request)

    def _value_here(self, call: StepCall) -> Any:
        with self._around(call.request):
            try:
                with limited_in_thread(call.request.key, call.options.timeout):
                    value = call.function()
            except Exception:
                if self.streams is not None:
                    self.wait_here(self.streams.flush())
                raise
            if self.streams is not None:
                self.wait_here(self.streams.complete())
            return value

    # --- in both

    def _request(
        self, name: str, function: Callable[..., Any], args: Any, kwargs: Any, options: StepOptions
    ) -> StepRequest:
        self.stay(name)
        if (options.retry is not None or options.limits) and self.run.place is IN_BATCH:
            raise BadStep(name, "a step of a batch has no `retry` and no `limits`: the other jobs would have to wait")
        if not callable(function):
            raise BadStep(name, f"expected a function and its arguments, found {function!r}")
        return self.checkpoints.ask(name, checksum_of(args, kwargs))

    def _call(
        self, request: StepRequest, function: Callable[..., Any], args: Any, kwargs: Any, options: StepOptions
    ) -> StepCall:
        self.backend.check(self.run)  # the step could not be stored, so its function must not run either
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
        with inside_step(request.branch, request.key), self.backend.around_step(self.run, request.key):
            yield

    def _keep(self, call: StepCall, value: object) -> None:
        """Record the encoded value."""
        request = call.request

        def entry() -> Checkpoint:
            text = call.signature.encode_result(value)
            tries = UNSET if call.options.retry is None else tries_of(self.checkpoints.entries.get(request.key)) + 1
            return valued(request, text, self._codec is not None, tries=tries)

        self.keep_or_fail(request, entry)

    def _try_failed(self, call: StepCall, error: Exception) -> None:
        """Record the error of a try if the step has options of its own; otherwise raise it, as every later run will if
        the function catches it."""
        request, retry = call.request, call.options.retry
        if isinstance(error, Defer) and self.makes(request.key):
            error = Defer(error.delay(self.moment()), limit=error.limit)  # an instant cannot be stored
        if judge.fails_as(error) == CODE and not self.makes(request.key):
            raise error
        failure, shown = failure_of(request.key, error, self.checkpoints.round)
        if retry is None or isinstance(error, Defer) or judge.fails_as(error) == CODE:
            if self.makes(request.key):
                self.checkpoints.keep(request, request.entry_of(failure=failure), is_last=True)
                return
            self.errors[request.key] = shown, error
            self.checkpoints.raised(request, failure)
            self._raise(request.key)
        tries = tries_of(self.checkpoints.entries.get(request.key)) + 1
        tried = judge.Failure.of(self.run.record, tries, retry)
        try:
            delay = call.options.next_delay(error, tried, self.backend.random())
        except Defer as deferral:
            self._try_failed(call, deferral)  # raises it, if its job runs here
            return
        until = UNSET if delay is None else self.latest_moment() + delay
        self.errors[request.key] = shown, error
        self.checkpoints.keep(request, request.entry_of(failure=failure, tries=tries, until=until))

    def suspended_for(self, pending: Pending) -> Outcome:
        """The outcome of a run that is suspended for this, and for the waits of its other tasks."""
        return time_limits.limited(pending).suspended(self.run.record, self.moment())

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

    def key(self, name: str | None) -> str:
        """The idempotency key of a step: the same in every run of this round, even after a retry of a dead job."""
        name = step_here.get()[0] if name is None else name
        if not name:
            raise BadStep("step_key", "give the name of the step, or call it within the function of the step")
        restarts = f"@{self.round.number}" if self.round.number else ""
        return f"{self.run.record.job.id}{restarts}:{name}"

    # --- the end of a run

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
