"""What a token may do with which rows: what goes down to the storage for it, and what of the answers it sees.

Nothing here looks first and acts later: the queues of a bound token go down with each call as its `reach`, and the
storage compares them in the step that acts (`treadle.storage.contract`).
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any, Final

from msgspec.structs import replace

from treadle.core import defaults, ids
from treadle.core.model import Claim, Declare, Hold, LimitChange, LimitUse, NewJob, Outcome, Presence, Record, Stats
from treadle.errors import IdTaken
from treadle.policy.judge import HOLD
from treadle.server import system_rows
from treadle.server.auth.tokens import Token
from treadle.server.errors import Refused
from treadle.server.time_slices import in_turns
from treadle.workflow.signals import ONCE

TICKET: Final = 40  # characters that are left for the ticket behind a worker's name
DIGEST: Final = 16  # characters
LONGEST_TTL: Final = 3_600.0  # s that a worker stays in the lists without a heartbeat


# --- jobs to be stored


async def to_store(token: Token, jobs: Sequence[NewJob]) -> tuple[NewJob, ...]:
    """These jobs as they may be stored for this token. Raises Refused (403)."""
    if not token.may("enqueue") and not all(job.id.startswith(ONCE) for job in jobs):
        raise _forbidden(token, "has no scope 'enqueue'", scope="enqueue")
    return tuple(await in_turns(lambda job: _narrowed(token, job), jobs)) if token.queues else tuple(jobs)


def to_settle(token: Token, out: Outcome) -> Outcome:
    """This outcome as it may be applied for this token. Raises Refused (403)."""
    if not token.queues:
        return out
    return replace(out, then=tuple([_narrowed(token, job) for job in out.then]), reach=token.queues)


def _narrowed(token: Token, job: NewJob) -> NewJob:
    if job.task == HOLD:  # in Treadle's own queue, where it takes the place of an earlier one
        limit = system_rows.check_hold_row(job)
        if _queue_in(limit) in token.queues:
            return job
        raise _forbidden(
            token, f"is bound to queues, and may not let the limit {limit!r} rest: other queues may use it"
        )
    if job.queue not in token.queues:
        raise _forbidden(token, f"has no right to queue {job.queue!r}", queue=job.queue)
    return replace(job, reach=token.queues)


def _forbidden(token: Token, words: str, **details: Any) -> Refused:
    return Refused(403, "forbidden", f"the token {token.name!r} {words}", **details)


def told(token: Token, error: IdTaken) -> IdTaken:
    """The error as this token may be told: without the right to look at jobs, nothing of the job that has the id."""
    return error if token.may("read", "work") else IdTaken(error.id, None, error.asked, False)


# --- workers


def worker_of(token: Token, name: str) -> str:
    """The name of a worker, or of its ticket, as it is stored. Workers of a bound token have a name space of their own:
    under the ticket of another worker they would be answered what that one runs. A name that is too long for that is
    cut, and ends with a digest of all of it."""
    if not token.queues:
        return name
    worker, mark, ticket = name.partition("#")
    room = defaults.MAX_NAME - TICKET - len(token.name) - 1
    if len(worker) > room:
        worker = f"{worker[: max(0, room - DIGEST - 1)]}~{ids.digest(worker)[:DIGEST]}"
    return f"{token.name}/{worker}{mark}{ticket}"


def to_claim(token: Token, ask: Claim) -> Claim:
    """This claim as it may be made for this token. Raises Refused (403)."""
    if not token.queues:
        return ask
    if not ask.ids and (wrong := token.serves(name for name, _ in ask.queues)) is not None:
        raise _forbidden(token, f"has no right to queue {wrong!r}", queue=wrong)
    return replace(ask, worker=worker_of(token, ask.worker), reach=token.queues)


def to_beat(token: Token, worker: Presence, holds: Sequence[Hold]) -> tuple[Presence, Sequence[Hold]]:
    """This heartbeat as it may be stored for this token. Raises Refused (403)."""
    if worker.ttl > LONGEST_TTL:
        worker = replace(worker, ttl=LONGEST_TTL)
    if not token.queues:
        return worker, holds
    if (wrong := token.serves(worker.queues)) is not None:
        raise _forbidden(token, f"has no right to queue {wrong!r}", queue=wrong)
    worker = replace(worker, worker=worker_of(token, worker.worker))
    return worker, [replace(hold, reach=token.queues) for hold in holds]


# --- what it sees


def shown(token: Token, row: Record, asked: NewJob) -> Record:
    """The row that answered a job, for a token that may send: without the right to look at jobs it learns that the row
    is there, and nothing of another job's arguments and results."""
    if token.may("read", "work"):
        return row
    job = row.job if row.job == asked else NewJob(id=row.job.id, task=row.job.task, queue=row.job.queue)
    return replace(row, job=job, result=None, value=None, error=None, reason=None, memo=(), note=None, worker=None)


def seen(token: Token, stats: Stats) -> Stats:
    """The counts, workers and limits of the token's own queues."""
    if not token.queues:
        return stats
    counts = tuple(each for each in stats.counts if each.queue in token.queues)
    return Stats(counts=counts, workers=workers_seen(token, stats.workers), limits=limits_seen(token, stats.limits))


def workers_seen(token: Token, workers: Sequence[Presence]) -> tuple[Presence, ...]:
    """Those that serve its queues. Of one that serves others too it learns the name and the slots."""
    if not token.queues:
        return tuple(workers)
    found = []
    for each in workers:
        queues = tuple(queue for queue in each.queues if queue in token.queues)
        if queues and len(queues) < len(each.queues):
            each = replace(each, queues=queues, host="", pid=0, tasks=(), gathering=())
        if queues:
            found.append(each)
    return tuple(found)


def limits_seen(token: Token, limits: Sequence[LimitUse]) -> tuple[LimitUse, ...]:
    """The limits of its queues: every other one may be of another queue, and its name may say of whom."""
    if not token.queues:
        return tuple(limits)
    return tuple(each for each in limits if _queue_in(each.key) in token.queues)


def to_set_limits(token: Token, changes: Sequence[LimitChange]) -> None:
    """Raise Refused (403) unless these are limits of its queues."""
    for change in changes if token.queues else ():
        rule = change.rule if isinstance(change, Declare) else change
        if _queue_in(rule.name) not in token.queues:
            raise _forbidden(token, f"is bound to queues; the limit {rule.name!r} is not of one of them")


def _queue_in(limit: str) -> str | None:
    kind, _, queue = limit.partition(":")
    return queue if kind == "queue" and queue else None


def topics(token: Token, asked: Sequence[str], visible: Collection[str]) -> dict[str, str]:
    """The topics it may watch, each by the name under which it speaks. `visible`: the jobs it sees. Raises Refused."""
    found: dict[str, str] = {}
    for topic in asked:
        kind, _, name = topic.partition(":")
        if kind == "worker":
            found[f"worker:{worker_of(token, name)}"] = topic
        elif kind == "queue" and not token.sees(name):
            raise _forbidden(token, f"has no right to queue {name!r}", queue=name)
        elif kind == "queue" or not token.queues or (kind == "job" and name in visible):
            found[topic] = topic
    return found
