"""Runs one job: its context, its middleware, its transaction."""

from treadle.execution.run_outcome import Ending, RunOutcome
from treadle.execution.runner import Runner, SystemTask
from treadle.execution.threads import in_thread
from treadle.execution.transaction import Open

__all__ = [
    "Ending",
    "Open",
    "RunOutcome",
    "Runner",
    "SystemTask",
    "in_thread",
]
