"""`RunOutcome`, which tells middleware how one run of a job ended."""

from __future__ import annotations

from typing import Literal

from msgspec import Struct

Ending = Literal[
    "succeeded",
    "failed",
    "expired",
    "retrying",
    "paused",
    "deferred",
    "waiting",
    "released",
    "cancelled",
    "lost",
    "reaped",
]


class RunOutcome(Struct, frozen=True, kw_only=True):
    """How one run of a job ended. The names are those of the events, and "released".

    name     succeeded   the function has returned, and the job has ended
             failed      the job has failed: no attempts are left, it was aborted, no retry can help, or too many leases
                         expired
             expired     its deadline has passed, or would have passed before the next attempt
             retrying    the attempt failed, and there will be another
             paused      the attempt failed, and was the last one: the job waits until an operator resumes it
             deferred    it runs again later, and the run is not counted: `Defer`, or a durable sleep
             waiting     it waits: for its children, or in its run for a signal
             released    its worker stopped and returned it to the queue, uncounted
             cancelled   it was cancelled while it ran
             lost        it belongs to this worker no longer: its lease expired and another worker claimed it, or it
                         was reopened or deleted while it ran
             reaped      this worker found it in the hands of a dead worker, and runs it again now
    final    whether the job has ended; then no further run follows, unless it is reopened
    reason   the reason that is stored, such as "aborted" or "arguments"; see `Record.reason`
    delay    seconds until the next run: retrying, deferred
    seconds  how long the run took, by this process's clock; 0.0 if the function did not run here
    """

    name: Ending
    final: bool = False
    reason: str | None = None
    delay: float | None = None
    seconds: float = 0.0
