"""The state of the durable code of one run: its history, whether it is suspended, its clock, and its thread."""

from __future__ import annotations

import asyncio
import concurrent.futures
from collections.abc import Coroutine, Sequence
from typing import Any, NoReturn, TypeVar

from msgspec import UNSET, UnsetType

from treadle.core.errors import BadStep
from treadle.core.model import ASLEEP, NewJob, Outcome
from treadle.durable.backend import IN_BATCH, SWALLOWED, DurableBackend, DurableRun, Stopped, Suspend
from treadle.durable.checkpoints import STEP, Checkpoints, StepRequest
from treadle.durable.run_mailboxes import RunMailboxes
from treadle.policy.rounds import round_of
from treadle.workflow.plan import time_left

T = TypeVar("T")

MOST_REPEATED = 100  # times that a suspension is raised again in one run


class DurableState:
    """The part that steps, sleeps and waits of a run share."""

    has_ending = False  # `reached` may raise the ending of a job

    def __init__(self, run: DurableRun, backend: DurableBackend) -> None:
        self.run, self.backend = run, backend
        row = run.record
        self.job = row.job.id  # the job whose function runs
        place = None if run.place is IN_BATCH else run.place  # a batch has the place of each item's first step
        self.checkpoints = Checkpoints(
            row.job.id, row.checkpoints, backend.sizes, place, row.reopenings, backend.offload
        )
        self.round = round_of(row.checkpoints)
        self.mailboxes = RunMailboxes(row.checkpoints)
        self.locks: dict[str, StepRequest] = {}  # by their names, those that this run has or waits for
        self.errors: dict[str, tuple[Exception, Exception]] = {}  # step -> the error it raised, and its function's own
        self._between: Outcome | None = None  # a task of the function has suspended the run between two tries
        self._repeated = 0  # how often a suspension was raised again
        self._misused: BadStep | None = None  # a branch of this run waited in a way that cannot be repeated
        self._pending: concurrent.futures.Future[Any] | None = None
        self._interrupted = False

    def makes(self, key: str) -> bool:
        """Whether this run makes one try of this step, and ends with it."""
        return False

    async def reached(self, request: StepRequest, kind: str = STEP) -> None:
        """As `Checkpoints.reach`, in a coroutine."""

    def is_own(self, key: str) -> bool:
        """Whether an entry of this key is one of this row, in which time limits pass and errors are forgotten."""
        return True

    def refuse_message(self) -> None:
        """Called by a wait for a message that has none in its entry. Raises in a run that receives no messages."""

    def refuse(self, why: str) -> None:
        """The run fails whatever its function does, because the function may not see the error of a task."""
        self._misused = BadStep("wait", why)

    @property
    def is_suspended(self) -> bool:
        """Whether the run has been suspended, so that its tasks are cancelled for no reason of the function."""
        return self.run.suspended_as is not None or self._between is not None

    def timed_out(self, request: StepRequest, text: str) -> TimeoutError:
        """The error of a wait or a time limit that has timed out. The history has it: later runs raise the same."""
        error = TimeoutError(text)
        self.errors[request.key] = error, error
        return error

    def asked(self, name: str, args: str | UnsetType = UNSET, key: str | None = None) -> StepRequest:
        """The next wait of that name. Its position in the order is where this is called."""
        self.stay(name)
        if self.run.place is IN_BATCH:
            raise BadStep(name, "a job of a batch cannot sleep; return Defer(...) as its result instead")
        return self.checkpoints.ask(name, args, key)

    def came_due(self, key: str) -> bool:
        """Whether the last run ended by suspending for this sleep, and the storage has queued the job when it was over.
        After a step back of its clock the storage corrects the due time of the row, but not the time in the entry. A
        run that ended in any other way has left no such reason: the time in the entry decides."""
        return self.run.record.reason == ASLEEP + key

    def moment(self) -> float:
        """Now, by the storage's clock: the time of the last claim, plus the time since its answer came by this
        process's clock. It is never later than the storage's clock, so nothing is over too early."""
        return self._since_claim(self.run.came)

    def latest_moment(self) -> float:
        """As `moment`, but never earlier than the storage's clock: what begins here does not end too early."""
        return self._since_claim(self.run.sent)

    def _since_claim(self, at: float) -> float:
        now, claimed = self.backend.now(), self.run.record.started_at
        return now if claimed is None else claimed + max(0.0, now - at)

    async def adopted(self, jobs: Sequence[NewJob]) -> tuple[NewJob, ...]:
        """These jobs as children of the run's job."""
        return await self.backend.adopted(self.run, jobs, time_left(self.run.record, self.moment()))

    async def leave_caught(self) -> None:
        """Leave the locks whose blocks were left by errors that the function has caught."""
        while self.checkpoints.leaving:
            await self.checkpoints.leaving.pop(0)()

    def leave(self, outcome: Outcome) -> NoReturn:
        self.run.suspended_as = outcome
        raise Suspend

    def stay(self, step: str) -> None:
        """Raise the suspension again if the run has been suspended: a `finally` or the end of an `async with` stops
        here, too. Raises BadStep for a loop that swallows it."""
        if self.run.suspended_as is None and self._between is None:  # `is_suspended`, twice a step of a replay
            return
        self._repeated += 1
        if self._repeated > MOST_REPEATED:
            raise BadStep(step, SWALLOWED)
        raise Suspend

    def on_loop(self, what: str) -> None:
        """Raise BadStep on another event loop than the worker's."""
        if asyncio.get_running_loop() is not self.backend.loop:
            raise BadStep(what, "was awaited on another event loop; in a thread use current().sync")

    def wait_here(self, work: Coroutine[Any, Any, T]) -> T:
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
        except TimeoutError as copy:  # which asyncio makes
            raise next((error for error, _ in self.errors.values() if error.args == copy.args), copy) from None
        except concurrent.futures.CancelledError:
            raise Stopped from None
        finally:
            self._pending = None

    def interrupt(self) -> None:
        """The run was cancelled: a thread that waits for the storage stops waiting."""
        self._interrupted = True
        if self._pending is not None:
            self._pending.cancel()
