"""Runs one job: decodes, calls the function, encodes the result and decides the Outcome. It stores nothing."""

from __future__ import annotations

import asyncio
import contextvars
import copy
import functools
import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Literal, Protocol

from msgspec.structs import replace

from treadle.concurrency import forks
from treadle.concurrency.threads import Threads
from treadle.core import defaults, interrupts
from treadle.core.errors import (
    ARGUMENTS,
    AnswerTooLarge,
    BadArgument,
    BadStep,
    JobNotDone,
    StorageError,
    TooLarge,
    UnknownJob,
)
from treadle.core.job import Continuation, Sender, inheriting
from treadle.core.model import EXPIRED, Outcome, Record, State
from treadle.durable import REACH, REPLACED, SWALLOWED, Cleanup, Suspend, is_suspension
from treadle.execution import middleware
from treadle.execution.context import Context
from treadle.execution.job_run import JobRun, enter
from treadle.execution.threads import in_thread
from treadle.policy import judge
from treadle.policy.attempts import RELEASED
from treadle.policy.retry import Abort, Defer, Retry, RetryAfter
from treadle.policy.rounds import present
from treadle.serialization.call_codec import MISSING
from treadle.tasks.core import BatchCore, TaskCore
from treadle.tasks.options import Sizes
from treadle.workflow import Followups, followups_of
from treadle.workflow.plan import concluded, continued, time_left

log = logging.getLogger("treadle")


class SystemTask:
    """A system task: it computes its outcome from the row and the storage's time.

    If it raises, the storage or a bug is the cause, so it is retried without end.
    """

    __slots__ = ("by_leader", "decide", "name", "serves")

    def __init__(
        self,
        name: str,
        decide: Callable[[Record, float], Awaitable[Outcome]],
        serves: str | None = None,
        by_leader: bool = False,
    ) -> None:
        self.name, self.decide = name, decide
        self.by_leader = by_leader  # one worker is enough: with roles, only the leader runs it
        self.serves = serves  # the task that it works for; workers that do not run that task do not claim it

    retry = Retry(attempts=None)
    timeout: None = None
    lease: None = None
    on_error: None = None
    max_lost = 0


FIRM = ("timeout", "deadline", "lost")  # reasons that end a run in any case; with "stop" the result counts


class Processes(Protocol):
    """Runs tasks of kind "process". Cancelling the call kills the process."""

    async def run(self, task: TaskCore, record: Record) -> str | Followups: ...


class Batches(Protocol):
    """Collects the jobs of batch tasks into calls."""

    async def join(self, task: BatchCore, run: JobRun, item: Any) -> Any: ...


class Pools(Protocol):
    """The executors of functions that are not async; each is created for the first job that needs it."""

    def threads(self) -> Threads: ...
    def processes(self) -> Processes: ...


class RunnerHost(Protocol):
    """The attributes of the app that a runner uses."""

    layers: list[middleware.Middleware]
    on_error: judge.OnError | None
    sizes: Sizes

    @property
    def client(self) -> Sender: ...
    def random(self) -> float: ...
    def now(self) -> float: ...


class Runner:
    """Runs all jobs of a worker. The state of a single job is in its JobRun."""

    def __init__(
        self, app: RunnerHost, pools: Pools, batches: Batches, troubles: dict[JobRun, BaseException | None]
    ) -> None:
        self._layers, self._calls = middleware.overrides(app.layers, "run"), middleware.overrides(app.layers, "call")
        self._is_wrapped = bool(self._layers or self._calls)
        self._sending, self._sender = middleware.overrides(app.layers, "enqueue"), app.client
        self._on_error, self._result_limit = app.on_error, app.sizes.result
        self._random, self._now = app.random, app.now
        self._threads, self._processes, self._batches = pools.threads, pools.processes, batches
        self._troubles = troubles  # for the log: runs that did not succeed, with their errors

    async def run_system_task(self, task: SystemTask, run: JobRun, rules: judge.Rules) -> Outcome:
        """Run a system task once. Raises no Exception."""
        record, began = run.record, self._now()
        try:
            outcome = await task.decide(record, began if record.started_at is None else record.started_at)
            if outcome.state is State.FAILED:
                self._troubles[run] = None
            return outcome
        except StorageError as error:
            log.warning("could not run %s %s now: %s", task.name, record.job.id, error)
            return judge.released(record, defaults.POLL)
        except Exception as error:
            log.exception("%s %s failed", task.name, record.job.id)
            return judge.failed(record, rules, error, None, record.started_at or began, self._random())

    def unfit(self, task: TaskCore, run: JobRun, rules: judge.Rules, error: Exception) -> Outcome:
        """The outcome of a job that this code cannot run."""
        run.began = self._now()
        return self._failed(task, run, rules, error)

    async def run(self, task: TaskCore, run: JobRun, rules: judge.Rules) -> Outcome | None:
        """Run one attempt. None: the lease was lost, and nothing may be settled.

        Raises nothing. A KeyboardInterrupt is a failed attempt, and also interrupts the loop if it may come from
        Ctrl-C.
        """
        # The storage's clock decides. This process's clock may be wrong, so only the time since the claim is used.
        run.began, process = self._now(), forks.tag
        enter(run)
        try:
            if run.record.checkpoints:
                run.record = present(run.record)
            if self._is_wrapped or task.kind != "async" or rules.pass_result:
                text = await self._result(task, run, rules)
            else:
                args, kwargs = task.signature.decode_call(run.record.job.payload)
                text = self._encode(task, await task.call(*args, **kwargs))
            if run.durable is not None:
                await run.durable.returned()
            if type(text) is str and len(text) * 4 > self._result_limit:
                self._check_size(task, text)
            elif type(text) is Followups:
                text = await self._passed_on(task, run, text)
        except BaseException as error:
            if forks.tag is not process:
                forks.end(error)
            return self._raised(task, run, rules, error)
        if forks.tag is not process:
            forks.end()
        if run.why is not None and run.why in FIRM:
            return self._stopped(task, run, rules, None)
        if run.durable is not None and (outcome := self._unfinished(task, run, rules)) is not None:
            return outcome
        if type(text) is Followups:  # `isinstance` of a Struct takes 0.15 us
            return self._goes_on(text, run, rules)
        return judge.succeeded(run.record, text, run.carried, run.note)

    async def clean(self, task: TaskCore, run: JobRun, rules: judge.Rules) -> Outcome | None:
        """Run the function of a job that has ended, to clean up; `run.durable` has its history. See `run`."""
        run.began, durable = self._now(), run.durable
        assert isinstance(durable, Cleanup)
        enter(run)
        run.record = present(run.record)

        async def call(*args: Any, **kwargs: Any) -> Any:
            if task.kind != "async":
                here = functools.partial(self._in_thread, task, run, task.call, args, kwargs)
                return await durable.cleaned(here, None)
            reach = REACH if rules.timeout is None else min(REACH, rules.timeout / 2)
            return await durable.cleaned(functools.partial(task.call, *args, **kwargs), reach)

        shown = copy.copy(task)
        shown.kind, shown.call = "async", call
        try:
            await self._result(shown, run, rules)
        except BaseException as error:
            if not durable.is_done or isinstance(error, asyncio.CancelledError):
                return self._raised(task, run, rules, error)
        if run.why is not None and run.why in FIRM:
            return self._stopped(task, run, rules, None)
        done = judge.succeeded(run.record, "null", run.carried, run.note)
        return self._unfinished(task, run, rules) or replace(done, result=None)

    def _unfinished(self, task: TaskCore, run: JobRun, rules: judge.Rules) -> Outcome | None:
        """The outcome of a run whose function has returned although the run sleeps or waits, or although a step was
        never awaited; None: it has ended."""
        assert run.durable is not None
        if run.durable.is_between_tries:
            return self._raised(task, run, rules, Suspend())
        if run.suspended_as is not None or run.durable.misuse() is not None:
            return self._left(task, run, rules, None)
        return None

    def _raised(self, task: TaskCore, run: JobRun, rules: judge.Rules, error: BaseException) -> Outcome | None:
        if isinstance(error, asyncio.CancelledError):
            if run.suspended_as is None or run.why is not None:
                return self._stopped(task, run, rules, error)
            error = Suspend()  # the function awaited tasks that wait
            if isinstance(run.place, asyncio.Task):
                run.place.uncancel()
        interrupts.pass_on(error)
        if run.durable is not None:
            run.durable.suspended_by(error)
        if run.why in FIRM or (run.why == "stop" and not isinstance(error, Defer | Abort | RetryAfter | Suspend)):
            return self._stopped(task, run, rules, error)
        if run.suspended_as is not None:
            return self._left(task, run, rules, error)
        return self._failed(task, run, rules, error)

    async def _passed_on(self, task: TaskCore, run: JobRun, following: Followups) -> Followups:
        """The jobs that a run returned, with its `child_headers`, and after the middleware."""
        if run.child_headers:
            following = replace(following, jobs=tuple([inheriting(new, run.child_headers) for new in following.jobs]))
        if not following.jobs or not self._sending:
            return following
        return replace(following, jobs=await middleware.prepared(self._sending, following.jobs, self._sender))

    def _goes_on(self, following: Followups, run: JobRun, rules: judge.Rules) -> Outcome:
        record = run.record
        if following.concludes:
            return run.with_carried(concluded(record, following.own or "null", run.note))
        remaining = time_left(record, run.storage_time(self._now()))
        return run.with_carried(
            continued(record, following.jobs, following.plan, following.own, remaining, run.note, rules.marks)
        )

    async def _result(self, task: TaskCore, run: JobRun, rules: judge.Rules) -> str | Followups:
        """Decode, call, encode. Raises the function's errors, BadArgument, BadResult and TooLarge."""
        run.kind = task.kind  # a plain async function without middleware does not come here
        first: object = MISSING
        if rules.pass_result:
            first = await _passed(task, run, rules.pass_result)
        if self._layers or task.kind == "process":
            return await self._wrapped(task, run, first)
        args, kwargs = task.signature.decode_call(run.record.job.payload, first=first)
        if task.kind == "async":
            value = await self._function(task, run)(*args, **kwargs)
        else:
            value = await self._elsewhere(task, run, args, kwargs)
        return self._encode(task, value)

    def _function(self, task: TaskCore, run: JobRun) -> Callable[..., Any]:
        """The function of the task, inside the `call` of each middleware."""
        if not self._calls:
            return task.call
        return middleware.inside_calls(self._calls, (Context(run),), task.call, task.kind == "async")

    def _check_size(self, task: TaskCore, text: str) -> None:
        if (size := len(text.encode())) > self._result_limit:
            raise TooLarge.of_result(f"the result of {task.name}", size, self._result_limit)

    def _encode(self, task: TaskCore, value: object) -> str | Followups:
        if type(value) is Followups:
            return value
        if not isinstance(value, Continuation):
            return task.signature.encode_result(value)
        return followups_of(value, task.signature.encode_result, self._result_limit, task.factory)

    async def _wrapped(self, task: TaskCore, run: JobRun, first: object) -> str | Followups:
        """Run through the middleware; the value that the outermost layer returns is the result."""
        record = run.record
        if task.kind == "process":
            if first is not MISSING:
                args, kwargs = task.signature.decode_call(record.job.payload, first=first)
                whole = task.signature.encode_call(args, kwargs)
                record = replace(record, job=replace(record.job, payload=whole))
            if not self._layers:
                return await self._processes().run(task, record)
            return self._encode(
                task, await middleware.around_run(self._layers, Context(run), lambda: self._in_process(task, record))
            )
        args, kwargs = task.signature.decode_call(record.job.payload, first=first)

        async def call() -> Any:
            if task.kind == "async":
                return await self._function(task, run)(*args, **kwargs)
            return await self._elsewhere(task, run, args, kwargs)

        return self._encode(task, await middleware.around_run(self._layers, Context(run), call))

    async def _in_process(self, task: TaskCore, record: Record) -> Any:
        """The value, decoded for the middleware, which must not see its text."""
        text = await self._processes().run(task, record)
        return text if isinstance(text, Followups) else task.signature.decode_result(text)

    async def _elsewhere(self, task: TaskCore, run: JobRun, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
        if isinstance(task, BatchCore):
            return await self._batches.join(task, run, *args, **kwargs)
        return await self._in_thread(task, run, self._function(task, run), args, kwargs)

    async def _in_thread(
        self, task: TaskCore, run: JobRun, function: Callable[..., Any], args: Sequence[Any], kwargs: dict[str, Any]
    ) -> Any:
        """Run in a thread with this job's context. A thread cannot be cancelled: it uses the slot until it returns."""
        here = contextvars.copy_context()

        def interrupt() -> None:
            if run.durable is not None:
                run.durable.interrupt()
            if run.waits_for is not None:
                run.waits_for.cancel()

        call = functools.partial(here.run, function, *args, **kwargs)
        return await in_thread(self._threads(), call, task.name, lambda: run.why == "stop", interrupt)

    def _stopped(self, task: TaskCore, run: JobRun, rules: judge.Rules, error: BaseException | None) -> Outcome | None:
        """The outcome of a run that was cancelled, or that continued after `stop`."""
        record, why = run.record, run.why
        if why == "lost":
            return None
        if why == "timeout":
            timed_out = TimeoutError(f"{task.name} ran longer than its timeout of {rules.timeout:g} s")
            if isinstance(error, Exception):
                timed_out.__cause__ = error
            elif error is not None:
                timed_out.__traceback__ = error.__traceback__  # where the function was when it was cancelled
            return self._failed(task, run, rules, timed_out)
        if why == "deadline":
            self._troubles[run] = None
            expired = judge.ended(record, EXPIRED, "its deadline passed while it ran", note=run.note)
            return run.with_attempt(expired, run.storage_time(self._now()))
        if why == "stop":
            self._troubles[run] = None
            return run.with_attempt(judge.released(record, note=run.note), run.storage_time(self._now()), RELEASED)
        return self._failed(task, run, rules, error or asyncio.CancelledError())

    def _left(self, task: TaskCore, run: JobRun, rules: judge.Rules, error: BaseException | None) -> Outcome:
        """The outcome of a run that sleeps or waits. If the function returned or raised instead, it failed."""
        if run.durable is not None and (misuse := run.durable.misuse()) is not None:
            return self._failed(task, run, rules, misuse)
        assert run.suspended_as is not None
        if is_suspension(error):
            self._troubles[run] = None
            return run.with_carried(replace(run.suspended_as, note=run.note))
        if error is None:
            error = BadStep("sleep", SWALLOWED)
            log.error("%s %s: %s", task.name, run.record.job.id, error)
        elif not isinstance(error, BadStep):
            error.add_note(REPLACED)
        return self._failed(task, run, rules, error)

    def _failed(self, task: TaskCore, run: JobRun, rules: judge.Rules, error: BaseException) -> Outcome:
        record, verdict = run.record, None
        self._troubles[run] = error
        is_final = False
        if run.durable is not None:
            error, is_final = run.durable.left_by(error)
        if not isinstance(error, Defer | Abort | RetryAfter):  # these already are verdicts
            failure = judge.Failure.of(record, record.attempt + 1, rules.retry)
            verdict = judge.verdict_of(task.on_error, error, failure) or judge.verdict_of(
                self._on_error, error, failure
            )
            if verdict is None and is_final:
                verdict = Abort()  # a further attempt would raise it at the same place
        moment = run.storage_time(self._now())
        outcome = judge.failed(record, rules, error, verdict, moment, self._random(), note=run.note)
        return run.with_attempt(outcome, moment)


async def _passed(task: TaskCore, run: JobRun, how: bool | Literal["list"]) -> object:
    """The result of the job that it waited for, or None if that job did not succeed. With "list": the results of the
    jobs that succeeded."""
    try:
        results = await Context(run).upstream()
    except AnswerTooLarge as error:  # a single row: waiting does not make it smaller
        wrong = BadArgument(task.name, None, f"the result of a job in after= cannot be read: {error}")
        wrong.fails_as = ARGUMENTS
        raise wrong from error
    except StorageError as error:
        raise Defer(defaults.POLL) from error  # the storage's fault, so it does not count as an attempt
    if how == "list":
        return [result for result in results if not isinstance(result, JobNotDone | UnknownJob)]
    if len(results) != 1:
        wrong = BadArgument(task.name, None, f"pass_result needs exactly one job in after=, found {len(results)}")
        wrong.fails_as = ARGUMENTS
        raise wrong
    return None if isinstance(results[0], JobNotDone | UnknownJob) else results[0]
