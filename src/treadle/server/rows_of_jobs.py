"""Checks the rows of single jobs that arrive by the worker protocol: their messages and answers, once-locks, turns of
locks, and pages of streams.

Each check returns the job to which the row belongs, or a description that names it. Raises BadOption for a forged row.
"""

from __future__ import annotations

import re
from typing import Any, Final

import msgspec

from treadle.core.errors import UNREADABLE, BadOption
from treadle.core.model import NewJob
from treadle.core.ranges import an_id
from treadle.workflow.locks import LockHeader, lock_of
from treadle.workflow.mailbox import AnswerRow
from treadle.workflow.signals import HEADER, ONCE_KEY, OnceLock, SignalRow, signal_id
from treadle.workflow.streams import HEADER as PAGE_HEADER
from treadle.workflow.streams import PageHeader, header_of, page_id

_ANSWER_ID: Final = re.compile(r"treadle:answer:[0-9a-f]{40}")
_ONCE_ID: Final = re.compile(r"treadle:once:[0-9a-f]{16}")


def check_signal(job: NewJob) -> str:
    """Check a row of a mailbox -> the job that receives it."""
    signal: SignalRow = read(msgspec.json.Decoder(SignalRow).decode, "headers", dict(job.headers).get(HEADER, ""))
    turn = job.id.rpartition(":")[2]
    expect(turn.isascii() and turn.isdigit() and len(turn) < 10, "id", job, "a signal")
    expect(
        job.id == signal_id(signal.job, signal.signal, int(turn)) and job.parent == signal.job and job.key is None,
        "id",
        job,
        f"the signal {signal.signal!r} to job {signal.job}",
    )
    an_id("job", signal.job)
    return signal.job


def check_answer(job: NewJob) -> AnswerRow:
    """Check the row that takes an answer, or remembers a key -> the job and the name of the message."""
    answer: AnswerRow = read(msgspec.json.Decoder(AnswerRow).decode, "payload", job.payload)
    expect(
        _ANSWER_ID.fullmatch(job.id) is not None and job.root is None and job.parent is None and job.key is None,
        "id",
        job,
        f"an answer of job {answer.job}",
    )
    an_id("job", answer.job)
    return answer


def check_once_lock(job: NewJob) -> str:
    """Check a once-lock -> the job that holds it."""
    lock: OnceLock = read(msgspec.json.Decoder(OnceLock).decode, "payload", job.payload)
    expect(
        job.key == f"{ONCE_KEY}{lock.once}" and _ONCE_ID.fullmatch(job.id) is not None and job.deadline is not None,
        "key",
        job,
        f"the once-lock {lock.once!r} of job {lock.job}",
    )
    an_id("job", lock.job)
    return lock.job


def check_lock(job: NewJob) -> LockHeader:
    """Check a turn, or the row of a lock -> its header."""
    lock = lock_of(job)
    if lock is None:
        raise BadOption("id", f"job {job.id[:80]!r} is no row of a lock, but has such an id")
    return lock


def check_page(job: NewJob) -> PageHeader:
    """Check a page of a stream -> its header."""
    page, number = header_of(job), job.id.rpartition(":")[2]
    expect(number.isascii() and number.isdigit() and len(number) < 10, "id", job, "a page of a stream")
    if page is None:
        raise BadOption("headers", f"job {job.id[:80]!r} has no header {PAGE_HEADER!r} that can be read")
    first = page_id(page.job, page.stream, 1)
    root = None if int(number) == 1 else first
    is_ours = job.id == page_id(page.job, page.stream, int(number)) and (job.root, job.parent, job.key) == (
        root,
        None,
        None,
    )
    expect(is_ours, "id", job, f"a page of the stream {page.stream!r} of job {page.job}")
    an_id("job", page.job)
    return page


def read(decode: Any, option: str, text: str) -> Any:
    """Decode a JSON text. Raises BadOption."""
    try:
        return decode(text)
    except UNREADABLE as error:
        raise BadOption(option, f"cannot be read: {error}") from None


def expect(holds: bool, option: str, job: NewJob, what: str) -> None:
    if not holds:
        raise BadOption(
            option, f"job {job.id[:60]!r} of task {job.task[:60]!r} is not {what}, but has such an id or task"
        )
