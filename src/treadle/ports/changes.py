"""Groups the changes of one file: calls that arrive while a group is written share the next group."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Generic, TypeVar

from treadle.concurrency.group_commit import GroupCommit, Request

S = TypeVar("S")
T = TypeVar("T")


class Change(Request, Generic[S]):
    """A change that a caller waits for. It is called with the content of the file, and the time in s since 1970."""

    __slots__ = ("apply",)

    def __init__(self, apply: Callable[[S, float], Any]) -> None:
        super().__init__()
        self.apply = apply


class Changes(GroupCommit[Change[S]]):
    """The changes of one file; `S` is the type of its content."""

    async def do(self, apply: Callable[[S, float], T]) -> T:
        """Make the change -> what `apply` returned. Raises what `apply` or the write raised."""
        answer: T = await self.ask(Change(apply))
        return answer
