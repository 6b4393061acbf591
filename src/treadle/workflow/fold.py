"""The ending of a parent: from the rows of its children to one outcome. Pure.

Without it a parent would wait for ever, or succeed whatever became of its children. It is worked out once, when the
last child has ended, from rows that no longer change: so it may be worked out again, by anybody, with the same answer.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any, Final, Protocol

import msgspec

from treadle.core.model import CHILDREN, UPSTREAM, Outcome, Pairs, Record, State
from treadle.errors import UNREADABLE, BadResult, TooLarge, TreadleError, error_line
from treadle.policy import judge
from treadle.policy.judge import upstreams
from treadle.policy.retry import read_policy
from treadle.serialization import call_codec
from treadle.tasks.reducers import DEFAULT, Reducer
from treadle.workflow.plan import CONCLUDED, FLOW, OF, Plan, either_id, plan_of

SHOWN: Final = 20  # failed children that the error of their parent names; all of them are in WorkflowFailed


class Signature(Protocol):
    """How the results and values of one task are written."""

    def decode_result(self, text: str, /) -> object: ...
    def decode_value(self, text: str, /) -> object: ...
    def encode_value(self, value: object, /) -> str: ...


class Task(Protocol):
    """What of a task the fold asks for."""

    @property
    def signature(self) -> Signature: ...
    @property
    def reduce(self) -> str | None: ...


class NoReducer(TreadleError, LookupError):
    """The reducer a workflow names is not registered where it ended."""


def ending(
    row: Record, children: Sequence[Record], tasks: Mapping[str, Any], reducers: Mapping[str, Reducer], most: int
) -> Outcome:
    """What becomes of a parent whose children have ended. `most`: the largest value, in bytes."""
    plan = plan_of(row)
    if plan.mark is not None or plan.guard:
        return _over(row, children)
    failed = fatal(children, plan)
    if failed:
        return failure(row, _named(failed, len(children)))
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
            raise NoReducer(f"there is no reducer {name!r} in this app; there are {', '.join(reducers)}")
        parts = contributions(children, row.after)
        text, of = _as_text(parts, name) if task is None else (None, ())
        if task is not None or name not in ("last", "first", "list"):
            value = reducers[name]([decode_of(part, tasks, part.result or "null") for part in parts])
            if value is not None:
                text = call_codec.encode_any(value) if task is None else task.signature.encode_value(value)
        if text is not None and len(text) * 4 > most and (size := len(text.encode())) > most:
            raise TooLarge(f"the value of the workflow {row.job.id}", size, most)
    except Exception as error:  # the reducer is the user's, and so are the classes its values are made of
        return failure(
            row, f"its children ended well; folding their results with {name!r} failed: {judge.text_of(error)}"
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
        memo=of,
    )


def failure(row: Record, error: str) -> Outcome:
    """A parent that failed because of its children. Reopened, it is ended again; its function is not called again."""
    return Outcome(
        id=row.job.id,
        version=row.version,
        state=State.FAILED,
        attempt=row.attempt,
        result=row.result,
        reason=CHILDREN,
        error=judge.cut(error),
    )


def _over(row: Record, children: Sequence[Record]) -> Outcome:
    """The ending of a row that only stands for others: as well as the best of them, or, for a guard, the worst."""
    good = [child.state is State.SUCCEEDED for child in children]
    if all(good) if plan_of(row).guard else not children or any(good):
        return _ended(row, None, (), None)
    return failure(row, _named([child for child in children if child.state is not State.SUCCEEDED], len(children)))


# --- who failed


def fatal(children: Sequence[Record], plan: Plan) -> list[Record]:
    """The children because of which their parent fails. Of one that somebody waited for with a condition that allows
    for failures, the one that waited decides; of the first ones the condition of the flow, if it has one."""
    tolerated = {up for child in children if child.job.slack != 0 and child.job.task != FLOW for up in upstreams(child)}
    if plan.of is not None:
        ids = {child.job.id for child in children}
        begin = [child for child in children if not ids.intersection(upstreams(child))]
        need = len(begin) if plan.need is None else plan.need
        if sum(1 for child in begin if plan.of == "done" or child.state is State.SUCCEEDED) >= need:
            tolerated |= {child.job.id for child in begin}
    bad = [child for child in children if child.state is not State.SUCCEEDED]
    return [child for child in bad if not {child.job.id, either_id(child.job.id)} & tolerated]


def _named(failed: Sequence[Record], of: int) -> str:
    lines, blamed = [f"{len(failed)} of its {of} children did not succeed:"], causes(failed)
    lines += [
        f"- {row.job.task} {row.job.id} ({row.reason}): {error_line(row.error) or 'no details'}"[:400]
        for row in blamed[:SHOWN]
    ]
    if len(blamed) > SHOWN:
        lines.append(f"- and {len(blamed) - SHOWN} more")
    return "\n".join(lines)


def causes(failed: Sequence[Record]) -> list[Record]:
    """Those that are to blame: not the ones that were cancelled because of another, unless there are only those."""
    return [row for row in failed if row.reason != UPSTREAM] or list(failed)


# --- what they contribute


def contributions(children: Sequence[Record], after: Sequence[str] = ()) -> list[Record]:
    """The children whose results are folded, in the order of their ending (of one moment: as they were given). A
    result that was handed on as an argument has gone there, and None is nothing. A child contributes as often as the
    parent names it in `after`: a row whose key two of them asked for has answered both."""
    named = Counter(after)
    used = {up for child in children if read_policy(child.job.retry).pass_result for up in upstreams(child)}
    found = [
        child
        for child in children
        if child.state is State.SUCCEEDED and child.job.id not in used and child.result not in (None, "null")
        for _ in range(named[child.job.id] or 1)
    ]
    return sorted(found, key=lambda child: child.ended_at or 0.0)


def first_locked(row: Record, children: Sequence[Record], plan: Plan) -> tuple[str | None, Pairs] | None:
    """The value somebody concluded with: the parent itself, or the first child that did."""
    if plan.locked:
        return row.result, ()
    locked = [child for child in children if child.reason == CONCLUDED and child.state is State.SUCCEEDED]
    if not locked:
        return None
    one = min(locked, key=lambda child: child.ended_at or 0.0)
    return one.value, _of(encoding_of(one, folded=True))


def _as_text(parts: Sequence[Record], name: str) -> tuple[str | None, Pairs]:
    """The value of a flow that no task returned, without reading it: it is kept as its task wrote it, and with it
    whose it is."""
    if name == "list":
        return f"[{','.join(part.result or 'null' for part in parts)}]", _of([encoding_of(part) for part in parts])
    if not parts or name not in ("last", "first"):
        return None, ()
    one = parts[-1] if name == "last" else parts[0]
    return one.result, _of(encoding_of(one))


Encoding = Any  # the task that wrote a text; None: anybody; a list: of each part


def encoding_of(row: Record, folded: bool = False) -> Encoding:
    """Whose text the own result of this row is, or (`folded`) the value of its workflow."""
    noted = dict(row.memo).get(OF)
    if noted is not None and (folded or row.result == row.value):
        with suppress(*UNREADABLE):  # else another program has stored it
            return msgspec.json.decode(noted)
    return None if row.job.task == FLOW else row.job.task


def _of(encoding: Encoding) -> Pairs:
    return ((OF, msgspec.json.encode(encoding).decode()),)


def decode_of(row: Record, tasks: Mapping[str, Any], text: str, folded: bool = False) -> Any:
    """The own result of a row (`folded`: the value of its workflow), by the codec of the task that wrote it. Raises
    BadResult."""
    return _decode(encoding_of(row, folded), tasks, text, folded)


def _parts(text: str) -> list[msgspec.Raw]:
    """Of a list; [] for what is none."""
    try:
        return msgspec.json.decode(text, type=list[msgspec.Raw])
    except UNREADABLE:
        return []


def _decode(encoding: Encoding, tasks: Mapping[str, Any], text: str, folded: bool) -> Any:
    if isinstance(encoding, list) and len(parts := _parts(text)) == len(encoding):
        return [_decode(each, tasks, bytes(raw).decode(), folded) for each, raw in zip(encoding, parts, strict=True)]
    task: Task | None = tasks.get(encoding) if isinstance(encoding, str) else None
    if task is None:
        return call_codec.decode_any(text)
    own, value = task.signature.decode_result, task.signature.decode_value
    try:
        return value(text) if folded else own(text)
    except BadResult:  # what somebody concluded with is of his type, not of its type
        return own(text) if folded else value(text)
