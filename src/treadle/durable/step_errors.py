"""The errors of steps, as far as a run knows them: which is raised where, and which is stored."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import NoReturn

from msgspec import UNSET
from msgspec.structs import replace

from treadle.core.errors import BadResult, StepMismatch, TooLarge
from treadle.durable import time_limits
from treadle.durable.checkpoints import Checkpoint, StepRequest
from treadle.durable.failures import CUT_OFF, MESSAGE, Failure, error_of, failure_of, leaves
from treadle.durable.state import DurableState


class StepErrors(DurableState):
    """The errors of the steps of one run."""

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
        raise self.failed_with(request, replace(failure, round=self.checkpoints.round)) from error

    def failed_with(self, request: StepRequest, failure: Failure) -> Exception:
        """The error that the step raises here for this failure, which is stored if the function catches it."""
        shown = error_of(request.key, failure)
        self.errors[request.key] = shown, shown
        self.checkpoints.raised(request, failure)
        return shown

    def keep_or_fail(self, request: StepRequest, entry: Callable[[], Checkpoint]) -> None:
        """Record this entry. If it cannot be stored, record that, so that no later run does the same work."""
        try:
            self.checkpoints.keep(request, entry())
        except (BadResult, TooLarge) as error:
            if isinstance(error, BadResult):
                error = BadResult(error.task, error.problem[:MESSAGE])  # a codec of the user may give a longer one
            failure, _ = failure_of(request.key, error)
            self.checkpoints.keep(request, request.entry_of(failure=failure), is_last=True)

    def _raise(self, key: str) -> NoReturn:
        """Raise the error of a step that is known in this run."""
        shown, error = self.errors[key]
        if shown is error:
            raise error
        raise shown from error

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

    def left_by(self, error: BaseException) -> tuple[BaseException, bool]:
        """The error of the user's function for the one that left the function, and whether the history has it: then
        every further attempt would raise it at the same place."""
        parts, is_final = list(leaves(error)), False
        for key, (shown, original) in self.errors.items():
            if any(shown is part for part in parts):
                entry = self.checkpoints.entries.get(key)
                is_final = is_final or (entry is not None and not entry.is_tried)
                error = original if error is shown else error
        return error, is_final
