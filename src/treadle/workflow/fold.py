"""Computes the outcome of a parent from the rows of its children.

It runs when the last child has ended, on rows that no longer change. So any worker can repeat it with the same result.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any, Final, Protocol

import msgspec
from msgspec.structs import replace

from treadle.core.errors import UNREADABLE, BadResult, TooLarge, TreadleError, error_line
from treadle.core.model import CHILDREN, UPSTREAM, Outcome, Pairs, Record, State
from treadle.core.stored_text import lacks
from treadle.policy.error_text import cut, text_of
from treadle.policy.judge import upstreams
from treadle.policy.retry import read_policy
from treadle.serialization import call_codec
from treadle.tasks.reducers import DEFAULT, Reducer
from treadle.workflow.plan import CONCLUDED, FLOW, OF, EndingPlan, either_id, plan_of

SHOWN: Final = 20  # failed children that the error of a parent names at most; WorkflowFailed has all


Raised = Callable[[Exception], object]


class Signature(Protocol):
    """Encodes and decodes the results and workflow values of one task."""

    def decode_result(self, text: str, /) -> object: ...
    def decode_value(self, text: str, /) -> object: ...
    def encode_value(self, value: object, /) -> str: ...


class Task(Protocol):
    """The attributes of a task that are used here."""

    @property
    def signature(self) -> Signature: ...
    @property
    def reduce(self) -> str | None: ...


class NoReducer(TreadleError, LookupError):
    """The reducer that a workflow names is not registered in the app that ends it."""


def ending(
    row: Record,
    children: Sequence[Record],
    tasks: Mapping[str, Any],
    reducers: Mapping[str, Reducer],
    most: int,
    raised: Raised,
) -> Outcome:
    """The outcome of a parent whose children have ended.

    most    the largest value, in bytes
    raised  called with the exception of a reducer that failed
    """
    plan = plan_of(row)
    if plan.mark is not None or plan.guard:
        return _over(row, children)
    failed = fatal(children, plan)
    if failed:  # whoever retries one of them, and not all, retries another one later, which reopens the job
        ids = tuple(child.job.id for child in failed[:SHOWN])
        return replace(failure(row, _named(failed, len(children))), after=ids)
    locked = first_locked(row, children, plan)
    if locked is not None:
        text, of = locked
        return _ended(row, text, of, CONCLUDED)
    name = plan.reduce
    try:
        task: Task | None = tasks.get(row.job.task)
        if name is None:
            name = (task.reduce if task is not None else None) or DEFAULT
        if name not in reducers:
            raise NoReducer(f"this app has no reducer {name!r}; expected one of {', '.join(reducers)}")
        parts = contributions(children, row.after)
        text, of = _as_text(parts, name) if task is None else (None, ())
        if task is not None or name not in ("last", "first", "list"):
            value = reducers[name]([decode_of(part, tasks, part.result or "null") for part in parts])
            if value is not None:
                text = call_codec.encode_any(value) if task is None else task.signature.encode_value(value)
        if text is not None and len(text) * 4 > most and (size := len(text.encode())) > most:
            raise TooLarge.of_result(f"the value of the workflow {row.job.id}", size, most)
    except Exception as error:  # the reducer, and the classes of its values, are user code
        raised(error)
        return failure(
            row, f"its children succeeded, but reducing their results with {name!r} failed: {text_of(error)}"
        )
    return _ended(row, text, of, None)


def _ended(row: Record, text: str | None, of: Pairs, reason: str | None) -> Outcome:
    own = text if row.result is None else row.result
    return Outcome(
        id=row.job.id,
        version=row.version,
        state=State.SUCCEEDED,
        attempt=row.attempt,
        result=own,
        value=text,
        reason=reason,
        checkpoints=of,
    )


def failure(row: Record, error: str) -> Outcome:
    """The outcome of a parent that failed because of its children. After a reopening, only its ending is repeated."""
    return Outcome(
        id=row.job.id,
        version=row.version,
        state=State.FAILED,
        attempt=row.attempt,
        result=row.result,
        reason=CHILDREN,
        error=cut(error),
    )


def _over(row: Record, children: Sequence[Record]) -> Outcome:
    """The ending of a row without a function: it succeeds if one of its children has succeeded; a guard succeeds if all
    have."""
    good = [child.state is State.SUCCEEDED for child in children]
    if all(good) if plan_of(row).guard else not children or any(good):
        return _ended(row, None, (), None)
    return failure(row, _named([child for child in children if child.state is not State.SUCCEEDED], len(children)))


# --- failures


def fatal(children: Sequence[Record], plan: EndingPlan) -> list[Record]:
    """The children whose failure fails their parent. A failed child is tolerated if a job waited for it with a
    condition that allows failures, or if the flow's condition, which applies to the first jobs, holds."""
    tolerated = {
        up
        for child in children
        if child.job.failures_allowed != 0 and child.job.task != FLOW
        for up in upstreams(child)
    }
    if plan.of is not None:
        ids = {child.job.id for child in children}
        begin = [child for child in children if not ids.intersection(upstreams(child))]
        required = len(begin) if plan.required is None else plan.required
        if sum(1 for child in begin if plan.of == "done" or child.state is State.SUCCEEDED) >= required:
            tolerated |= {child.job.id for child in begin}
    bad = [child for child in children if child.state is not State.SUCCEEDED]
    return [child for child in bad if not {child.job.id, either_id(child.job.id)} & tolerated]


def _named(failed: Sequence[Record], of: int) -> str:
    """The error. Its first line is a whole sentence, because lists, logs and `explain` show no other."""
    blamed = causes(failed)
    first, *others = [
        f"{row.job.task} {row.job.id} ({row.reason}): {error_line(row.error) or 'no details'}"[:400]
        for row in blamed[:SHOWN]
    ]
    lines = [f"{len(failed)} of its {of} children did not succeed: {first}", *(f"- {other}" for other in others)]
    if len(blamed) > SHOWN:
        lines.append(f"- and {len(blamed) - SHOWN} more")
    return "\n".join(lines)


def causes(failed: Sequence[Record]) -> list[Record]:
    """The original failures: without jobs that were cancelled because of another, unless there are only such jobs."""
    return [row for row in failed if row.reason != UPSTREAM] or list(failed)


# --- results


def contributions(children: Sequence[Record], after: Sequence[str] = ()) -> list[Record]:
    """The children whose results are combined, in the order of their ending (ties: in the order given). A result that
    was passed on as an argument, and None, are left out. A child counts as often as the parent names it in `after`: for
    a shared key, one row was returned for two children."""
    named = Counter(after)
    used = {up for child in children if read_policy(child.job.retry).pass_result for up in upstreams(child)}
    counted = [
        child
        for child in children
        if child.state is State.SUCCEEDED and child.job.id not in used and child.result not in (None, "null")
        for _ in range(named[child.job.id] or 1)
    ]
    return sorted(counted, key=lambda child: child.ended_at or 0.0)


def first_locked(row: Record, children: Sequence[Record], plan: EndingPlan) -> tuple[str | None, Pairs] | None:
    """The value of the first Conclude: of the parent itself, or of the first child with one. None: there is none."""
    if plan.locked:
        return row.result, ()
    locked = [child for child in children if child.reason == CONCLUDED and child.state is State.SUCCEEDED]
    if not locked:
        return None
    one = min(locked, key=lambda child: child.ended_at or 0.0)
    return one.value, _of(encoding_of(one, folded=True))


def _as_text(parts: Sequence[Record], name: str) -> tuple[str | None, Pairs]:
    """The value of a flow that no task returned, as its tasks encoded it, and the names of these tasks. None if there
    is none or it must be decoded."""
    if name == "list":
        return f"[{','.join(part.result or 'null' for part in parts)}]", _of([encoding_of(part) for part in parts])
    if not parts or name not in ("last", "first"):
        return None, ()
    one = parts[-1] if name == "last" else parts[0]
    return one.result, _of(encoding_of(one))


Encoding = Any  # the task that encoded a text; None: unknown; a list: one for each part


def encoding_of(row: Record, folded: bool = False) -> Encoding:
    """The task that encoded the own result of this row or (`folded`) the value of its workflow."""
    noted = dict(row.checkpoints).get(OF)
    if noted is not None and (folded or row.result == row.value):
        with suppress(*UNREADABLE):  # if unreadable, another program has stored it
            return msgspec.json.decode(noted)
    return None if row.job.task == FLOW else row.job.task


def _of(encoding: Encoding) -> Pairs:
    return ((OF, msgspec.json.encode(encoding).decode()),)


def decode_of(row: Record, tasks: Mapping[str, Any], text: str, folded: bool = False) -> Any:
    """The own result of a row (`folded`: the value of its workflow), decoded by the codec of the task that encoded it.
    Raises BadResult."""
    return decoded(encoding_of(row, folded), tasks, text, folded)


def _parts(text: str) -> list[msgspec.Raw]:
    """The parts of a JSON list; [] for any other text."""
    try:
        return msgspec.json.decode(text, type=list[msgspec.Raw])
    except UNREADABLE:
        return []


def decoded(encoding: Encoding, tasks: Mapping[str, Any], text: str, folded: bool = False) -> Any:
    """A result or a value, decoded by the codec of the task that encoded it. Raises BadResult."""
    if isinstance(encoding, list) and len(parts := _parts(text)) == len(encoding):
        return [
            decoded(task_name, tasks, bytes(raw).decode(), folded)
            for task_name, raw in zip(encoding, parts, strict=True)
        ]
    task: Task | None = tasks.get(encoding) if isinstance(encoding, str) else None
    if task is None:
        if (why := lacks(text)) is not None:
            raise BadResult("a task that this app does not have", why)
        return call_codec.decode_any(text)
    own, value = task.signature.decode_result, task.signature.decode_value
    try:
        return value(text) if folded else own(text)
    except BadResult:  # a Conclude value has the type of the job that concluded, not of this job
        return own(text) if folded else value(text)
