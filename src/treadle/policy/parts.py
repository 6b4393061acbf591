"""Jobs that run the function of another job, their parent, over its history: its cleanup, and the tries of those of its
steps that have limits. Pure.

Each is a row of the same task and queue, with attempts, a lease and an ending of its own.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import msgspec
from msgspec.structs import replace

from treadle.core import defaults
from treadle.core.errors import UNREADABLE
from treadle.core.model import NewJob
from treadle.policy.retry import DEFAULT, Retry, read_policy

ONCE: Final = Retry(attempts=1)  # of a try: its step or its job decides whether there is another one
Limits = tuple[tuple[str, int], ...]
_read_outer: Final = msgspec.json.Decoder(frozenset[str]).decode


def is_part(job: NewJob) -> bool:
    """Whether this job runs over the history of its parent."""
    policy = read_policy(job.retry)
    return policy.cleans or bool(policy.takes)


def step_of(job: NewJob) -> str:
    """The key of the step of which this job makes one try; "": it is another job."""
    return read_policy(job.retry).takes


def part_of(job: NewJob, id: str, cleans: bool = False, takes: str = "") -> NewJob:
    """A part of this job. It has the job's limits, lane and labels, and a retry policy of its own."""
    policy = replace(read_policy(job.retry), retry=ONCE if takes else DEFAULT, marks=False, cleans=cleans, takes=takes)
    return replace(
        job,
        id=id,
        payload="[]",
        key=None,
        key_conflict="keep",
        key_window=None,
        key_until="ended",
        delay=0.0,
        run_at=None,
        deadline=None,
        deadline_at=None,
        wait_timeout=None,
        after=(),
        required=None,
        failures_allowed=0,
        function_done=False,
        retry=policy.text(),
        root=job.root or job.id,
        parent=job.id,
        nonce=None,
        reach=(),
    )


def step_job(job: NewJob, id: str, key: str, outer: Sequence[str], limits: Limits) -> NewJob:
    """The job that makes one try of a step, under these limits. `outer`: the steps inside of which it is taken. Its row
    is kept for at least a day, as its parent must find it."""
    own = part_of(job, id, takes=key)
    payload, day = msgspec.json.encode(outer).decode(), defaults.KEEP
    return replace(own, payload=payload, limits=limits, keep=max(job.keep, day), keep_failed=max(job.keep_failed, day))


def outer_of(job: NewJob) -> frozenset[str]:
    """The steps inside of which the step of this job is taken."""
    try:
        return _read_outer(job.payload)
    except UNREADABLE:  # another program has stored it
        return frozenset()
