"""Checks the rows of requests for approval that arrive by the worker protocol, and their decisions.

A worker stores, withdraws and releases such rows. A decision is the act of an operator whom the request names.
"""

from __future__ import annotations

from treadle.core.errors import BadOption, MayNotDecide
from treadle.core.model import NewJob, Outcome, Record, State
from treadle.server.auth.tokens import Token
from treadle.workflow.approvals import LABEL, check_by, header_of, is_request, label_of, may_decide, read_decision


def check_request(job: NewJob) -> str:
    """Check the row of a request -> the job that asks. Raises BadOption."""
    header = header_of(job)
    if header is None or job.parent != header.job or job.key is not None:
        raise BadOption("id", f"job {job.id[:60]!r} is not a request of the job {job.parent!r}, but has such an id")
    if job.labels != (LABEL, label_of(check_by(header.by))):
        raise BadOption("labels", f"job {job.id[:60]!r}: expected the labels of a request for {header.by!r}")
    return header.job


def owner_of(job: NewJob) -> str | None:
    """Check a request -> the job that asks; None for another row."""
    return check_request(job) if is_request(job.id) else None


def born(job: NewJob, out: Outcome) -> str:
    """Check a request among the follow-up jobs of an outcome -> the scope that it needs besides `work`."""
    if check_request(job) != out.id:
        raise BadOption("parent", f"job {job.id[:60]!r} is not a request of job {out.id!r}")
    return ""


def is_decision(out: Outcome) -> bool:
    """Whether this outcome of a request decides it; otherwise it ends or releases the request."""
    return out.state is State.SUCCEEDED and out.keep != 0.0


def ended(out: Outcome) -> str:
    """The scope that an outcome of a request needs besides `work`. Raises BadOption."""
    if not is_decision(out):
        return ""
    if read_decision(out.result) is None:
        raise BadOption("result", "expected a decision about a request: approved, by and reason")
    return "operate"


def refuse_decider(token: Token, out: Outcome, row: Record | None) -> None:
    """Raise MayNotDecide if the holder of the token may not decide this request."""
    header = None if row is None else header_of(row.job)
    if header is not None and is_decision(out) and not may_decide(header.by, token.name, token.groups):
        raise MayNotDecide(out.id, header.name, header.by, token.name)
