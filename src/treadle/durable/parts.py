"""The run of a job over the history of another one: of a cleanup, or of one try of a step that has limits.

Its recorded steps return what the history has. A run that makes one try of a step calls no function of another step,
and begins nothing: whatever else its function comes to, it waits there until that try ends the run.
"""

from __future__ import annotations

from collections.abc import Mapping, Set
from datetime import timedelta
from typing import Any, NoReturn

from msgspec import UNSET, Struct
from msgspec.structs import replace

from treadle.core.errors import BadStep, StepMismatch
from treadle.core.model import Outcome, State
from treadle.durable import time_limits
from treadle.durable.backend import EARLY, DurableBackend, DurableRun
from treadle.durable.checkpoints import AT_ONCE, MARK, SLEEP, STEP, Checkpoint, Checkpoints, StepRequest
from treadle.durable.failures import Failure
from treadle.durable.pending import Pending
from treadle.durable.run_locks import RunLocks, locks_of
from treadle.durable.steps import Durable
from treadle.durable.tries import StepCall
from treadle.durable.waits import Wait
from treadle.policy import judge
from treadle.serialization.call_codec import Codec


class Past:
    """The steps, sleeps and waits that a job had got behind."""

    def __init__(self, entries: Mapping[str, Checkpoint], claimed_at: float | None = None) -> None:
        self.entries, self._claimed_at = entries, claimed_at or 0.0
        self._followed = {entry.after.rstrip("&") for entry in entries.values()}
        self._cut = {entry.cut for entry in entries.values() if entry.cut}

    def has(self, request: StepRequest, kind: str) -> bool:
        """Whether the job had got behind this, or would have without any effect: a sleep that is over at once has no
        entry, and what follows it decides."""
        entry, key = request.entry, request.key
        if key in self._cut:
            return True
        if entry is None:
            # Followed: it was over at once in a run of an earlier version of the program.
            return kind == AT_ONCE or (kind == SLEEP and key in self._followed)
        if key not in self.entries or kind == MARK or entry.gave_up or entry.has_value or entry.over:
            return True
        if isinstance(entry.until, float):
            # Not merely its time has passed since: the job was claimed after it.
            return kind in (SLEEP, AT_ONCE) and entry.until <= self._claimed_at + EARLY
        return entry.failure is not UNSET


class Target(Struct, frozen=True):
    """The step of which a run makes one try.

    outer     the steps inside of which it is taken
    recorded  the names of the entries before it
    limits    those of the jobs inside of which it is tried
    """

    key: str
    outer: Set[str]
    recorded: Set[str]
    limits: Set[str]


class PartSteps(Checkpoints):
    """The entries of other rows, whose names are `earlier`, and those of the part that runs. `only`: the step of which
    it makes a try."""

    def __init__(self, run: DurableRun, backend: DurableBackend, earlier: Set[str], only: Target | None) -> None:
        row = run.record
        super().__init__(row.job.id, row.checkpoints, backend.sizes, run.place, row.reopenings, backend.offload)
        self.only, self._earlier = only, Past(self.among(earlier))
        self.passed: set[str] = set()  # what the job had got behind
        # The job may have used up its sizes. Its part has the same ones for its own steps.
        self.size.forget(len(self._earlier.entries))

    def among(self, names: Set[str]) -> dict[str, Checkpoint]:
        """The entries with these names, in the order in which they were stored."""
        return {key: entry for key, entry in self.entries.items() if key in names}

    def is_earlier(self, key: str) -> bool:
        """Whether this entry is one of another row."""
        return key in self._earlier.entries

    def has_passed(self, past: Past, request: StepRequest, kind: str) -> bool:
        """Whether the job had got behind this."""
        if not past.has(request, kind):
            return False
        if request.entry is None or request.key in past.entries:
            self.passed.add(request.key)
        return True

    def lets(self, request: StepRequest, kind: str) -> bool:
        """Whether the function passes this on its way to the step, or requests it inside of the step."""
        only, key = self.only, request.key
        if only is None or key == only.key or key in only.outer or only.key in request.branch.outer:
            return True
        return self.has_passed(self._earlier, request, kind)

    def reach(self, request: StepRequest, kind: str = STEP) -> None:
        if not self.lets(request, kind):
            assert self.only is not None
            raise StepMismatch(self.job, request.key, request.after, f"the step {self.only.key!r}, which has limits,")

    def pass_sleep(self, request: StepRequest) -> None:
        if not self.is_earlier(request.key):
            super().pass_sleep(request)


class Part(Durable):
    """The durable code of such a run. `job`: the id of the job whose function runs."""

    def __init__(
        self, run: DurableRun, backend: DurableBackend, codec: Codec | None, job: str, steps: PartSteps
    ) -> None:
        super().__init__(run, backend, codec)
        self.job, self.is_tried = job, False
        self.limits_around = steps.only.limits if steps.only is not None else ()
        self.checkpoints = self.steps = steps
        of_job = replace(run.record, job=replace(run.record.job, id=job))  # whose locks it gets
        self._locks = RunLocks(of_job, backend, self.moment, steps.note, lambda: backend.save(run))
        self._kept = {lock.key for lock in locks_of(run.record.checkpoints)}

    async def reached(self, request: StepRequest, kind: str = STEP) -> None:
        while not self.steps.lets(request, kind):
            await self._parking.park(request, is_for_good=True)

    async def _look(self, wait: Wait) -> Pending | None:
        if wait.request.key in self.steps.passed:
            await self.cut_again(wait.request)  # the job had got behind it, or its function has cut it off
            await time_limits.check(self, wait.request, recorded_only=True)
            return None
        return await super()._look(wait)

    def is_own(self, key: str) -> bool:
        """The time limits of the job pass in its own runs only."""
        return not self.steps.is_earlier(key)

    def refuse(self, why: str) -> None:
        only = self.steps.only
        super().refuse(why if only is None else f"the function does not come to the step {only.key!r} any more: {why}")

    def refuse_message(self) -> None:
        """Nothing can be sent to this job."""
        self._refuse_in_step("wait for a message")

    async def restart(self, args: Any, kwargs: Any) -> NoReturn:
        self._refuse_in_step("restart")

    def refuse_transaction(self) -> None:
        """The transaction of a run commits the ending of its job."""
        self._refuse_in_step("transaction()")

    def _refuse_in_step(self, what: str) -> NoReturn:
        raise BadStep(
            what, "a step with limits runs in a job of its own: call this in the function, outside of the step"
        )

    async def win(self, key: str, keep: float | timedelta) -> bool:
        is_in_step = self.steps.only is not None and self.is_in_step()
        return key in self._kept or (is_in_step and await super().win(key, keep))

    def is_in_step(self) -> bool:
        """Whether the caller is inside of the step that is tried, or of any step of a cleanup. Code outside
        repeats the function of the job."""
        only, outer = self.steps.only, self.checkpoints.here().outer
        return bool(outer) if only is None else only.key in outer

    def key(self, name: str | None) -> str:
        return super().key(name).replace(self.run.record.job.id, self.job, 1)

    def makes(self, key: str) -> bool:
        return self.steps.only is not None and self.steps.only.key == key

    def _is_elsewhere(self, call: StepCall) -> bool:
        only = self.steps.only
        return super()._is_elsewhere(call) and (only is None or call.request.key not in only.outer)

    def failed_with(self, request: StepRequest, failure: Failure) -> Exception:
        if self.makes(request.key):
            self.checkpoints.keep(request, request.entry_of(failure=failure), is_last=True)
            self.leave_tried()
        return super().failed_with(request, failure)

    def leave_tried(self) -> NoReturn:
        """The try has been made, and its entry is the result of this job."""
        assert self.steps.only is not None
        self.is_tried = True
        self.end_with(judge.succeeded(self.run.record, self.checkpoints.unsaved[self.steps.only.key]))

    async def concluded(self, outcome: Outcome) -> Outcome:
        if self.steps.only is not None and outcome.state is State.SUCCEEDED:
            self.checkpoints.unsaved.pop(self.steps.only.key, None)
        return await super().concluded(outcome)
