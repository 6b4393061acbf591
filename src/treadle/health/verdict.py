"""What a process says about itself when it is probed."""

from __future__ import annotations

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
