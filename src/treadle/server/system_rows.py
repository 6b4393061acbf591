"""Rows of Treadle's own that programs send by the worker protocol: what each must look like, and the scope it needs.

Python workers and clients that reach their storage over HTTP store such rows by the verbs, so the server tells a tick
from a forged one. A row of Treadle's own is known by its task, its id, its key or its queue.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Collection
from typing import Any, Final, TypeVar

import msgspec

from treadle.core import defaults, ids
from treadle.core.model import NewJob, Outcome, Pairs, Record, State
from treadle.core.ranges import OWN, a_count, a_name, a_span, an_id
from treadle.errors import UNREADABLE, BadOption
from treadle.policy import cron
from treadle.policy.cron import Asked, Cron, Every, Timing
from treadle.policy.judge import HOLD, Held
from treadle.scheduling import ticker
from treadle.scheduling.ticker import Definition
from treadle.server.row_checks import check_job
from treadle.worker import leader
from treadle.workflow.plan import FLOW, PLAN, Plan, either_id, mark_id, plan_of_job, read_plan
from treadle.workflow.signals import ONCE_KEY, SIGNAL, Wanted, Won, signal_id

CHOSEN: Final = "treadle:"
TICK: Final = "cron:"
SCHEDULE: Final = "treadle:schedule:"
ONCE: Final = "treadle:once:"
WAITED: Final = "treadle:waited:"
_HOLD_ID: Final = re.compile(r"treadle:hold:[0-9a-f]{32}")
_ONCE_ID: Final = re.compile(r"treadle:once:[0-9a-f]{16}")
EDITS: Final = ("definition", "code")  # memo entries by which a schedule is changed

T = TypeVar("T")


def is_own(job: NewJob) -> bool:
    """Whether a row is Treadle's own, by its task, queue, key or id."""
    return (
        job.task.startswith(OWN)
        or job.queue == defaults.OWN_QUEUE
        or (job.key is not None and job.key.startswith(OWN))
        or ids.problem(job.id) is not None
    )


def refuse_own(job: NewJob) -> None:
    """Raise BadOption for a job that is not a user's."""
    if job.task.startswith(OWN):
        raise BadOption("task", f"{job.task!r}: names beginning with {OWN!r} are Treadle's own")
    if job.queue == defaults.OWN_QUEUE:
        raise BadOption("queue", f"{job.queue!r} is the queue of Treadle's own jobs; choose another name")
    if job.key is not None and job.key.startswith(OWN):
        raise BadOption("key", f"{job.key!r:.80}: keys beginning with {OWN!r} are Treadle's own")
    if wrong := ids.problem(job.id):
        raise BadOption("id", wrong)


# --- rows that are sent by themselves


def sent(job: NewJob, call: Collection[str]) -> tuple[str, str | None]:
    """Of a row of Treadle's own: the scope that it needs beside `enqueue`, and the job that it belongs to, which must
    be there. `call`: the ids of all jobs of the call. Raises BadOption."""
    if job.task.partition(":")[0] == ticker.TASK:
        check_schedule(job)
        return "operate", None
    if job.task == HOLD:
        check_hold_row(job)
        return "operate", None
    if job.task == leader.TASK:
        expect(job.id == leader.ID and job.queue == defaults.OWN_QUEUE and job.payload == "[]", "id", job, "the leader")
        return "work", None
    if not job.task and job.id.startswith(SIGNAL):
        return "operate", check_signal(job)
    if not job.task and job.id.startswith(ONCE):
        return "work", check_mark(job)
    if not job.task and job.id.startswith(WAITED):
        root = hashlib.sha256((job.root or "").encode()).hexdigest()[:40]
        expect(job.id == WAITED + root and len(job.payload) < 100, "id", job, "the mark of its workflow")
        return "", None
    scope = derived(job, call)
    if job.task == FLOW:
        return ("work" if check_flow(job).guard else scope), None
    refuse_own(plain_of(job))
    return scope, None


def derived(job: NewJob, call: Collection[str]) -> str:
    """The scope that the id of a row needs: runs derive ids, and flows those of the rows that wait for a run."""
    stem = ids.stem(job.id)
    if stem is None:
        if wrong := ids.problem(job.id):
            raise BadOption("id", wrong)
        return ""
    own = {made(id) for id in (*call, *job.after, job.parent or "") for made in (mark_id, either_id)}
    return "" if stem in own else "work"


def plain_of(job: NewJob) -> NewJob:
    """The job under an id that anybody may choose: its own has been found to be right."""
    return msgspec.structs.replace(job, id="x")


# --- rows that are stored with an outcome


def born(job: NewJob, out: Outcome, row: Record | None) -> str:
    """Of a row of Treadle's own that is stored with the outcome of a run: the scope it needs beside `work`. `row`: the
    job of the outcome. Raises BadOption. Derived ids are checked against the run
    elsewhere."""
    if job.task.partition(":")[0] == ticker.TASK:
        check_schedule(job)
        return "operate"
    if job.task == HOLD:
        limit = check_hold_row(job)
        return "" if row is not None and names(row.job, limit) else "operate"
    if not job.task and job.id.startswith(SIGNAL):
        expect(check_signal(job) == out.id, "parent", job, f"a signal to job {out.id}")
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
    """Whether the job of an outcome must be read before the jobs that come of it can be judged."""
    return any(job.task == HOLD or job.id.startswith(TICK) for job in out.then)


def ended(out: Outcome) -> str:
    """The scope that an outcome needs beside `work`, by the row it is of and what it would have that remember. Raises
    BadOption."""
    scope = remembered(out.id, out.memo)
    if out.id.startswith(SIGNAL):
        return "operate"
    rests = dict(out.memo).get("paused", "ended") != "ended"  # "ended" is what a run of the schedule finds
    return "operate" if out.id.startswith(SCHEDULE) and (rests or out.state is not State.READY) else scope


def remembered(id: str, memo: Pairs) -> str:
    """The scope that memo entries need beside `work`. Raises BadOption for a plan or a definition that is none."""
    found = dict(memo)
    if PLAN in found and read(read_plan, "memo", found[PLAN]).guard:
        raise BadOption("memo", f"{PLAN}: only a row of the task {FLOW} may guard others")
    if id.startswith(SCHEDULE) and any(name in found for name in EDITS):
        for name in EDITS:
            if name in found:
                check_definition(read(ticker.read, name, found[name]))
        return "operate"
    return ""


# --- one kind each


def check_schedule(job: NewJob) -> None:
    definition: Definition = read(ticker.read, "payload", job.payload)
    check_definition(definition)
    name = definition.name
    is_declared = definition.job is None
    expect(
        job.task == ticker.task_name(name, is_declared)
        and job.key == f"{ticker.TASK} {name}"
        and job.id.startswith(SCHEDULE)
        and job.queue == defaults.OWN_QUEUE
        and job.lease == defaults.OWN_LEASE,
        "task",
        job,
        f"the row of the schedule {name!r}",
    )


def check_definition(definition: Definition) -> None:
    """Raise BadOption for a schedule that the public call would refuse."""
    ticker.check(definition.name, definition.catch_up, definition.overlap)
    a_name("task", definition.task)
    check_timing(definition.timing)
    if definition.job is not None:
        check_job(definition.job)
        refuse_own(definition.job)
        expect(definition.task == definition.job.task, "task", definition.job, f"a job of {definition.task!r}")
    elif not isinstance(definition.timing, Asked | Cron | Every):
        raise BadOption("payload", f"schedule {definition.name!r}: expected a timing")


def check_timing(timing: Timing) -> None:
    if isinstance(timing, Cron):
        cron.cron(timing.line, timing.tz)
    elif isinstance(timing, Every):
        cron.every(timing.seconds)


def check_hold_row(job: NewJob) -> str:
    """The limit that rests."""
    held: Held = read(msgspec.json.Decoder(Held).decode, "payload", job.payload)
    a_name("limit", held.limit)
    a_span("seconds", held.seconds)
    expect(
        not held.limit.startswith(OWN)
        and job.key == f"{HOLD} {held.limit}"
        and job.queue == defaults.OWN_QUEUE
        and _HOLD_ID.fullmatch(job.id) is not None
        and job.lease == defaults.OWN_LEASE,
        "task",
        job,
        f"the rest of the limit {held.limit!r}",
    )
    return held.limit


def names(job: NewJob, limit: str) -> bool:
    """Whether a job names this limit, a partition of it, or obeys it as its queue's own."""
    own = {f"queue:{job.queue}", *(name for name, _ in job.limits), *(name.partition(":")[0] for name, _ in job.limits)}
    return limit in own


def check_signal(job: NewJob) -> str:
    """The job that waits."""
    wanted: Wanted = read(msgspec.json.Decoder(Wanted).decode, "payload", job.payload)
    turn = job.id.rpartition(":")[2]
    expect(turn.isascii() and turn.isdigit() and len(turn) < 10, "id", job, "a signal")
    expect(
        job.id == signal_id(wanted.job, wanted.signal, int(turn)) and job.parent == wanted.job and job.key is None,
        "id",
        job,
        f"the signal {wanted.signal!r} to job {wanted.job}",
    )
    a_count("round", wanted.round)
    an_id("job", wanted.job)
    return wanted.job


def check_mark(job: NewJob) -> str:
    """The job that has won the mark."""
    won: Won = read(msgspec.json.Decoder(Won).decode, "payload", job.payload)
    expect(
        job.key == f"{ONCE_KEY}{won.once}" and _ONCE_ID.fullmatch(job.id) is not None and job.deadline is not None,
        "key",
        job,
        f"the mark {won.once!r} of job {won.job}",
    )
    an_id("job", won.job)
    return won.job


def check_flow(job: NewJob) -> Plan:
    """How a row that nobody runs is to end."""
    plan: Plan = read(lambda _: plan_of_job(job), "payload", job.payload)
    expect(job.queue != defaults.OWN_QUEUE and (job.key is None or not job.key.startswith(OWN)), "queue", job, "a flow")
    a_count("need", plan.need)
    return plan


def schedule_of(row: Record | None) -> str | None:
    """The name of the schedule that this row is."""
    if row is None or row.job.task.partition(":")[0] != ticker.TASK or not row.job.id.startswith(SCHEDULE):
        return None
    definition: Definition = read(ticker.read, "payload", row.job.payload)
    return definition.name


def read(decode: Any, option: str, text: str) -> Any:
    """The value behind a JSON text. Raises BadOption for what is none."""
    try:
        return decode(text)
    except UNREADABLE as error:
        raise BadOption(option, f"cannot be read: {error}") from None


def expect(holds: bool, option: str, job: NewJob, what: str) -> None:
    if not holds:
        raise BadOption(option, f"job {job.id[:60]!r} of task {job.task[:60]!r} is not {what}, whose row it would be")
