"""The history of one job for `app.jobs.history`: attempts, steps, signals, and the states of its children.

Everything is read from stored rows of a bounded number, and no row that cannot be decoded hides the others.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final, Literal

from msgspec import Struct, UnsetType, structs

from treadle.admin import stored_values
from treadle.core.errors import UNREADABLE
from treadle.core.model import OURS, PUBLISHED, Record
from treadle.core.query_model import Query
from treadle.durable import Checkpoint, Failure, Kind, kind_of, locks_of, read_entry
from treadle.policy import attempts
from treadle.storage import whole
from treadle.storage.contract import Storage
from treadle.tasks.core import TaskCore
from treadle.workflow import signals
from treadle.workflow.mailbox import text_of
from treadle.workflow.streams import names_of

CHILDREN: Final = 1_000  # children that are counted
SEARCHED: Final = 2_000  # rows stored after the job among which a storage looks for its signals
PAGE: Final = 500

Decode = Callable[[str], Any]


class JobAttempt(Struct, frozen=True, kw_only=True):
    """One run of a job; see `treadle.policy.attempts.Attempt`."""

    number: int
    reopening: int
    started_at: float | None
    ended_at: float | None
    worker: str | None
    outcome: attempts.Ended
    error: str | None
    reason: str | None
    delay: float | None


class Step(Struct, frozen=True, kw_only=True):
    """A stored step of durable code.

    kind   "step": a function that is run once. "sleep": until an instant. "timeout": a time limit; the value is the
           step or wait at which it took effect. "signal": a wait that received its signal or timed out. "child":
           another job, or several. "patch": a marker of `current().patched`. "lock": a lock; the value is its number,
           if the job has it. "once": a key of `current().once`; the last ten are known
    value  decoded as a result is, or its stored text if that cannot be decoded; of a step that failed, its error
    until  end of the sleep, the time limit, or the once-lock; for a step that is tried again, when its next try is due
    done   whether later runs go on behind it: false for a sleep that lasts, a wait that timed out, a released key, a
           step that is tried again, a lock that the job has or waits for
    failed  whether later runs raise the error of the step, or, if it is tried again, its last try has failed
    """

    name: str
    kind: Kind | Literal["once"]
    value: Any = None
    until: float | None = None
    done: bool = True
    failed: bool = False


class Signal(Struct, frozen=True, kw_only=True):
    """A signal that the job waits for, or that was sent to it. `at`: when it was sent."""

    name: str
    given: bool
    value: Any = None
    at: float | None = None


class JobHistory(Struct, frozen=True, kw_only=True):
    """The history of one job.

    attempts         its last ten runs, oldest first, with the present or last one
    steps            in the order in which they were stored
    signals          signals and messages that it waits for, and that were sent to it. One that was sent before the job
                     waits for it is found among the first 2,000 rows that were stored after the job
    values           the values that it has published, by name
    streams          the names of its streams; `log` has the log lines of its runs
    children         number of its children by state: the jobs that it waits for, or waited for
    children_capped  there are more than the 1,000 that were counted
    """

    attempts: tuple[JobAttempt, ...] = ()
    steps: tuple[Step, ...] = ()
    signals: tuple[Signal, ...] = ()
    values: dict[str, Any] = {}
    streams: tuple[str, ...] = ()
    children: dict[str, int] = {}
    children_capped: bool = False


def decoder_of(task: TaskCore | None) -> Decode:
    """Decodes what the codec of this task wrote; None: this app does not have the task."""
    codec = None if task is None else task.signature._codec
    return stored_values.value if codec is None else codec.decode


async def read_history(
    storage: Storage, row: Record, decode: Decode, value: Decode, hide: Callable[[Record], Record] | None = None
) -> JobHistory:
    """Read the history of this job. `decode` decodes the text that the task's own codec wrote, `value` that of
    Treadle's. `hide` removes secrets from the row, and from the values of its messages. Raises StorageError."""
    below = row.after if row.started_at is not None else ()
    related = [child for child in await storage.get(below[:CHILDREN]) if child is not None] if below else []
    children: dict[str, int] = {}
    for child in related:
        if child.job.parent == row.job.id and child.job.task:
            children[child.state] = children.get(child.state, 0) + 1
    waits = [child for child in related if child.job.parent == row.job.id and not child.job.task]
    sent = await whole(storage, await _signal_rows(storage, row), "payload", "result")
    mailboxes = _mailboxes({signal.job.id: signal for signal in (*sent, *waits) if signal is not None})
    if hide is not None:
        row, mailboxes = _hidden(row, mailboxes, hide)
    return JobHistory(
        attempts=attempts_of(row),
        steps=steps_of(row, decode, value),
        streams=tuple(names_of(row.checkpoints)),
        values={name[len(PUBLISHED) :]: value(text) for name, text in row.checkpoints if name.startswith(PUBLISHED)},
        signals=_signals(mailboxes, value),
        children=children,
        children_capped=len(below) > CHILDREN,
    )


def attempts_of(row: Record) -> tuple[JobAttempt, ...]:
    """The last ten runs of a job, oldest first."""
    runs = [structs.asdict(attempt) for attempt in attempts.of(row)]
    return tuple([JobAttempt(**{name: run[name] for name in JobAttempt.__struct_fields__}) for run in runs])


def steps_of(row: Record, decode: Decode, value: Decode) -> tuple[Step, ...]:
    """The stored steps of a job. A checkpoint that is not a step is shown as its text."""
    steps = list[Step]()
    for name, text in row.checkpoints:
        if name.startswith(OURS):
            continue
        try:
            steps.append(_step(row, name, read_entry(text), decode, value))
        except UNREADABLE:
            steps.append(Step(name=name, kind="step", value=text))
    marks = [
        Step(name=mark.key, kind="once", until=mark.until, done=not mark.given_back)
        for mark in locks_of(row.checkpoints)
    ]
    return (*steps, *marks)


def _step(row: Record, name: str, entry: Checkpoint, decode: Decode, value: Decode) -> Step:
    kind, until = kind_of(name, entry), entry.until if isinstance(entry.until, float) else None
    if isinstance(entry.failure, Failure):
        return Step(name=name, kind=kind, value=entry.failure.words, until=until, done=until is None, failed=True)
    if kind == "lock":
        number = value(entry.result) if entry.result is not None else None
        return Step(name=name, kind=kind, value=number, done=bool(entry.exit))
    if kind == "approval" and not entry.has_value:
        return Step(name=name, kind=kind, until=until, done=False)
    if kind == "child" and not entry.has_value:
        return Step(name=name, kind=kind, value=entry.child, done=False)
    if kind == "timeout" or until is not None:
        # Over when the row was last changed. A time limit that begins anew has no end yet.
        is_over = row.state.final or entry.over or (until is not None and until <= row.updated_at)
        done, cut = kind != "signal" and is_over, entry.cut or None
        return Step(name=name, kind=kind, value=cut, until=until, done=done, failed=cut is not None)
    own = entry.result is not None and isinstance(entry.value, UnsetType)
    result = entry.result
    stored = None if result is None else _decoded(result, decode) if own else value(result)
    return Step(name=name, kind=kind, value=stored, done=not entry.gave_up)


def _decoded(text: str, decode: Decode) -> Any:
    try:
        return decode(text)
    except Exception:  # a codec of the user may raise anything
        return text


async def _signal_rows(storage: Storage, row: Record) -> list[Record]:
    """The rows of signals to this job."""
    query = Query(
        parent=row.job.id,
        task="",
        queue=row.job.queue,
        since=row.created_at,
        order="oldest",
        limit=PAGE,
        scan=SEARCHED,
    )
    return list((await storage.find(query)).records)


def _mailboxes(rows: dict[str, Record]) -> list[tuple[str, Record, str | None]]:
    """The rows of signals and messages with their names and encoded values; None: the job waits for it."""
    shown = list[tuple[str, Record, str | None]]()
    for row in sorted(rows.values(), key=lambda row: (row.created_at, row.job.id)):
        name = signals.signal_name(row)
        if name is None or (row.state.final and not signals.is_message(row)):
            continue
        shown.append((name, row, text_of(row) if signals.is_message(row) else None))
    return shown


def _hidden(
    row: Record, mailboxes: Sequence[tuple[str, Record, str | None]], hide: Callable[[Record], Record]
) -> tuple[Record, list[tuple[str, Record, str | None]]]:
    """The row and the values of its messages without secrets. `hide` knows a row of a job, whose task names what is
    secret; so it gets the values as checkpoints of that row."""
    values = [(f"{PUBLISHED}{name}", "null" if text is None else text) for name, _, text in mailboxes]
    hidden, count = hide(structs.replace(row, checkpoints=(*row.checkpoints, *values))), len(row.checkpoints)
    texts = [text for _, text in hidden.checkpoints[count:]]
    pairs = zip(mailboxes, texts, strict=True)
    return (
        structs.replace(hidden, checkpoints=hidden.checkpoints[:count]),
        [(name, stored, None if sent is None else text) for (name, stored, sent), text in pairs],
    )


def _signals(mailboxes: Sequence[tuple[str, Record, str | None]], value: Decode) -> tuple[Signal, ...]:
    return tuple(
        Signal(name=name, given=text is not None, value=None if text is None else value(text), at=row.ended_at)
        for name, row, text in mailboxes
    )
