"""Branches of execution, in which steps have an order: the tasks and threads of one run, and the inside of a step.

They also say whether an error that a step raised in one branch has reached the code of another.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from itertools import count
from typing import Final

from msgspec import Struct


class Position(Struct):
    """A position in the order of a branch: behind a step of it.

    key    that step, as the next one records it in `after`
    taken  how many steps the branch had requested
    """

    branch: Branch
    key: str
    taken: int


class Branch:
    """A branch of execution, in which steps have an order.

    checkpoints  the steps of the run that it belongs to
    place   its asyncio task, or the number of its thread
    last    the step that was requested last, as the next one records it in `after`
    taken   how many steps it has requested
    began   the position in another branch in which it began
    outer   the steps inside of which it runs
    """

    __slots__ = ("began", "checkpoints", "last", "outer", "place", "taken")

    def __init__(
        self,
        checkpoints: object,
        place: object,
        last: str,
        began: Position | None = None,
        outer: tuple[str, ...] = (),
    ) -> None:
        self.checkpoints, self.place, self.last, self.taken = checkpoints, place, last, 0
        self.began, self.outer = began, outer

    @property
    def position(self) -> Position:
        return Position(self, self.last, self.taken)

    @property
    def parent(self) -> Branch | None:
        """The branch in which it began."""
        return None if self.began is None else self.began.branch

    def inside(self, key: str) -> Branch:
        """The branch inside of this step."""
        return Branch(self.checkpoints, place_here(), f"{key}>", self.position, (*self.outer, key))

    def follows(self, position: Position) -> bool:
        """Whether this branch requests all its further steps after that position."""
        here: Position | None = self.position
        while here is not None and here.branch is not position.branch:
            here = here.branch.began
        return here is not None and position.taken <= here.taken

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


def begun_at(position: Position, place: object) -> Branch:
    """The branch of a task or thread that began at this position of another one."""
    last = position.key if position.key.endswith("&") else f"{position.key}&"
    return Branch(position.branch.checkpoints, place, last, position, position.branch.outer)


# A task gets a copy of its creator's context, so it knows for good at which position it began, however late it requests
# its first step.
position_here: ContextVar[Position | None] = ContextVar("treadle_position", default=None)
# The key of the step whose function runs here, and a number that no other try of a step has; outside of steps "" and 0.
step_here: ContextVar[tuple[str, int]] = ContextVar("treadle_step", default=("", 0))
_tries: Final = count(1)


@contextmanager
def inside_step(branch: Branch, key: str) -> Iterator[None]:
    """While the function of a step of this branch runs: steps inside belong to it, and do not run again once it is
    stored."""
    token = position_here.set(branch.inside(key).position)
    running = step_here.set((key, next(_tries)))
    try:
        yield
    finally:
        step_here.reset(running)
        position_here.reset(token)


def place_here() -> object:
    """The current task of the event loop, or this thread: the caller's branch, as neither runs two things at once."""
    loop = asyncio._get_running_loop()  # None in a thread, where `get_running_loop` raises
    return (None if loop is None else asyncio.current_task(loop)) or threading.get_ident()


def has_ended(place: object) -> bool:
    """Whether this is the caller's own task or thread, or a task that has ended and whose error, if any, was retrieved.
    Of threads that is unknown: True."""
    if not isinstance(place, asyncio.Task) or place is place_here():
        return True
    # `_log_traceback`: nothing has awaited the task yet, so the function does not know of the error.
    return place.done() and not getattr(place, "_log_traceback", False)


def own_name(name: str) -> str:
    """How the calls of two branches get keys of their own."""
    kind, _, own = name.partition(":")
    if kind in ("wait", "receive"):
        return "call it for both before the branches begin, and await it in them, or use a mailbox for each"
    if kind == "first":
        return f"give each its own name, such as first(f'{own or kind}:{{i}}', ...)"
    if kind in ("sleep", "timeout", "call", "map", "as_completed", "ended"):
        return f"give each its own name, such as name=f'{own or kind}:{{i}}'"
    return f"give each its own name, such as f'{name}:{{i}}'"
