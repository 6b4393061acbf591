"""The arguments of the scripts, and their answers as records and outcomes."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Any, Final

from treadle.core.errors import IdTaken, KeyHeld, QueueFull, UnknownUpstream
from treadle.core.limit_model import Declare, Limit, LimitChange, Pause, Resume
from treadle.core.model import APPLIED, Claim, Claimed, NewJob, Outcome, Record, Settled, State
from treadle.storage.redis.rows import (
    NONE,
    NUMBER,
    encode,
    is_plain,
    job_bytes,
    moment_of,
    or_false,
    pairs,
    record,
    until_bytes,
)
from treadle.storage.row_rules import CircularWait, in_order, new_record, only_ends, rank

GROUP: Final = 1_000  # the most plain jobs of one queue and priority in a group
_ENDING: Final = struct.Struct(">cBiId")


def change_words(change: LimitChange) -> tuple[Any, ...]:
    match change:
        case Limit(name):
            return "remove" if change.empty else "set", name, encode(change), "", ""
        case Declare(rule):
            return "declare", rule.name, encode(rule), "", ""
        case Pause(name, why, until):
            return "pause", name, "", why, until_bytes(until)
        case Resume(name, why, until):
            return "resume", name, "", why, until_bytes(until)


def row_of(job: NewJob, body: bytes, row: bytes, now: float) -> Record:
    if not body and not row:  # a repeated part of an earlier call: the job has ended and was pruned
        return new_record(job, now)
    return record(body, row, None if body else job)


def groups(jobs: Sequence[NewJob]) -> list[Any]:
    """Groups of successive jobs with the same queue and priority: queue, rank, number of jobs, number of their tasks,
    each task and its number of jobs, then id and bytes of each job."""
    arguments: list[Any] = []
    members: list[Any] = []
    tasks: dict[str, int] = {}
    last = jobs[0]
    for job in jobs:
        if job.queue != last.queue or job.priority != last.priority or len(members) == 2 * GROUP:
            arguments += _group(last, members, tasks)
            members, tasks, last = [], {}, job
        members += (job.id, job_bytes(job, True))
        tasks[job.task] = tasks.get(job.task, 0) + 1
    return arguments + _group(last, members, tasks)


def _group(job: NewJob, members: list[Any], tasks: dict[str, int]) -> list[Any]:
    numbers = [word for pair in tasks.items() for word in pair]
    return [job.queue, rank(job), len(members) // 2, len(tasks), *numbers, *members]


def outcome_bytes(out: Outcome) -> bytes:
    if only_ends(out) and out.note is None:  # then the script builds the row without unpacking anything
        tail = b""
        if not (out.result is None and out.value is None and out.error is None and out.reason is None):
            tail = encode(
                (
                    False,
                    False,
                    or_false(out.result),
                    or_false(out.value),
                    or_false(out.error),
                    or_false(out.reason),
                    False,
                    False,
                )
            )
        keep = NONE if out.keep is None else out.keep
        return _ENDING.pack(b"s", NUMBER[out.state], out.version, out.attempt, keep) + tail
    fields: dict[str, Any] = {
        "state": NUMBER[out.state],
        "version": out.version,
        "delay": out.delay,
        "attempt": out.attempt,
        "result": out.result,
        "value": out.value,
        "error": out.error,
        "reason": out.reason,
        "checkpoints": out.checkpoints,
        "note": out.note,
        "after": out.after,
        "required": out.required,
        "failures_allowed": out.failures_allowed,
        "function_done": out.function_done,
        "keep": out.keep,
        "reach": out.reach,
    }
    if out.spent:
        fields["spent"] = out.spent
    return b"f" + encode(fields)


def outcome_words(outcomes: Sequence[Outcome]) -> list[Any]:
    arguments: list[Any] = []
    for out in outcomes:
        arguments += (out.id, outcome_bytes(out), len(out.followups))
        for job in out.followups:
            arguments += (job.id, job_bytes(job, is_plain(job)))
    return arguments


def settled_of(answer: list[Any], count: int) -> list[Settled]:
    settled = [APPLIED] * count
    for start in range(0, len(answer), 4):
        number, status, *details = answer[start : start + 4]
        if status == b"stale":
            settled[number - 1] = Settled("stale", details[0].decode())
        else:
            settled[number - 1] = Settled("refused", str(refusal_of(status, *details)))
    return settled


def refusal_of(
    kind: bytes, subject: bytes, other: bytes
) -> KeyHeld | UnknownUpstream | IdTaken | CircularWait | QueueFull:
    if kind == b"circle":
        return CircularWait(subject.decode(), *other.decode().split("\0"))
    if kind == b"taken":
        task, wanted, differ = other.decode().split("\0")
        return IdTaken(subject.decode(), task, wanted, bool(differ))
    if kind == b"full":
        return QueueFull(subject.decode(), *map(int, other.split(b"\0")))
    if kind == b"beyond":
        return IdTaken(subject.decode(), None, other.decode(), False)
    error = KeyHeld if kind == b"held" else UnknownUpstream
    return error(subject.decode(), other.decode())


def claimed_of(answer: list[Any], ask: Claim) -> Claimed | None:
    """The jobs in a claim's answer. None: the step claimed none, and there are more jobs to check."""
    now, moment, again = answer[:3]
    if again == 2 and len(answer) < 5:
        return None
    rows = pairs(answer, 3)
    if again == 1:
        rows = in_order((row for row in rows if row.state is State.RUNNING), ask.queues)
    return Claimed(tuple(rows), max(0.0, moment_of(moment) - moment_of(now)) if moment else None)


def settle_calls(outcomes: Sequence[Outcome]) -> list[tuple[str, Sequence[Any]]]:
    """The call that settles these outcomes; none without outcomes."""
    return [("settle", outcome_words(outcomes))] if outcomes else []
