"""The run of one job, top to bottom: decode, call, encode, judge. What comes out is an Outcome.

Without it a claimed job would stay claimed. Nothing here touches the storage.
"""

from __future__ import annotations

import asyncio
import contextvars
import logging
from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from typing import Any, Protocol

from treadle import judge, middleware
from treadle.context import Context, enter
from treadle.errors import BadResult, TooLarge
from treadle.model import EXPIRED, Outcome, Record
from treadle.task import Task

log = logging.getLogger("treadle")

AnyTask = Task[..., Any, Any]


class Processes(Protocol):
    """Runs the tasks of kind "process"; cancelled, it kills the process."""

    async def run(self, task: AnyTask, record: Record) -> str: ...


class Runner:
    """How this worker runs jobs. One for all of them; what belongs to one job is in its Context."""

    def __init__(
        self, layers: Sequence[middleware.Middleware], on_error: judge.OnError | None, chance: Callable[[], float],
        now: Callable[[], float], result_limit: int, threads: Callable[[], Executor], processes: Callable[[], Processes],
    ) -> None:  # fmt: skip
        self._layers = middleware.overrides(layers, "run")
        self._on_error, self._chance, self._now, self._result_limit = on_error, chance, now, result_limit
        self._threads, self._processes = threads, processes

    async def run(self, task: AnyTask, context: Context, rules: judge.Rules) -> Outcome | None:
        """One attempt. None: the job is no longer ours, nothing may be written about it.

        Raises nothing but KeyboardInterrupt.
        """
        record = context.record
        enter(context)
        try:
            if self._layers or task.kind == "process":
                text = await self._wrapped(task, context)
            else:
                args, kwargs = task.signature.decode_call(record.job.payload)
                if task.kind == "async":
                    value = await task.function(*args, **kwargs)
                else:
                    value = await self._in_thread(task, args, kwargs)
                text = task.signature.encode_result(value)
            if len(text) * 4 > self._result_limit and (size := len(text.encode())) > self._result_limit:
                raise TooLarge(f"the result of {task.name}", size, self._result_limit)
        except asyncio.CancelledError as error:
            return self._stopped(task, context, rules, error)
        except KeyboardInterrupt:
            raise
        except BaseException as error:
            if context.why in ("timeout", "deadline", "lost"):
                return self._stopped(task, context, rules, error)
            return self._failed(task, context, rules, error)
        if context.why in ("timeout", "deadline", "lost"):
            return self._stopped(task, context, rules, None)
        return judge.succeeded(record, text, note=context.note)

    async def _wrapped(self, task: AnyTask, context: Context) -> str:
        """Through the middleware; what comes out at the outer end is the result."""
        if task.kind == "process":
            in_process: str = await middleware.around_run(
                self._layers, context, lambda: self._processes().run(task, context.record)
            )
            return in_process
        args, kwargs = task.signature.decode_call(context.record.job.payload)

        async def call() -> Any:
            if task.kind == "async":
                return await task.function(*args, **kwargs)
            return await self._in_thread(task, args, kwargs)

        return task.signature.encode_result(await middleware.around_run(self._layers, context, call))

    async def _in_thread(self, task: AnyTask, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
        """In a thread with this job's context. A thread cannot be cancelled: the slot is free when it has returned."""
        here = contextvars.copy_context()
        loop = asyncio.get_running_loop()
        future = loop.run_in_executor(self._threads(), lambda: here.run(task.function, *args, **kwargs))
        try:
            return await asyncio.shield(future)
        except asyncio.CancelledError:
            # Giving the job back while the function still runs would make two of it.
            await asyncio.wait([future])
            if not future.cancelled() and future.exception() is not None:
                log.info("%s raised after it was told to stop", task.name, exc_info=future.exception())
            raise

    def _stopped(self, task: AnyTask, context: Context, rules: judge.Rules, error: BaseException | None) -> Outcome | None:
        """The run was cut short, or had been told to stop and did not."""
        record, why = context.record, context.why
        if why == "lost":
            return None
        if why == "timeout":
            timed_out = TimeoutError(f"{task.name} ran longer than its timeout of {rules.timeout:g} s")
            timed_out.__cause__ = error if isinstance(error, Exception) else None
            return self._failed(task, context, rules, timed_out)
        if why == "deadline":
            return judge.ended(record, EXPIRED, "its deadline passed while it ran", note=context.note)
        if why == "stop":
            return judge.handed_back(record, note=context.note)
        return self._failed(task, context, rules, error or asyncio.CancelledError())

    def _failed(self, task: AnyTask, context: Context, rules: judge.Rules, error: BaseException) -> Outcome:
        record = context.record
        verdict = self._ask(task.on_error, error, context, rules) or self._ask(self._on_error, error, context, rules)
        return judge.failed(record, rules, error, verdict, self._now(), self._chance(), note=context.note)

    def _ask(
        self, on_error: judge.OnError | None, error: BaseException, context: Context, rules: judge.Rules
    ) -> judge.Verdict:
        """What the user's classifier says. One that raises is reported and has said nothing."""
        if on_error is None:
            return None
        record, attempts = context.record, rules.retry.attempts
        try:
            return on_error(error, judge.Failure(
                record.job.id, record.job.task, record.attempt + 1, attempts if isinstance(attempts, int) else None, record
            ))  # fmt: skip
        except Exception:
            log.exception("on_error failed for %s %s; the default is taken", record.job.task, record.job.id)
            return None


__all__ = ["BadResult", "Processes", "Runner"]
