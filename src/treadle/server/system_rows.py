"""Checks Treadle's own rows that arrive by the worker protocol: the form of each kind, and the scope that it needs.

Python workers and clients store such rows over HTTP, so the server must reject forged ones. Treadle's own rows are
recognised by their task, id, key or queue.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Collection, Mapping
from typing import Final, TypeVar

import msgspec

from treadle.admin import audit
from treadle.core import defaults, ids
from treadle.core.errors import BadOption
from treadle.core.model import NewJob, Outcome, Pairs, Record, State
from treadle.core.ranges import OWN, a_count, a_name, a_span
from treadle.policy import cron
from treadle.policy.cleanups import cleanup_id, is_cleanup
from treadle.policy.cron import Cron, Every, FunctionTiming, Timing
from treadle.policy.judge import HOLD, Held
from treadle.policy.retry import read_policy
from treadle.scheduling import ticker
from treadle.scheduling.ticker import Definition
from treadle.server import request_rows
from treadle.server.row_checks import check_job
from treadle.server.rows_of_jobs import (
    check_answer,
    check_lock,
    check_once_lock,
    check_page,
    check_signal,
    expect,
    read,
)
from treadle.storage import IDENTITY, IDENTITY_TASK
from treadle.worker import leader
from treadle.workflow.approvals import is_request
from treadle.workflow.locks import LOCK
from treadle.workflow.mailbox import ANSWER
from treadle.workflow.plan import FLOW, PLAN, EndingPlan, either_id, mark_id, plan_of_job, read_plan
from treadle.workflow.signals import SIGNAL, signal_id
from treadle.workflow.streams import is_page, page_id

TICK: Final = "cron:"
SCHEDULE: Final = "treadle:schedule:"
ONCE: Final = "treadle:once:"
WAITED: Final = "treadle:waited:"
_HOLD_ID: Final = re.compile(r"treadle:hold:[0-9a-f]{32}")
_AUDIT_ID: Final = re.compile(rf"{audit.PREFIX}[0-9a-f-]{{36}}")
EDITS: Final = ("definition", "code")  # checkpoints that change a schedule

T = TypeVar("T")


def is_own(job: NewJob) -> bool:
    """Whether a row is Treadle's own, by its task, queue, key or id."""
    return (
        job.task.startswith(OWN)
        or job.queue == defaults.SYSTEM_QUEUE
        or (job.key is not None and job.key.startswith(OWN))
        or ids.problem(job.id) is not None
    )


def is_of_operators(job: NewJob) -> bool:
    """Whether a row of Treadle's own changes what only an operator may change: a schedule, or the hold of a limit."""
    return job.task == HOLD or job.task.partition(":")[0] == ticker.TASK


def refuse_own(job: NewJob) -> None:
    """Raise BadOption for a job that is Treadle's own."""
    if job.task.startswith(OWN):
        raise BadOption("task", f"{job.task!r}: names that begin with {OWN!r} are Treadle's own; choose another name")
    if job.queue == defaults.SYSTEM_QUEUE:
        raise BadOption("queue", f"{job.queue!r} is the queue of Treadle's own jobs; choose another name")
    if job.key is not None and job.key.startswith(OWN):
        raise BadOption("key", f"{job.key!r:.80}: keys that begin with {OWN!r} are Treadle's own; choose another key")
    if wrong := ids.problem(job.id):
        raise BadOption("id", wrong)


# --- rows that are enqueued


def sent(job: NewJob, call: Mapping[str, str]) -> tuple[str, str | None]:
    """Check one of Treadle's own rows -> the scope that it needs besides `enqueue`, and the job that it belongs to.

    The job must exist. `call`: the queues of all jobs of the call by their ids. Raises BadOption.
    """
    if job.task.partition(":")[0] == ticker.TASK:
        check_schedule(job)
        return "operate", None
    if job.task == HOLD:
        check_hold_row(job)
        return "operate", None
    if job.task == leader.TASK:
        expect(
            job.id == leader.ID and job.queue == defaults.SYSTEM_QUEUE and job.payload == "[]", "id", job, "the leader"
        )
        return "work", None
    if job.task == IDENTITY_TASK:
        own = job.id == IDENTITY and job.queue == defaults.SYSTEM_QUEUE and job.delay == defaults.MAX_DELAY
        expect(own and len(job.payload) < 100, "id", job, "the identity of a storage")
        return "work", None
    if job.task == audit.TASK:
        check_audit_row(job)
        return "operate", None
    if not job.task and job.id.startswith(SIGNAL):
        return "operate", _outside(check_signal(job), call)
    if not job.task and job.id.startswith(ANSWER):
        owner = check_answer(job).job
        expect(call.get(owner, job.queue) == job.queue, "queue", job, f"an answer of job {owner}")
        return "operate", _outside(owner, call)
    if (runner := _of_work(job)) is not None:
        return "work", runner or None
    if not job.task and job.id.startswith(WAITED):
        root = hashlib.sha256((job.root or "").encode()).hexdigest()[:40]
        expect(job.id == WAITED + root and len(job.payload) < 100, "id", job, "the mark of its workflow")
        return "", None
    scope = derived(job, call)
    if job.task == FLOW:
        return ("work" if check_flow(job).guard else scope), None
    refuse_own(plain_of(job))
    return scope, None


def _of_work(job: NewJob) -> str | None:
    """The job of a row that only a run stores; "": the row is of no single job; None: it is another row."""
    if not job.task and job.id.startswith(ONCE):
        return check_once_lock(job)
    if job.id.startswith(LOCK):
        return check_lock(job).job
    if is_page(job):
        return check_page(job).job
    return request_rows.owner_of(job) or (check_cleanup(job) if is_cleanup(job) else None)


def _outside(job: str, call: Collection[str]) -> str | None:
    """The job, which must be stored already unless this call stores it."""
    return None if job in call else job


def derived(job: NewJob, call: Collection[str]) -> str:
    """The scope that the id of a row needs: "work" for an id derived from a run, "" for an id of this call's flow."""
    stem = ids.stem(job.id)
    if stem is None:
        if wrong := ids.problem(job.id):
            raise BadOption("id", wrong)
        return ""
    own = {derive(id) for id in (*call, *job.after, job.parent or "") for derive in (mark_id, either_id)}
    return "" if stem in own else "work"


def plain_of(job: NewJob) -> NewJob:
    """The job under a plain id, to check the rest of it after its own id."""
    return msgspec.structs.replace(job, id="x")


# --- rows that are stored with an outcome


def born(job: NewJob, out: Outcome, row: Record | None) -> str:
    """Check one of Treadle's own rows among the follow-up jobs of an outcome -> the scope that it needs besides `work`.

    `row`: the job of the outcome. Raises BadOption. `runner_outcomes.check_ids` checks derived ids.
    """
    if job.task.partition(":")[0] == ticker.TASK:
        check_schedule(job)
        return "operate"
    if job.task == HOLD:
        limit = check_hold_row(job)
        return "" if row is not None and names(row.job, limit) else "operate"
    if not job.task and job.id.startswith(SIGNAL):
        expect(check_signal(job) == out.id, "parent", job, f"a signal to job {out.id}")
        return ""
    if not job.task and job.id.startswith(ANSWER):
        answer, (mailbox, _, turn) = check_answer(job), out.id.rpartition(":")
        own = mailbox == signal_id(answer.job, answer.signal, 0).rpartition(":")[0] and turn.isdecimal()
        expect(own, "id", job, f"stored with a message {answer.signal!r} to job {answer.job}")
        return "operate"
    if is_request(job.id):
        return request_rows.born(job, out)
    if is_cleanup(job):
        expect(check_cleanup(job) == out.id, "parent", job, f"the cleanup of job {out.id}")
        return ""
    if job.id.startswith(LOCK):
        expect(check_lock(job).row == out.id, "id", job, f"a turn of the lock {out.id}")
        return ""
    if is_page(job):
        stream, number = check_page(job), int(job.id.rpartition(":")[2])
        expect(page_id(stream.job, stream.stream, number - 1) == out.id, "id", job, f"the page after {out.id}")
        return ""
    if job.id.startswith(TICK):
        name = schedule_of(row)
        stem = f"{TICK}{name}:"
        expect(name is not None and job.id.startswith(stem) and ":" not in job.id[len(stem) :], "id", job, "a tick")
        refuse_own(plain_of(job))
        return ""
    if ids.stem(job.id) is None and (wrong := ids.problem(job.id)):
        raise BadOption("id", wrong)
    if job.task == FLOW:
        check_flow(job)
    else:
        refuse_own(plain_of(job))
    return ""


def needs_row(out: Outcome) -> bool:
    """Whether the job of an outcome must be read before its follow-up jobs can be checked."""
    return any(job.task == HOLD or job.id.startswith(TICK) for job in out.followups)


def ended(out: Outcome) -> str:
    """The scope that an outcome needs besides `work`, by its row and its checkpoints. Raises BadOption."""
    scope = remembered(out.id, out.checkpoints)
    if out.id.startswith(SIGNAL):
        # a worker releases the messages that its job has received
        return "" if out.keep == 0.0 and out.result is None and out.value is None else "operate"
    if is_request(out.id):
        return request_rows.ended(out)
    if audit.is_id(out.id):
        if out.state is not State.SUCCEEDED or out.keep is not None or out.followups or out.checkpoints:
            raise BadOption("id", f"{out.id!r}: an entry of the audit log can only be completed")
        if (size := len(out.result or "")) > audit.LONGEST_ENTRY:
            raise BadOption("result", f"expected at most {audit.LONGEST_ENTRY:,} characters, found {size:,}")
        return "operate"
    rests = dict(out.checkpoints).get("paused", "ended") != "ended"  # a run of the schedule sets "ended"
    return "operate" if out.id.startswith(SCHEDULE) and (rests or out.state is not State.READY) else scope


def remembered(id: str, checkpoints: Pairs) -> str:
    """The scope that checkpoints need besides `work`. Raises BadOption for an invalid plan or definition."""
    notes = dict(checkpoints)
    if PLAN in notes and read(read_plan, "checkpoints", notes[PLAN]).guard:
        raise BadOption("checkpoints", f"{PLAN}: only a row of the task {FLOW} may guard other rows")
    if id.startswith(SCHEDULE) and any(name in notes for name in EDITS):
        for name in EDITS:
            if name in notes:
                check_definition(read(ticker.read, name, notes[name]))
        return "operate"
    return ""


# --- one check per kind


def check_schedule(job: NewJob) -> None:
    definition: Definition = read(ticker.read, "payload", job.payload)
    check_definition(definition)
    name = definition.name
    is_declared = definition.job is None
    expect(
        job.task == ticker.task_name(name, is_declared)
        and job.key == f"{ticker.TASK} {name}"
        and job.id.startswith(SCHEDULE)
        and job.queue == defaults.SYSTEM_QUEUE
        and job.lease == defaults.OWN_LEASE,
        "task",
        job,
        f"the row of the schedule {name!r}",
    )


def check_definition(definition: Definition) -> None:
    """Raise BadOption for a schedule that `app.schedules` would refuse."""
    ticker.check(definition.name, definition.catch_up, definition.overlap)
    a_name("task", definition.task)
    check_timing(definition.timing)
    if definition.job is not None:
        check_job(definition.job)
        refuse_own(definition.job)
        expect(definition.task == definition.job.task, "task", definition.job, f"a job of {definition.task!r}")
    elif not isinstance(definition.timing, FunctionTiming | Cron | Every):
        raise BadOption("payload", f"schedule {definition.name!r}: expected a timing")


def check_timing(timing: Timing) -> None:
    if isinstance(timing, Cron):
        cron.cron(timing.line, timing.tz)
    elif isinstance(timing, Every):
        cron.every(timing.seconds)


def check_hold_row(job: NewJob) -> str:
    """Check a hold -> its limit."""
    held: Held = read(msgspec.json.Decoder(Held).decode, "payload", job.payload)
    a_name("limit", held.limit)
    a_span("seconds", held.seconds)
    expect(
        not held.limit.startswith(OWN)
        and job.key == f"{HOLD} {held.limit}"
        and job.queue == defaults.SYSTEM_QUEUE
        and _HOLD_ID.fullmatch(job.id) is not None
        and job.lease == defaults.OWN_LEASE,
        "task",
        job,
        f"the rest of the limit {held.limit!r}",
    )
    return held.limit


def names(job: NewJob, limit: str) -> bool:
    """Whether a job names this limit or a partition of it, or the limit is that of its queue."""
    own = {f"queue:{job.queue}", *(name for name, _ in job.limits), *(name.partition(":")[0] for name, _ in job.limits)}
    return limit in own


def check_audit_row(job: NewJob) -> None:
    act: audit.Act = read(msgspec.json.Decoder(audit.Act).decode, "payload", job.payload)
    expect(
        job == audit.new_entry(job.id, job.payload)
        and _AUDIT_ID.fullmatch(job.id) is not None
        and len(job.payload) <= audit.LONGEST_ENTRY,
        "task",
        job,
        "an entry of the audit log",
    )
    expect(act.source in ("cli", "python", "mcp", "server"), "payload", job, "an entry of a client")


def check_cleanup(job: NewJob) -> str:
    """Check a cleanup job -> the job that it cleans up after."""
    parent, turn = job.parent or "", job.id.rpartition(":")[2]
    expect(turn.isascii() and turn.isdigit() and len(turn) < 10, "id", job, "a cleanup job")
    is_of_parent = job.id == cleanup_id(parent, int(turn)) and job.after == (parent,) and job.key is None
    expect(is_of_parent and read_policy(job.retry).cleans, "id", job, f"the cleanup of job {parent}")
    refuse_own(plain_of(job))
    return parent


def check_flow(job: NewJob) -> EndingPlan:
    """Check a flow's row -> its plan."""
    plan: EndingPlan = read(lambda _: plan_of_job(job), "payload", job.payload)
    expect(
        job.queue != defaults.SYSTEM_QUEUE and (job.key is None or not job.key.startswith(OWN)), "queue", job, "a flow"
    )
    a_count("required", plan.required)
    return plan


def schedule_of(row: Record | None) -> str | None:
    """The name of the schedule that the row stores; None if it is not a schedule."""
    if row is None or row.job.task.partition(":")[0] != ticker.TASK or not row.job.id.startswith(SCHEDULE):
        return None
    definition: Definition = read(ticker.read, "payload", row.job.payload)
    return definition.name
