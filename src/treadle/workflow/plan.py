"""How a workflow is stored: children with a parent, and a plan for the parent's ending.

Storages need no special support. A parent is a waiting job whose function is done; its plan is the payload of
`treadle.flow`, or one of its checkpoints.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, Literal

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from treadle.core import ids
from treadle.core.errors import UNREADABLE
from treadle.core.job import inheriting
from treadle.core.model import NewJob, Outcome, Record, State
from treadle.core.plain_json import refuse_deep
from treadle.policy.guilt import cleared_note
from treadle.policy.judge import kept_upstreams, succeeded
from treadle.tasks.when import When

FLOW: Final = "treadle.flow"  # the task of rows without a function: the root of a composition that was enqueued
PLAN: Final = "treadle:plan"  # names of checkpoints; a step's name cannot begin with "treadle:"
OF: Final = "treadle:of"
CONCLUDED: Final = "concluded"  # the reason of a success that sets the value of the workflow


class EndingPlan(Struct, frozen=True, omit_defaults=True):
    """How a parent ends.

    reduce    the reducer that its flow names; None: that of its task
    required  how many of its children must succeed, or (of="done") end in any way; None: all but those tolerated
    locked    its own value is the value of the whole workflow
    mark      "run": it marks the end of another job's run; "either": it waits for that mark, or for the job itself;
              "lock": it belongs to a lock, see `treadle.workflow.locks`
    guard     it cancels the jobs that it waits for, as soon as one of them cannot succeed
    """

    reduce: str | None = None
    required: int | None = None
    of: Literal["succeeded", "done"] | None = None
    locked: bool = False
    mark: Literal["run", "either", "lock"] | None = None
    guard: bool = False


PLAIN: Final = EndingPlan()


class _Payload(Struct, frozen=True, omit_defaults=True):
    """The payload of `treadle.flow`, in the general form of payloads."""

    kwargs: EndingPlan = PLAIN


read_plan = msgspec.json.Decoder(EndingPlan).decode
_read_payload = msgspec.json.Decoder(_Payload).decode


def plan_for(reduce: str | None, when: When | None, locked: bool = False) -> EndingPlan:
    """The plan of a flow, whose reducer and condition are already checked."""
    if when is None:
        return EndingPlan(reduce=reduce, locked=locked)
    return EndingPlan(reduce=reduce, required=when.required, of=when.of, locked=locked)


def plan_of(row: Record) -> EndingPlan:
    """The plan of this parent. One that cannot be read counts as none, so a bad row does not stop a worker."""
    try:
        if row.job.task == FLOW:
            return plan_of_job(row.job)
        text = dict(row.checkpoints).get(PLAN)
        return PLAIN if text is None else read_plan(text)
    except UNREADABLE:
        return PLAIN


def plan_of_job(job: NewJob) -> EndingPlan:
    """The plan of a `treadle.flow` row. Raises one of UNREADABLE."""
    if job.payload == "[]":
        return PLAIN
    refuse_deep(job.payload)
    return _read_payload(job.payload).kwargs


def root_of(id: str, plan: EndingPlan, after: Sequence[str], **fields: Any) -> NewJob:
    """A row without a function: it waits for these jobs, and then any worker ends it."""
    payload = "[]" if plan == PLAIN else msgspec.json.encode(_Payload(plan)).decode()
    return NewJob(
        id=id, task=FLOW, payload=payload, after=tuple(after), failures_allowed=None, function_done=True, **fields
    )


def time_left(record: Record, moment: float) -> float | None:
    """Seconds until the deadline of the job, at this instant of the storage's clock; None: it has none."""
    return None if record.deadline_at is None else max(0.0, record.deadline_at - moment)


def adopted(new: NewJob, parent: NewJob, deadline: float | None = None) -> NewJob:
    """The job as a child of this parent. It inherits the headers, and also the lane (with its weight) and the deadline
    if it has none of its own."""
    if parent.headers:
        new = inheriting(new, dict(parent.headers))
    lane, stride = (new.lane, new.stride) if new.lane is not None else (parent.lane, parent.stride)
    return replace(
        new,
        root=parent.root or parent.id,
        parent=new.parent or parent.id,
        lane=lane,
        stride=stride,
        deadline=new.deadline if new.deadline is not None or new.function_done else deadline,
    )


def mark_id(id: str) -> str:
    """The id of the row that marks the end of this job's run, whatever its children do."""
    return ids.derived(id, "ran")


def either_id(id: str) -> str:
    """The id of the row that waits for that mark, or for the job itself."""
    return ids.derived(id, "either")


def called_stem(id: str) -> str:
    """The beginning of the ids of the children that this job calls."""
    return ids.derived(id, "call")


def mark_of(record: Record) -> NewJob:
    """The row that marks the end of this run, stored with its outcome."""
    job = record.job
    return root_of(mark_id(job.id), EndingPlan(mark="run"), (), queue=job.queue, root=job.root or job.id, parent=job.id)


def continued(
    record: Record,
    jobs: Sequence[NewJob],
    plan: EndingPlan,
    own: str | None,
    remaining: float | None,
    note: str | None,
    marks: bool,
) -> Outcome:
    """The outcome of a run that continues as these jobs. `own`: its encoded value; `remaining`: the seconds
    until its deadline."""
    then = [adopted(new, record.job, remaining) for new in jobs]
    after = tuple(new.id for new in then if new.parent == record.job.id)
    if marks:
        then.append(mark_of(record))
    checkpoints = (*cleared_note(record), *kept_upstreams(record))
    if plan != PLAIN:
        checkpoints = (*checkpoints, (PLAN, msgspec.json.encode(plan).decode()))
    return Outcome(
        id=record.job.id,
        version=record.version,
        state=State.WAITING,
        attempt=record.attempt + 1,
        result=own,
        checkpoints=checkpoints,
        note=note,
        followups=tuple(then),
        after=after,
        failures_allowed=None,
        function_done=True,
    )


def concluded(record: Record, text: str, note: str | None) -> Outcome:
    """The outcome of a run that sets the value of the whole workflow."""
    return replace(succeeded(record, text, note=note), value=text, reason=CONCLUDED)
