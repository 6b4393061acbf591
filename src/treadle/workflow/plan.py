"""What a composition is in rows: children with a parent, and a plan of how the parent is to end.

Without it a flow would exist only in the memory of whoever wrote it. Nothing here needs a storage of its own kind: a
parent is a job that has run and waits, and its plan is either the payload of `treadle.flow` or an entry of its memo.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, Literal

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from treadle.core import ids
from treadle.core.model import NewJob, Outcome, Pairs, Record, State
from treadle.errors import UNREADABLE
from treadle.policy.judge import kept_upstreams, succeeded
from treadle.tasks.when import When

FLOW: Final = "treadle.flow"  # the task of what has no function: the root of a composition sent from outside
PLAN: Final = "treadle:plan"  # memo entries of ours; a step's name has no colon in front
OF: Final = "treadle:of"


CONCLUDED: Final = "concluded"  # the reason of a success that fixes the value of the workflow


class Plan(Struct, frozen=True, omit_defaults=True):
    """How a parent is to end.

    reduce  the reducer its flow names; None: its task's
    need    how many of its children must succeed, or (of="done") may end in any way; None: all but those tolerated
    locked  its own value is the value of the whole workflow
    mark    "run": it says that the run of another job is over; "either": it waits for that, or for the job itself
    guard   it cancels those it waits for, as soon as one of them cannot succeed
    """

    reduce: str | None = None
    need: int | None = None
    of: Literal["succeeded", "done"] | None = None
    locked: bool = False
    mark: Literal["run", "either"] | None = None
    guard: bool = False


PLAIN: Final = Plan()


class _Payload(Struct, frozen=True, omit_defaults=True):
    """The payload of `treadle.flow`, in the form every payload has."""

    kwargs: Plan = PLAIN


read_plan = msgspec.json.Decoder(Plan).decode
_read_payload = msgspec.json.Decoder(_Payload).decode


def plan_for(reduce: str | None, when: When | None, locked: bool = False) -> Plan:
    """The plan of a flow. Its reducer and condition have been checked."""
    if when is None:
        return Plan(reduce=reduce, locked=locked)
    return Plan(reduce=reduce, need=when.need, of=when.of, locked=locked)


def plan_of(row: Record) -> Plan:
    """How this parent is to end. A plan that cannot be read counts as none: a bad row must not stop a worker."""
    try:
        if row.job.task == FLOW:
            return plan_of_job(row.job)
        text = dict(row.memo).get(PLAN)
        return PLAIN if text is None else read_plan(text)
    except UNREADABLE:
        return PLAIN


def plan_of_job(job: NewJob) -> Plan:
    """How a row of `treadle.flow` is to end. Raises one of UNREADABLE."""
    return PLAIN if job.payload == "[]" else _read_payload(job.payload).kwargs


def root_of(id: str, plan: Plan, after: Sequence[str], **fields: Any) -> NewJob:
    """A row that nobody runs: it waits for these, and is ended by whichever worker comes by."""
    payload = "[]" if plan == PLAIN else msgspec.json.encode(_Payload(plan)).decode()
    return NewJob(id=id, task=FLOW, payload=payload, after=tuple(after), slack=None, ran=True, **fields)


def adopted(new: NewJob, parent: NewJob, deadline: float | None = None) -> NewJob:
    """A child of this parent, whose deadline, headers and lane (with its weight) it takes where it has none."""
    headers: Pairs = new.headers
    if parent.headers:
        headers = tuple({**dict(parent.headers), **dict(new.headers)}.items())
    lane, stride = (new.lane, new.stride) if new.lane is not None else (parent.lane, parent.stride)
    return replace(
        new,
        root=parent.root or parent.id,
        parent=new.parent or parent.id,
        headers=headers,
        lane=lane,
        stride=stride,
        deadline=new.deadline if new.deadline is not None or new.ran else deadline,
    )


def mark_id(id: str) -> str:
    """The id of the row that says: the run of this job is over, whatever its children do."""
    return ids.derived(id, "ran")


def either_id(id: str) -> str:
    """The id of the row that waits for that mark, or for the job itself."""
    return ids.derived(id, "either")


def mark_of(record: Record) -> NewJob:
    """That row. It is stored with the outcome of the run."""
    job = record.job
    return root_of(mark_id(job.id), Plan(mark="run"), (), queue=job.queue, root=job.root or job.id, parent=job.id)


def continued(
    record: Record,
    jobs: Sequence[NewJob],
    plan: Plan,
    own: str | None,
    left: float | None,
    note: str | None,
    marks: bool,
) -> Outcome:
    """The outcome of a run that goes on as these jobs. `own` is the text of the value it gave, `left` the seconds to
    its deadline."""
    then = [adopted(new, record.job, left) for new in jobs]
    after = tuple(new.id for new in then if new.parent == record.job.id)
    if marks:
        then.append(mark_of(record))
    memo = kept_upstreams(record)
    if plan != PLAIN:
        memo = (*memo, (PLAN, msgspec.json.encode(plan).decode()))
    return Outcome(
        id=record.job.id,
        version=record.version,
        state=State.WAITING,
        attempt=record.attempt + 1,
        result=own,
        memo=memo,
        note=note,
        then=tuple(then),
        after=after,
        slack=None,
        ran=True,
    )


def concluded(record: Record, text: str, note: str | None) -> Outcome:
    """The outcome of a run that settles the value of the whole workflow."""
    return replace(succeeded(record, text, note=note), value=text, reason=CONCLUDED)
