"""Branches of execution, in which steps have an order: the tasks and threads of one run, and the inside of a step.

They also say whether an error that a step raised in one branch has reached the code of another.
"""

from __future__ import annotations

import asyncio
import threading
from contextvars import ContextVar


class Branch:
    """A branch of execution, in which steps have an order.

    checkpoints  the steps of the run that it belongs to
    place   its asyncio task, or the number of its thread
    last    the step that was requested last, as the next one records it in `after`
    parent  the branch in which it began
    outer   the steps inside of which it runs
    """

    __slots__ = ("checkpoints", "last", "outer", "parent", "place")

    def __init__(
        self,
        checkpoints: object,
        place: object,
        last: str,
        parent: Branch | None = None,
        outer: tuple[str, ...] = (),
    ) -> None:
        self.checkpoints, self.place, self.last = checkpoints, place, last
        self.parent, self.outer = parent, outer

    def begun(self, place: object) -> Branch:
        """The branch of a task or thread that began in this one."""
        last = self.last if self.last.endswith(("&", ">")) else f"{self.last}&"
        return Branch(self.checkpoints, place, last, self, self.outer)

    def inside(self, key: str) -> Branch:
        """The branch inside of this step."""
        return Branch(self.checkpoints, place_here(), f"{key}>", self, (*self.outer, key))

    def is_in(self, other: Branch) -> bool:
        """Whether this branch is the other one, or began in it."""
        branch: Branch | None = self
        while branch is not None and branch is not other:
            branch = branch.parent
        return branch is other

    def has_passed_on(self, task: object, other: Branch) -> bool:
        """Whether an error that a step of this branch raised in `task` has reached the code of the other branch, or was
        caught on its way."""
        if not self.is_in(other) or not has_ended(task):
            return False
        branch: Branch | None = self
        while branch is not None and branch is not other:
            if not has_ended(branch.place):
                return False
            branch = branch.parent
        return True


branch_here: ContextVar[Branch | None] = ContextVar("treadle_branch", default=None)


def place_here() -> object:
    """The current task of the event loop, or this thread: the caller's branch, as neither runs two things at once."""
    loop = asyncio._get_running_loop()  # None in a thread, where `get_running_loop` raises
    return (None if loop is None else asyncio.current_task(loop)) or threading.get_ident()


def has_ended(place: object) -> bool:
    """Whether this is the place of the caller, or a task that has ended and whose error, if any, was looked at. Of
    threads that is unknown: True."""
    if not isinstance(place, asyncio.Task) or place is place_here():
        return True
    # `_log_traceback`: nothing has awaited the task yet, so the function does not know of the error.
    return place.done() and not getattr(place, "_log_traceback", False)
