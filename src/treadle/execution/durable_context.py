"""The durable code of a job: the part of `current()` that takes steps, sleeps and waits.

A call is placed in the order of the function's steps when it is made, and begins when it is awaited.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from datetime import datetime, timedelta
from typing import Any, NoReturn, ParamSpec, TypeVar, overload

from treadle.core import defaults
from treadle.core.errors import BadStep
from treadle.durable import (
    APPROVE,
    ApprovalWait,
    Ask,
    Lock,
    MailboxWait,
    Once,
    Question,
    SignalWait,
    Sleep,
    SynchronousAsk,
    Waiting,
    check_name,
    publish,
    publish_here,
)
from treadle.execution.step_calls import Step, SynchronousStep
from treadle.execution.stream_calls import Stream, SynchronousStream
from treadle.execution.wait_calls import SynchronousWaits, WaitContext
from treadle.policy.retry import seconds
from treadle.policy.run_log import LOG
from treadle.workflow import Approval

P = ParamSpec("P")
T = TypeVar("T")


class DurableContext(WaitContext, frozen=True):
    """The methods of `current()` for durable code."""

    @property
    def step(self) -> Step:
        """Run a function once in the life of this job: `await current().step("charge", charge, order)`. See `Step`."""
        return Step(_durably=self._durably)

    def sleep(
        self, length: float | timedelta | None = None, *, until: datetime | None = None, name: str = "sleep"
    ) -> Waiting[None]:
        """Sleep for this many seconds, or until an instant, without using a slot. An exception that `except Exception`
        does not catch ends the run, and the function runs again from its start when the time is over. Sleeping does not
        count as an attempt. Raises BadOption, BadStep and StepMismatch."""
        durable = self._durably(name)
        return durable.waiting(Sleep(durable, durable.asked(f"sleep:{name}"), length, until))

    @overload
    def wait_for(self, name: str, timeout: float | timedelta | None = None) -> Waiting[Any]: ...
    @overload
    def wait_for(self, name: str, timeout: float | timedelta | None = None, *, returns: type[T]) -> Waiting[T]: ...
    def wait_for(self, name: str, timeout: float | timedelta | None = None, *, returns: Any = Any) -> Waiting[Any]:
        """The value of `app.jobs.signal(id, name, value)`, decoded as `returns`. The wait uses no slot, see `sleep`;
        the signal may have been given before.

        Raises TimeoutError after `timeout` seconds (the run may wait for the name again), BadStep and StepMismatch.
        """
        durable = self._durably(name)
        return durable.waiting(SignalWait(durable, durable.asked(f"wait:{name}"), name, timeout, returns))

    @overload
    def receive(self, name: str, timeout: float | timedelta | None = None) -> Waiting[Any]: ...
    @overload
    def receive(self, name: str, timeout: float | timedelta | None = None, *, returns: type[T]) -> Waiting[T]: ...
    def receive(self, name: str, timeout: float | timedelta | None = None, *, returns: Any = Any) -> Waiting[Any]:
        """The next value that `app.jobs.send(id, name, value)` has put in this mailbox, decoded as `returns`: each one
        once, in the order of the sends. The wait uses no slot, see `sleep`.

        Raises TimeoutError after `timeout` seconds (the run may receive again), BadStep and StepMismatch.
        """
        durable = self._durably(name)
        return durable.waiting(MailboxWait(durable, durable.asked(f"receive:{name}"), name, timeout, returns))

    @overload
    def receive_ask(self, name: str, timeout: float | timedelta | None = None) -> Waiting[Ask[Any]]: ...
    @overload
    def receive_ask(
        self, name: str, timeout: float | timedelta | None = None, *, returns: type[T]
    ) -> Waiting[Ask[T]]: ...
    def receive_ask(
        self, name: str, timeout: float | timedelta | None = None, *, returns: Any = Any
    ) -> Waiting[Ask[Any]]:
        """As `receive`, for messages of `app.jobs.ask(id, name, value)`: the value is `ask.value`, and
        `await ask.answer(value)` or `await ask.refuse(why)` answers the sender."""
        durable = self._durably(name)
        return durable.waiting(MailboxWait(durable, durable.asked(f"receive:{name}"), name, timeout, returns, Ask))

    def approve(
        self, name: str, *, by: str = "", until: float | timedelta | datetime | None = None, show: object = None
    ) -> Waiting[Approval]:
        """Ask a person, and wait for the decision: `if await current().approve("refund", by="group:finance"):`. The
        wait uses no slot, see `sleep`. `app.jobs.decide`, the command line, the HTTP API, the dashboard or a signed
        link decides, once.

        by     who may decide: "group:NAME", "user:NAME", or "": every operator
        until  seconds, or an aware datetime, after which nobody can decide any more. None: no end
        show   what the person decides about, any JSON. A later run must show the same

        Raises TimeoutError after `until` (the run may ask again), BadOption, TooLarge, BadStep and StepMismatch.
        """
        durable = self._durably(name)
        question = Question(name, by, show)
        request = durable.asked(APPROVE + name, question.checksum)
        return durable.waiting(ApprovalWait(durable, request, question, until))

    def publish(self, name: str, value: object) -> Coroutine[Any, Any, None]:
        """Publish a value that `app.jobs.value(id, name)` reads, even after the job has ended, in place of the last one
        of that name. It is stored with the next step, sleep or wait, before the function of a step runs.

        At most 64 names of 64 KiB each. Raises BadStep, BadOption, TooLarge and StepMismatch.
        """
        durable = self._durably(name)
        return durable.awaited(f"publish:{name}", lambda: publish(durable, name, value))

    def stream(self, name: str, keep: float | timedelta | None = None) -> Stream:
        """A stream of this job: `await current().stream("tokens").write(text)` adds a chunk, which
        `app.jobs.follow(job, "tokens")` reads at once, and any time later. In a durable function write in a step: if
        that runs again, readers learn that the chunks of its earlier try are void.

        keep  seconds for which a chunk is kept, at least until the workflow has ended; None: as long as the job
        Raises BadStep and BadOption.
        """
        return Stream(self._durably, *_checked(name, keep))

    def patched(self, name: str) -> bool:
        """Whether this job takes the code of a change: `if current().patched("fraud-check"):` new code, `else:` old
        code. Nothing is awaited. False for a job that had passed this point before the change, in all its later runs;
        True for all others, whose history gets a marker. The first call with a name decides for the whole run, so a
        loop does not change its code between two passes. Remove the old code when `treadle storage check` says that no
        stored job needs it. Raises BadStep."""
        return self._durably(name).patched(name)

    def restart(self, *args: Any, **kwargs: Any) -> Coroutine[Any, Any, NoReturn]:
        """Start over in the same job: `await current().restart(state)` ends this run as a sleep does, and the function
        runs again with these arguments instead of its own. The steps, sleeps and waits stored so far are deleted in the
        same change, and children that have not ended are cancelled; id, deadline and jobs that wait for this one stay.
        An endless loop that restarts now and then keeps a short history. Raises BadArgument, BadStep and TooLarge."""
        durable = self._durably("restart")

        async def restart() -> NoReturn:
            durable.alone("restart")
            await durable.restart(args, kwargs)

        return durable.awaited("restart", restart)

    def on_undo(self, function: Callable[P, object], /, *args: P.args, **kwargs: P.kwargs) -> None:
        """Register a function that undoes what the next step does. If the job does not succeed, whatever ends it, the
        registered functions run, the last one first: each as a step of the job's cleanup job, with attempts of its own.
        The function must accept that the step has not had its effect: the worker may have died before it. Async and
        plain functions, in threads too. Raises BadStep in a batch."""
        self._durably("on_undo").on_undo(function, args, kwargs)

    def once(self, key: str, keep: float | timedelta = defaults.ONCE) -> Once:
        """`async with current().once("report:monday") as first:`, or `with` in a thread. `first` is True for only one
        of all jobs that use this key within `keep` seconds, in later runs of that job too. The key is released if the
        block raises or the attempt fails."""
        return Once(self._durably("once"), key, keep)

    def lock(self, name: str) -> Lock:
        """`async with current().lock("account:7") as number:` lets one job at a time into the block, in the whole
        fleet, in the order in which they asked for the lock. The wait uses no slot, see `sleep`. The job has the lock
        until it leaves the block, over sleeps, retries and lost workers, or until it has ended, however it ends.
        `number` rises with each owner. Pass it to the resource that the lock protects, so that the resource can refuse
        a late call of an earlier owner. Raises StepMismatch, and BadStep, for example if this job has the lock
        already."""
        return Lock(self._durably("lock"), name)

    def step_key(self, name: str | None = None) -> str:
        """An idempotency key for a step's external effects: the same in every run, even after a retry of a dead job.
        Without a name, the key of the step whose function runs here."""
        return self._durably().key(name)

    @property
    def sync(self) -> Synchronous:
        """The same calls for functions in threads, which return their values."""
        return Synchronous(self._durably("sync"))


class Synchronous(SynchronousWaits):
    """Durable code for functions in threads: `current().sync`."""

    @property
    def step(self) -> SynchronousStep:
        """As `current().step`; the function runs in this thread."""
        return SynchronousStep(_durable=self._durable)

    def sleep(
        self, length: float | timedelta | None = None, *, until: datetime | None = None, name: str = "sleep"
    ) -> None:
        """As `current().sleep`."""
        durable = self._durable
        durable.wait_here(durable.over_here(Sleep(durable, durable.asked(f"sleep:{name}"), length, until)))

    @overload
    def wait_for(self, name: str, timeout: float | timedelta | None = None) -> Any: ...
    @overload
    def wait_for(self, name: str, timeout: float | timedelta | None = None, *, returns: type[T]) -> T: ...
    def wait_for(self, name: str, timeout: float | timedelta | None = None, *, returns: Any = Any) -> Any:
        """As `current().wait_for`."""
        durable = self._durable
        wait = SignalWait(durable, durable.asked(f"wait:{name}"), name, timeout, returns)
        return durable.wait_here(durable.over_here(wait))

    @overload
    def receive(self, name: str, timeout: float | timedelta | None = None) -> Any: ...
    @overload
    def receive(self, name: str, timeout: float | timedelta | None = None, *, returns: type[T]) -> T: ...
    def receive(self, name: str, timeout: float | timedelta | None = None, *, returns: Any = Any) -> Any:
        """As `current().receive`."""
        durable = self._durable
        wait = MailboxWait(durable, durable.asked(f"receive:{name}"), name, timeout, returns)
        return durable.wait_here(durable.over_here(wait))

    @overload
    def receive_ask(self, name: str, timeout: float | timedelta | None = None) -> SynchronousAsk[Any]: ...
    @overload
    def receive_ask(
        self, name: str, timeout: float | timedelta | None = None, *, returns: type[T]
    ) -> SynchronousAsk[T]: ...
    def receive_ask(self, name: str, timeout: float | timedelta | None = None, *, returns: Any = Any) -> Any:
        """As `current().receive_ask`."""
        durable = self._durable
        wait = MailboxWait(durable, durable.asked(f"receive:{name}"), name, timeout, returns, SynchronousAsk)
        return durable.wait_here(durable.over_here(wait))

    def approve(
        self, name: str, *, by: str = "", until: float | timedelta | datetime | None = None, show: object = None
    ) -> Approval:
        """As `current().approve`."""
        durable, question = self._durable, Question(name, by, show)
        request = durable.asked(APPROVE + name, question.checksum)
        decided: Approval = durable.wait_here(durable.over_here(ApprovalWait(durable, request, question, until)))
        return decided

    def lock(self, name: str) -> Lock:
        """As `current().lock`, for `with`."""
        return Lock(self._durable, name)

    def once(self, key: str, keep: float | timedelta = defaults.ONCE) -> Once:
        """As `current().once`, for `with`."""
        return Once(self._durable, key, keep)

    def on_undo(self, function: Callable[P, object], /, *args: P.args, **kwargs: P.kwargs) -> None:
        """As `current().on_undo`."""
        self._durable.on_undo(function, args, kwargs)

    def step_key(self, name: str | None = None) -> str:
        """As `current().step_key`."""
        return self._durable.key(name)

    def publish(self, name: str, value: object) -> None:
        """As `current().publish`."""
        publish_here(self._durable, name, value)

    def stream(self, name: str, keep: float | timedelta | None = None) -> SynchronousStream:
        """As `current().stream`."""
        return SynchronousStream(self._durable, *_checked(name, keep))

    def patched(self, name: str) -> bool:
        """As `current().patched`."""
        return self._durable.patched(name)

    def restart(self, *args: Any, **kwargs: Any) -> NoReturn:
        """As `current().restart`."""
        durable = self._durable
        durable.alone("restart", here=True)
        raise durable.wait_here(durable.restart(args, kwargs))  # which raises the suspension


def _checked(name: str, keep: float | timedelta | None) -> tuple[str, float | None]:
    check_name(name)
    if name == LOG:
        raise BadStep(name, "is the stream of the log lines of a job; choose another name for the stream")
    return name, None if keep is None else seconds(keep, "stream.keep")
