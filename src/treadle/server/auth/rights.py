"""Applies the rights of a token: limits each call to the storage, and filters the rows that it returns.

The queues of a bound token go to the storage with each call as its `reach`. The storage checks them in the same step as
the change (`treadle.storage.contract`), so there is no gap between check and change.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Sequence
from typing import Any, Final

import msgspec
from msgspec.structs import replace

from treadle.admin import audit
from treadle.core import defaults, ids
from treadle.core.errors import BadOption, IdTaken
from treadle.core.limit_model import Declare, LimitChange, LimitUse
from treadle.core.model import Claim, LeaseRenewal, NewJob, Outcome, Presence, Record
from treadle.core.query_model import Glance, MetricsRow, Stats
from treadle.core.queue_rules import ALL
from treadle.metrics import OTHER, decode, encode
from treadle.policy import cleanups
from treadle.policy.judge import HOLD
from treadle.server import system_rows
from treadle.server.auth.tokens import ANYBODY, Token
from treadle.server.refused import Refused
from treadle.server.request_rows import is_decision
from treadle.server.time_slices import in_turns
from treadle.workflow.approvals import APPROVAL, is_request, signed
from treadle.workflow.locks import LOCK
from treadle.workflow.signals import ONCE
from treadle.workflow.streams import PAGE

CLAIM_ID: Final = 40  # characters kept for the claim id after a worker's name
DIGEST: Final = 16  # characters
LONGEST_TTL: Final = 3_600.0  # s that a worker is listed without a heartbeat

Get = Callable[[Sequence[str]], Awaitable[Sequence[Record | None]]]


def need(token: Token, scope: str) -> None:
    """Raise Refused (403) unless the token has this scope, which a call needs besides its own."""
    if not token.may(scope):
        raise _forbidden(token, f"has no scope {scope!r}", scope=scope)


# --- jobs to be stored


async def to_store(token: Token, jobs: Sequence[NewJob]) -> tuple[NewJob, ...]:
    """The jobs, limited to the rights of the token. Raises Refused (403)."""
    of_work = ONCE, LOCK, APPROVAL, PAGE, cleanups.PREFIX
    if not token.may("enqueue") and not all(job.id.startswith(of_work) or job.task == audit.TASK for job in jobs):
        need(token, "enqueue")
    if not token.queues and not any(job.task == audit.TASK for job in jobs):
        return tuple(jobs)
    return tuple(await in_turns(lambda job: _narrowed(token, job), jobs))


def to_settle(token: Token, out: Outcome) -> Outcome:
    """The outcome, limited to the rights of the token. Raises Refused (403)."""
    if audit.is_id(out.id):  # `IncomingRows` has checked that the token began this entry itself
        return replace(out, reach=(defaults.SYSTEM_QUEUE,)) if token.queues else out
    if not token.may("work"):
        raise _forbidden(token, "has no scope 'work'", scope="work")
    if token is not ANYBODY and is_request(out.id) and is_decision(out):
        out = signed(out, token.name)
    if not token.queues:
        return out
    return replace(out, followups=tuple([_narrowed(token, job) for job in out.followups]), reach=token.queues)


def _narrowed(token: Token, job: NewJob) -> NewJob:
    if job.task == audit.TASK:
        return _signed(token, job)
    if not token.queues:
        return job
    if job.task == HOLD:  # a hold is in Treadle's own queue, where it replaces an earlier hold
        limit = system_rows.check_hold_row(job)
        if _queue_in(limit) in token.queues:
            return job
        raise _forbidden(
            token, f"is bound to queues, so it cannot let the limit {limit!r} rest, which other queues may use"
        )
    if job.queue not in token.queues:
        raise _forbidden(token, f"has no right to queue {job.queue!r}", queue=job.queue)
    return replace(job, reach=token.queues)


def _signed(token: Token, job: NewJob) -> NewJob:
    """The entry of the audit log with the name of the token before the name that the client gives."""
    if token is ANYBODY:
        return job
    act = audit.read_act(job.payload)
    by = act.by.translate({ord("("): "[", ord(")"): "]"})  # or the client's name could end the parentheses around it
    act = replace(act, by=f"{_signature(token)}{by})")
    return replace(job, payload=msgspec.json.encode(act).decode(), reach=())


def has_begun(token: Token, row: Record) -> bool:
    """Whether the token, by a call of the worker protocol, has stored this entry of the audit log."""
    act = audit.read_act(row.job.payload)
    return act.source != "api" and (token is ANYBODY or act.by.startswith(_signature(token)))


def _signature(token: Token) -> str:
    return f"{token.name} ("


def _forbidden(token: Token, words: str, **details: Any) -> Refused:
    return Refused(403, "forbidden", f"the token {token.name!r} {words}", **details)


def reads(token: Token) -> bool:
    """Whether the token may read the arguments of jobs."""
    return token.payloads and token.may("read", "work")


def without_row(token: Token, error: IdTaken) -> IdTaken:
    """The error, but without the job that has the id if the token may not read arguments."""
    return error if reads(token) else IdTaken(error.id, None, error.asked, False)


async def refuse_known(token: Token, jobs: Sequence[NewJob], get: Get) -> None:
    """Raise IdTaken for a chosen id that is known, unless this very call has stored it, to a token that may not read
    arguments. A storage returns the stored job if the arguments are equal: that would confirm a guess of them."""
    chosen = {} if reads(token) else {job.id: job for job in jobs if job.nonce is not None}
    for row in await get(list(chosen)) if chosen else ():
        if row is not None and row.job.nonce != (job := chosen[row.id]).nonce:
            raise IdTaken(row.id, None, job.task, False)


# --- workers


def worker_of(token: Token, name: str) -> str:
    """The stored name of a worker, or its claim id.

    Workers of a bound token have their own name space, because a claim under another worker's claim id would return the
    jobs of that worker. A name that is too long is cut and ends with a digest of the whole name.
    """
    if not token.queues:
        return name
    worker, mark, claim_id = name.partition("#")
    room = defaults.MAX_NAME - CLAIM_ID - len(token.name) - 1
    if len(worker) > room:
        worker = f"{worker[: max(0, room - DIGEST - 1)]}~{ids.digest(worker)[:DIGEST]}"
    return f"{token.name}/{worker}{mark}{claim_id}"


def to_claim(token: Token, ask: Claim) -> Claim:
    """The claim, limited to the rights of the token. Raises Refused (403)."""
    if not token.queues:
        return ask
    if not ask.ids and (wrong := token.serves(name for name, _ in ask.queues)) is not None:
        raise _forbidden(token, f"has no right to queue {wrong!r}", queue=wrong)
    return replace(ask, worker=worker_of(token, ask.worker), reach=token.queues)


def to_beat(
    token: Token, worker: Presence, renewals: Sequence[LeaseRenewal]
) -> tuple[Presence, Sequence[LeaseRenewal]]:
    """The heartbeat, limited to the rights of the token. Raises Refused (403)."""
    if worker.ttl > LONGEST_TTL:
        worker = replace(worker, ttl=LONGEST_TTL)
    if not token.queues:
        return worker, renewals
    if (wrong := token.serves(worker.queues)) is not None:
        raise _forbidden(token, f"has no right to queue {wrong!r}", queue=wrong)
    worker = replace(worker, worker=worker_of(token, worker.worker))
    return worker, [replace(renewal, reach=token.queues) for renewal in renewals]


def to_measure(token: Token, rows: Sequence[MetricsRow]) -> list[MetricsRow]:
    """The rows of metrics under the names that the storage has for the caller's workers, with the cells of the caller's
    queues only. Raises Refused (403) for a bound token and a row that is not a worker's, and BadOption for one that
    cannot be read."""
    if not token.queues:
        return list(rows)
    if not all(row.source for row in rows):
        raise _forbidden(token, "is bound to queues, so it may store the metrics of its own workers only")
    return [replace(row, source=worker_of(token, row.source), data=_own_cells(token, row.data)) for row in rows]


def _own_cells(token: Token, data: bytes) -> bytes:
    if not data:  # the row is removed
        return data
    cells = decode(data)
    if cells is None:
        raise BadOption("data", "expected the cells of a row of metrics in a version that this server knows")
    return encode(cell for cell in cells if cell.queue in token.queues or cell.queue == OTHER)


# --- visible rows


def sees(token: Token, row: Record) -> bool:
    """Whether the row exists for this token. Entries of the audit log exist only for tokens with the scope
    `operate`."""
    return token.sees(row.job.queue) and (not audit.is_entry(row) or token.may("operate"))


def shown(token: Token, row: Record, sent: NewJob | None) -> Record:
    """The row that an enqueue returns; for a token that may not read jobs, without the stored arguments and results.

    sent  the job of the request; None: the request names only another job, whose arguments the row has
    A row with the id of the request gets the arguments of the request, even if the stored ones differ.
    """
    if token.may("read", "work"):
        return row
    known = NewJob(id=row.job.id, task=row.job.task, queue=row.job.queue)
    job = known if sent is None or row.job.id != sent.id else replace(sent, task=row.job.task, queue=row.job.queue)
    return replace(
        row, job=job, result=None, value=None, error=None, reason=None, checkpoints=(), note=None, worker=None
    )


def seen(token: Token, stats: Stats) -> Stats:
    """The counts, workers and limits of the token's own queues."""
    if not token.queues:
        return stats
    counts = tuple(count for count in stats.counts if count.queue in token.queues)
    return Stats(counts=counts, workers=workers_seen(token, stats.workers), limits=limits_seen(token, stats.limits))


def glanced(token: Token, glance: Glance) -> Glance:
    """The queues, workers and limits of the token's own queues."""
    if not token.queues:
        return glance
    return replace(
        glance,
        queues=tuple(queue for queue in glance.queues if queue.name in token.queues),
        workers=workers_seen(token, glance.workers),
        limits=limits_seen(token, glance.limits),
    )


def workers_seen(token: Token, workers: Sequence[Presence]) -> tuple[Presence, ...]:
    """The workers that serve the token's queues. If a worker serves other queues too, only its name and slots are
    shown."""
    if not token.queues:
        return tuple(workers)
    visible = []
    for worker in workers:
        queues = tuple(queue for queue in worker.queues if queue in token.queues)
        if queues and len(queues) < len(worker.queues):
            worker = replace(
                worker, queues=queues, host="", pid=0, tasks=(), gathering=(), draining="", needs=(), reserved=""
            )
        if queues:
            visible.append(worker)
    return tuple(visible)


def limits_seen(token: Token, limits: Sequence[LimitUse]) -> tuple[LimitUse, ...]:
    """The limits of the token's queues, and the rule for all queues without its use. Other limits may belong to other
    queues, and their names may be secret."""
    if not token.queues:
        return tuple(limits)
    common = [replace(use, used=0, blocked=0, starts=0, next_start=None) for use in limits if use.key == ALL]
    return (*common, *(use for use in limits if _queue_in(use.key) in token.queues))


def to_set_limits(token: Token, changes: Sequence[LimitChange]) -> None:
    """Raise Refused (403) unless these are limits of the token's queues."""
    for change in changes if token.queues else ():
        rule = change.rule if isinstance(change, Declare) else change
        if _queue_in(rule.name) not in token.queues:
            raise _forbidden(token, f"is bound to queues, and the limit {rule.name!r} belongs to none of them")


def _queue_in(limit: str) -> str | None:
    kind, _, queue = limit.partition(":")
    return queue if kind == "queue" and queue else None


def topics(token: Token, names_sent: Sequence[str], visible: Collection[str]) -> dict[str, str]:
    """The topics that the token may watch, mapped to their names in the request. Raises Refused.

    `visible`: the jobs that the token may see.
    """
    names: dict[str, str] = {}
    for topic in names_sent:
        kind, _, name = topic.partition(":")
        if kind == "worker":
            names[f"worker:{worker_of(token, name)}"] = topic
        elif kind == "queue" and not token.sees(name):
            raise _forbidden(token, f"has no right to queue {name!r}", queue=name)
        elif kind == "queue" or not token.queues or (kind == "job" and name in visible):
            names[topic] = topic
    return names
