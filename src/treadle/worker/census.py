"""Counts what runs in this process for one app, on all its threads, so that a suspect can run alone.

A light module: every app has a census, and most programs start no worker.
"""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import Protocol


class Member(Protocol):
    """One worker of the app, from its start to its stop. Any thread may call its methods."""

    loop: asyncio.AbstractEventLoop
    claims: int  # under way; the census counts them

    def runs(self, but: str) -> int:
        """How many jobs except this one run here or may still arrive, without the claims under way."""
        ...

    def changed(self) -> None:
        """Claims are allowed, or not, from now on. Called on its loop."""
        ...


class Waiting:
    """One suspect that waits to run alone, or runs alone. `id`: an earlier run of the same job does not count as
    another job."""

    __slots__ = ("granted", "id", "member")

    def __init__(self, member: Member, id: str, granted: Callable[[], None]) -> None:
        self.member, self.id, self.granted = member, id, granted


class Census:
    """One for each app. While a suspect waits or runs alone, the workers of the app begin no claim.

    The lock is taken once for each claim, never for a job. An idle worker is one without jobs, claims under way and
    hand-off requests: a worker begins a claim only under the lock, so no job can arrive once all are idle.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._members: list[Member] = []
        self._waiting: deque[Waiting] = deque()
        self._alone: Waiting | None = None
        self.closed = False  # no claim may begin; read without the lock, to save a call of `begin_claim`

    def join(self, member: Member) -> None:
        with self._lock:
            self._members.append(member)

    def leave(self, member: Member) -> None:
        """The worker has stopped. Functions that it has left running are no longer counted."""
        with self._lock:
            self._members.remove(member)
            self._waiting = deque(waiting for waiting in self._waiting if waiting.member is not member)
            if self._alone is not None and self._alone.member is member:
                self._alone = None
        self._update()

    # --- claims

    def begin_claim(self, member: Member, withdraws: bool = False) -> bool:
        """Whether a claim may begin now. If so, `end_claim` must follow when its jobs are started.

        withdraws  it only ends a hand-off request, so it may always begin. Its answer may bring a job
        """
        with self._lock:
            if self.closed and not withdraws:
                return False
            member.claims += 1
            return True

    def end_claim(self, member: Member) -> None:
        with self._lock:
            member.claims -= 1

    # --- suspects

    def wait(self, waiting: Waiting) -> None:
        """Close the claims, and call `granted` on the loop of the suspect's worker once nothing else runs. `over` must
        follow, however the wait ends."""
        with self._lock:
            self._waiting.append(waiting)
        self._update()

    def over(self, waiting: Waiting) -> None:
        """Note that this suspect no longer waits, or that its run has ended."""
        with self._lock:
            if self._alone is waiting:
                self._alone = None
            else:
                with suppress(ValueError):
                    self._waiting.remove(waiting)
        self._update()

    def is_alone(self, waiting: Waiting) -> bool:
        with self._lock:
            return self._alone is waiting

    @property
    def tries(self) -> bool:
        """Whether a suspect runs alone now."""
        return self._alone is not None

    def look(self) -> None:
        """Let the next suspect run if nothing else does."""
        with self._lock:
            if self._alone is not None or not self._waiting:
                return
            first = self._waiting[0]
            others = [waiting.member for waiting in self._waiting if waiting is not first]
            for member in self._members:
                busy = member.claims or member.runs(first.id) > others.count(member)
                if busy and not member.loop.is_closed():  # a closed loop was left without a stop
                    return
            waiting = self._alone = self._waiting.popleft()
        if not _call(waiting.member, waiting.granted):
            self.over(waiting)

    def _update(self) -> None:
        """Close or open the claims of all workers."""
        with self._lock:
            closed = self._alone is not None or bool(self._waiting)
            changed, self.closed, members = closed is not self.closed, closed, list(self._members)
        if changed:
            for member in members:
                _call(member, member.changed)
        self.look()


def _call(member: Member, function: Callable[[], None]) -> bool:
    """Call a function on the loop of a worker. Returns whether the loop still runs."""
    try:
        member.loop.call_soon_threadsafe(function)
    except RuntimeError:  # the loop is closed
        return False
    return True
