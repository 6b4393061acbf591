"""The durable code of a job: the part of `current()` that takes steps, sleeps and waits.

A call is placed in the order of the function's steps when it is made, and begins when it is awaited.
"""

from __future__ import annotations

from collections.abc import Coroutine
from datetime import datetime, timedelta
from typing import Any, NoReturn, TypeVar, overload

import msgspec

from treadle.core import defaults
from treadle.core.errors import NestedTransaction, NotRunning
from treadle.durable import Durable, Once
from treadle.execution.job_run import JobRun
from treadle.execution.step_calls import Step, SynchronousStep

T = TypeVar("T")


class DurableContext(msgspec.Struct, frozen=True):
    """The methods of `current()` for durable code."""

    _run: JobRun

    @property
    def step(self) -> Step:
        """Run a function once in the life of this job: `await current().step("charge", charge, order)`. See `Step`."""
        return Step(self._durably)

    def sleep(
        self, length: float | timedelta | None = None, *, until: datetime | None = None, name: str = "sleep"
    ) -> Coroutine[Any, Any, None]:
        """Sleep for this many seconds, or until an instant, without using a slot. An exception that `except Exception`
        does not catch ends the run, and the function runs again from its start when the time is over. Sleeping does not
        count as an attempt. Raises BadStep and StepMismatch."""
        durable = self._durably(name)

        async def sleep() -> None:
            durable.alone(name)
            await durable.sleep(durable.checkpoints.ask(f"sleep:{name}"), length, until)

        return durable.awaited(f"sleep:{name}", sleep)

    @overload
    def wait_for(self, name: str, timeout: float | timedelta | None = None) -> Coroutine[Any, Any, Any]: ...
    @overload
    def wait_for(
        self, name: str, timeout: float | timedelta | None = None, *, returns: type[T]
    ) -> Coroutine[Any, Any, T]: ...
    def wait_for(
        self, name: str, timeout: float | timedelta | None = None, *, returns: Any = Any
    ) -> Coroutine[Any, Any, Any]:
        """The value of `app.jobs.signal(id, name, value)`, decoded as `returns`. The wait uses no slot, see `sleep`;
        the signal may have been given before.

        Raises TimeoutError after `timeout` seconds (the run may wait for the name again), BadStep and StepMismatch.
        """
        durable = self._durably(name)

        async def wait() -> Any:
            durable.alone(name)
            return await durable.wait_for(name, durable.checkpoints.ask(f"wait:{name}"), timeout, returns)

        return durable.awaited(f"wait:{name}", wait)

    def patched(self, name: str) -> bool:
        """Whether this job takes the code of a change: `if current().patched("fraud-check"):` new code, `else:` old
        code. Nothing is awaited. False for a job that had passed this point before the change, in all its later runs;
        True for all others, whose history gets a marker. The first call of a name in a run decides for all of them, so
        a loop does not change its code half-way. Remove the old code when `treadle storage check` says that no stored
        job needs it. Raises BadStep."""
        return self._durably(name).patched(name)

    def restart(self, *args: Any, **kwargs: Any) -> Coroutine[Any, Any, NoReturn]:
        """Begin anew in the same job: `await current().restart(state)` ends this run as a sleep does, and the function
        runs again with these arguments instead of its own. The steps, sleeps and waits stored so far are deleted in the
        same change; id, deadline, children and jobs that wait for this one stay. An endless loop that restarts now and
        then keeps a short history. Raises BadArgument, BadStep and TooLarge."""
        durable = self._durably("restart")

        async def restart() -> NoReturn:
            durable.alone("restart")
            durable.restart(args, kwargs)

        return durable.awaited("restart", restart)

    def once(self, key: str, keep: float | timedelta = defaults.ONCE) -> Once:
        """`async with current().once("report:monday") as first:`, or `with` in a thread. `first` is True for only one
        of all jobs that use this key within `keep` seconds, in later runs of that job too. The key is released if the
        block raises or the attempt fails."""
        return Once(self._durably("once"), key, keep)

    def step_key(self, name: str | None = None) -> str:
        """An idempotency key for a step's external effects: the same in every run, also after a retry of a dead job.
        Without a name, the key of the step whose function runs here."""
        return self._durably().key(name)

    @property
    def sync(self) -> Synchronous:
        """`step`, `sleep` and `wait_for` for functions in threads."""
        return Synchronous(self._durably("sync"))

    def _durably(self, step: str | None = None) -> Durable:
        run = self._run
        if step is not None and run.transaction is not None:
            # With a single writer the step would wait for itself; with any storage a sleep would roll back the block.
            raise NestedTransaction(
                f"{step!r}: take steps and sleep before current().transaction(), whose commit ends the job"
            )
        if run.durable is None:
            backend = run.durable_backend
            if backend is None:
                raise NotRunning(
                    'steps, sleeps and waits do not work in a function of kind="process": take them in an async task '
                    "or in one in a thread, and let that wait for jobs of this task"
                )
            run.durable = Durable(run, backend, backend.codec(run.record.job.task))
            if run.version is not None and run.version not in run.record.checkpoints:
                run.durable.checkpoints.note(run.version)
        return run.durable


class Synchronous:
    """Durable code for functions in threads: `current().sync`."""

    def __init__(self, durable: Durable) -> None:
        self._durable = durable

    @property
    def step(self) -> SynchronousStep:
        """As `current().step`; the function runs in this thread."""
        return SynchronousStep(self._durable)

    def sleep(
        self, length: float | timedelta | None = None, *, until: datetime | None = None, name: str = "sleep"
    ) -> None:
        """As `current().sleep`."""
        durable = self._durable
        durable.alone(name, here=True)
        durable.wait_here(durable.sleep(durable.checkpoints.ask(f"sleep:{name}"), length, until))

    @overload
    def wait_for(self, name: str, timeout: float | timedelta | None = None) -> Any: ...
    @overload
    def wait_for(self, name: str, timeout: float | timedelta | None = None, *, returns: type[T]) -> T: ...
    def wait_for(self, name: str, timeout: float | timedelta | None = None, *, returns: Any = Any) -> Any:
        """As `current().wait_for`."""
        durable = self._durable
        durable.alone(name, here=True)
        return durable.wait_here(durable.wait_for(name, durable.checkpoints.ask(f"wait:{name}"), timeout, returns))

    def patched(self, name: str) -> bool:
        """As `current().patched`."""
        return self._durable.patched(name)

    def restart(self, *args: Any, **kwargs: Any) -> NoReturn:
        """As `current().restart`."""
        durable = self._durable
        durable.alone("restart", here=True)
        durable.restart(args, kwargs)
