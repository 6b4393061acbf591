"""The answer of a process to probes: whether it is alive, whether it is ready, and why not."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple


class Verdict(NamedTuple):
    """Whether a process is alive and ready, each with the reason if it is not.

    stuck    why it should be restarted, in one line; None: it is alive
    unready  why it should get no work, in one line; None: it is ready. A process that is not alive is not ready either
    status   what it does, in one line, while it is ready
    """

    stuck: str | None
    unready: str | None
    status: str

    @property
    def problem(self) -> str | None:
        """Why it is not ready; None if it is."""
        return self.stuck or self.unready

    @property
    def line(self) -> str:
        """One line for people: `ready: ...`, `not ready: ...` or `not alive: ...`."""
        if self.stuck is not None:
            return f"not alive: {self.stuck}"
        return f"ready: {self.status}" if self.unready is None else f"not ready: {self.unready}"


def first_problem(verdicts: Sequence[Verdict]) -> Verdict:
    """The verdict of several parts of a process: the first problem of each kind."""
    stuck = next((verdict.stuck for verdict in verdicts if verdict.stuck is not None), None)
    unready = next((verdict.unready for verdict in verdicts if verdict.unready is not None), None)
    return Verdict(stuck, unready, "; ".join(dict.fromkeys(verdict.status for verdict in verdicts)))
