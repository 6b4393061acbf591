"""Decides from the results of the last claims which dispatcher claims next and which one waits.

Two dispatchers that claim from an empty queue only wait for each other (pick-up on Redis, p50: 1.5 ms instead of 1.2).
So only dispatcher 0 claims from an empty queue, until a claim finds more jobs than it can take.
"""

from __future__ import annotations

import asyncio
from enum import Enum

from treadle.core import defaults

AT_LEAST = 0.001  # s between two claims from an empty queue: a job that has just become due may not be claimable yet


class Phase(Enum):
    """The combinations of "did the last claim bring jobs" and "is one dispatcher enough"."""

    BUSY = "busy"  # the last claim brought jobs: every dispatcher claims
    DRAINED = "drained"  # the last claim brought nothing, or there was none: every dispatcher claims once more
    TRICKLE = "trickle"  # jobs come, fewer than dispatcher 0 can take: the others do not claim
    EMPTY = "empty"  # dispatcher 0 found nothing and waits; the others do not claim


class Demand:
    """One for each worker; all methods run on its event loop.

    DRAINED --jobs--> BUSY --no jobs--> DRAINED --no jobs in any queue--> EMPTY
    EMPTY --jobs--> TRICKLE --no jobs--> EMPTY          TRICKLE --a full claim--> BUSY
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, wake: asyncio.Event) -> None:
        self._loop, self._wake = loop, wake
        self.phase = Phase.DRAINED
        self.notified = False  # a queue may have new jobs since the last claim began
        self.watched = False  # dispatcher 0 waits until a queue may have jobs
        self.behind_since: float | None = None  # the loop's time since when every claim was full; None: not behind
        self.system_job = False  # an outcome adds a job to the system queue, which the next claim must include
        self._system_at = 0.0  # the loop's time of the next claim that includes the system queue while jobs flow

    @property
    def one_is_enough(self) -> bool:
        return self.phase is Phase.TRICKLE or self.phase is Phase.EMPTY

    @property
    def flows(self) -> bool:
        return self.phase is Phase.BUSY or self.phase is Phase.TRICKLE

    # --- what claims report

    def claim_begins(self) -> None:
        self.notified = False

    def brought(self, more: bool = False) -> None:
        """A claim brought jobs. `more`: there may be more than dispatcher 0 can take."""
        if not self.one_is_enough:
            self.phase = Phase.BUSY
        elif more:
            self.phase = Phase.BUSY
            self._wake.set()
        else:
            self.phase = Phase.TRICKLE

    def nothing(self) -> bool:
        """Note that a claim brought no jobs. Returns whether the claim before it did."""
        flowed = self.flows
        self.phase = Phase.EMPTY if self.one_is_enough else Phase.DRAINED
        return flowed

    def pace(self, full: bool) -> None:
        """Record whether a claim was full. A worker may be behind while all its claims are full."""
        if not full:
            self.behind_since = None
        elif self.behind_since is None:
            self.behind_since = self._loop.time()

    def is_not_behind(self) -> None:
        self.behind_since = None

    # --- what other parts report

    def notify(self) -> None:
        """A queue may have new jobs."""
        self.notified = True
        self._wake.set()

    def includes_system_queue(self) -> bool:
        """Whether the claim that is being built includes the system queue. It is one more queue to search, so a worker
        whose claims are full includes it only every `defaults.SYSTEM_EVERY` s."""
        now = self._loop.time()
        if self.flows and not self.system_job and self.behind_since is not None and now < self._system_at:
            return False
        self._system_at, self.system_job = now + defaults.SYSTEM_EVERY, False
        return True

    # --- waiting

    def leave_to_first(self) -> None:
        """Dispatcher 1 found nothing, so only dispatcher 0 claims from now on. Wake it: it may wait for a slot that
        this claim had reserved."""
        self.phase = Phase.EMPTY
        if not self.watched:
            self._wake.set()

    async def wait(self, poll: float, next_in: float | None, busy: bool) -> None:
        """Dispatcher 0 found nothing: wait for a wake-up, the next due time, or the poll, which covers lost hints.

        poll     seconds
        next_in  seconds until the next job is due; None: no job is scheduled
        busy     there is something else to do: do not wait
        """
        self.phase = Phase.EMPTY
        if busy or self.notified:
            self.notified = False
            return
        self._wake.clear()
        timer = self._loop.call_later(poll if next_in is None else min(poll, max(next_in, AT_LEAST)), self._wake.set)
        self.watched = True
        try:
            await self._wake.wait()
        finally:
            self.watched = False
            timer.cancel()
