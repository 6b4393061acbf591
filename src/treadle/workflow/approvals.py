"""The row of a request for approval: a child without a task, which the decision of a person ends.

The row decides. A decision, the end of its time and its withdrawal are outcomes under one version, so exactly one of
them counts.
"""

from __future__ import annotations

from datetime import datetime
from typing import Final

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from treadle.core import ids
from treadle.core.clock import moment
from treadle.core.errors import UNREADABLE, BadOption
from treadle.core.model import EXPIRED, NewJob, Outcome, Record, State

APPROVAL: Final = "treadle:approval:"  # prefix of the ids of these rows
HEADER: Final = "treadle:approval"  # the header with a `RequestHeader`: an operator reads it without keys
LABEL: Final = "treadle:approval"  # the label of these rows; with ":" and `by` behind it, those that `by` may decide
LONGEST_BY: Final = 200  # characters of `by`
LONGEST_REASON: Final = 2_000  # characters of the reason of a decision
MOST_SHOWN: Final = 65_536  # characters of what a request shows, as JSON
GROUP, USER = "group:", "user:"


class Approval(Struct, frozen=True):
    """The decision about a request: `if await current().approve("refund"):` tests `approved`.

    by      who decided: a user, or user@host for the command line and for Python
    reason  why, in the words of that person; "" if none was given
    at      when, by the storage's clock
    """

    approved: bool
    by: str
    reason: str
    at: datetime

    def __bool__(self) -> bool:
        return self.approved


class RequestHeader(Struct, frozen=True, omit_defaults=True):
    """The header of such a row.

    by     who may decide: "group:NAME", "user:NAME", or "": every operator
    task   the task of the job
    until  when the request ends without a decision; None: it has no end of its own
    """

    job: str
    name: str
    task: str
    by: str = ""
    until: float | None = None


class Decision(Struct, frozen=True):
    """The result of a decided row."""

    approved: bool
    by: str
    reason: str = ""


class Decided(Struct, frozen=True):
    """A decision with its instant, as the history of the job keeps it."""

    approved: bool
    by: str
    reason: str
    at: float

    def shown(self) -> Approval:
        return Approval(self.approved, self.by, self.reason, moment(self.at))


_read_header = msgspec.json.Decoder(RequestHeader).decode
_read_decision = msgspec.json.Decoder(Decision).decode


def first_request_id(job: str, round: int, key: str, life: int) -> str:
    """The id of the row for this wait of the job, in this round and life."""
    return APPROVAL + ids.digest(job, round, key, life)


def next_request_id(id: str) -> str:
    """The id of the row behind one that was withdrawn."""
    return APPROVAL + ids.digest(id)


def request_row(id: str, job: Record, header: RequestHeader, shown: str, time_left: float | None) -> NewJob:
    """The row. `shown`: what the person sees, as JSON. `time_left`: seconds until the request or its job ends."""
    ends = [instant for instant in (header.until, job.deadline_at) if instant is not None]
    return NewJob(
        id=id,
        task="",
        payload=shown,
        queue=job.job.queue,
        root=job.job.root or job.id,
        parent=job.id,
        deadline=time_left,
        deadline_at=min(ends, default=None),
        labels=(LABEL, label_of(header.by)),
        headers=((HEADER, msgspec.json.encode(header).decode()),),
    )


def label_of(by: str) -> str:
    """The label of the requests that `by` may decide."""
    return f"{LABEL}:{by}"


def is_request(id: str) -> bool:
    """Whether this is the id of such a row."""
    return id.startswith(APPROVAL)


def header_of(job: NewJob) -> RequestHeader | None:
    """The header of a request; None for another row, or one that cannot be read."""
    if job.task or not is_request(job.id):
        return None
    try:
        return _read_header(dict(job.headers).get(HEADER, ""))
    except UNREADABLE:
        return None


def request_name(row: Record) -> str | None:
    """The name of the request of this row; None for another row."""
    header = header_of(row.job)
    return None if header is None else header.name


def decision_of(row: Record) -> Decided | None:
    """How this request was decided; None: it was not."""
    if row.state is not State.SUCCEEDED:
        return None
    decision = read_decision(row.result)
    if decision is None:
        return None
    return Decided(decision.approved, decision.by, decision.reason, row.ended_at or row.updated_at)


def read_decision(result: str | None) -> Decision | None:
    """The decision in a result; None: another program has written it."""
    try:
        return None if result is None else _read_decision(result)
    except UNREADABLE:
        return None


def decided(row: Record, decision: Decision) -> Outcome:
    """The outcome that decides this request."""
    text = msgspec.json.encode(decision).decode()
    return Outcome(id=row.id, version=row.version, state=State.SUCCEEDED, result=text)


def expired(row: Record) -> Outcome:
    """The outcome that ends this request because its time is over."""
    return Outcome(id=row.id, version=row.version, state=State.FAILED, reason=EXPIRED, error="its deadline passed")


def signed(out: Outcome, user: str) -> Outcome:
    """The decision with the name of this user before the name that a client gives."""
    decision = read_decision(out.result)
    if decision is None:
        raise BadOption("result", "expected a decision about a request: approved, by and reason")
    by = decision.by.translate({ord("("): "[", ord(")"): "]"})  # or it could end the parentheses around it
    return replace(out, result=msgspec.json.encode(replace(decision, by=f"{user} ({by})")).decode())


def check_by(by: str) -> str:
    """Return `by`. Raises BadOption unless it names a group or a user, or is ""."""
    kind = next((kind for kind in (GROUP, USER) if by.startswith(kind)), None)
    is_named = kind is not None and len(kind) < len(by) <= LONGEST_BY and by.isprintable()
    if by and not is_named:
        raise BadOption(
            "by",
            f'expected "group:NAME" or "user:NAME" of at most {LONGEST_BY} printable characters, or "" for every '
            f"operator; found {by!r:.80}",
        )
    return by


def may_decide(by: str, user: str, groups: tuple[str, ...]) -> bool:
    """Whether this user of these groups may decide a request for `by`. The group "*" may decide every request."""
    is_in_group = by.startswith(GROUP) and by.removeprefix(GROUP) in groups
    return by in ("", USER + user) or "*" in groups or is_in_group


def words_of(by: str) -> str:
    """The persons that may decide, in words."""
    kind, _, name = by.partition(":")
    return "every operator" if not by else f"the {kind} {name!r}"
