"""The request that enqueues a job equal to a stored one, and the parts of the job that no such request has. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from msgspec import UNSET, Struct, UnsetType
from msgspec.structs import asdict

from treadle.core.model import NewJob, Record
from treadle.core.ranges import OWN
from treadle.policy.retry import Retry, read_policy
from treadle.tasks.json_options import JobOptions, RetryAsked

_NEW: Final = NewJob(id="")  # the defaults of a row


class Again(Struct, frozen=True):
    """A job like this one.

    options  the options of its request; also those with a default, because a task may have another one
    without  what such a job does not have, although this one does: "key", "after", "workflow", "headers", "lane weight"
    """

    options: JobOptions
    without: tuple[str, ...]


def again(row: Record, headers: Mapping[str, str], hidden: str | None) -> Again:
    """`headers`: as the caller may see them; `hidden`: why these are not the stored ones. They are left out then."""
    job = row.job
    policy = read_policy(job.retry)
    limits = [(name, cost) for name, cost in job.limits if not name.startswith(OWN)]
    options: dict[str, Any] = {
        "queue": job.queue,
        "priority": job.priority,
        "timeout": policy.timeout,
        "retry": _retry(policy.retry),
        "max_lost": policy.max_lost,
        "lease": _given(job.lease),
        "expires": _given(job.deadline),
        "lane": _given(job.lane),
        "limits": [name for name, _ in limits],
        "cost": max((cost for _, cost in limits), default=1),
        "aging": job.aging,
        "keep": job.keep,
        "keep_failed": job.keep_failed,
        "labels": list(job.labels),
        "headers": dict(headers) if hidden is None else UNSET,
    }
    lost = {
        "key": job.key is not None,
        "after": bool(job.after),
        "workflow": job.root is not None,
        "headers": bool(headers) and hidden is not None,
        "lane weight": job.stride != _NEW.stride,
    }
    return Again(JobOptions(**options), tuple(name for name, is_lost in lost.items() if is_lost))


def _retry(retry: Retry | UnsetType) -> RetryAsked | UnsetType:
    return UNSET if retry is UNSET or retry is None else RetryAsked(**asdict(retry))


def _given(value: Any) -> Any:
    return UNSET if value is None else value
