"""The health of one worker, as seen from inside its event loop."""

from __future__ import annotations

from typing import Literal

from msgspec import Struct

from treadle.worker.probes import Verdict

WorkerStage = Literal["stopped", "starting", "claiming", "stopping"]


class WorkerHealth(Struct, frozen=True, kw_only=True):
    """The result of `Worker.health`.

    worker       its name
    stage        starting: it waits for its storage, or opens its resources; claiming: it claims jobs as slots are free
    running      jobs that run now
    slots        jobs that may run at once
    started      jobs that it has started to run, those of system tasks included
    storage_away seconds for which claims or heartbeats have failed; None: they work
    """

    worker: str
    stage: WorkerStage
    running: int = 0
    slots: int = 0
    started: int = 0
    storage_away: float | None = None

    @property
    def ready(self) -> bool:
        """Whether it claims jobs and the storage answers."""
        return self.problem is None

    @property
    def problem(self) -> str | None:
        """Why it is not ready, in a few words; None if it is."""
        if self.storage_away is not None:
            return f"the storage has been unavailable for {self.storage_away:.0f} s; the log has the reason"
        return None if self.stage == "claiming" else self.stage

    @property
    def verdict(self) -> Verdict:
        """The answer to a probe of a process with this worker only: its event loop has just answered."""
        problem = self.problem
        return Verdict(None, problem and f"worker {self.worker}: {problem}", f"worker {self.worker} claims jobs")
