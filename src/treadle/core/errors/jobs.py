"""Errors about a stored job: it is unknown, its id or key is taken, or it did not succeed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from treadle.core.clock import moment_text
from treadle.core.errors.base import CODE, TreadleError
from treadle.core.errors.text import error_line


class UnknownJob(TreadleError, LookupError):
    """No such job is stored: it was never enqueued here, or its row was pruned after its retention."""

    def __init__(self, id: str) -> None:
        self.id = id
        super().__init__(f"no job {id!r} is stored: it was never enqueued here, or was pruned after its retention")


class UnknownUpstream(UnknownJob):
    """`after` names a job that is not stored, or that the caller's token has no access to. With `wait_timeout` a job
    may wait for one that is not stored yet, except with a token that is bound to queues."""

    def __init__(self, id: str, waiting: str | None = None) -> None:
        self.id, self.waiting = id, waiting
        first = f"job {waiting}" if waiting else "a job"
        advice = "enqueue that first, or give wait_timeout= if your token is not bound to queues"
        TreadleError.__init__(self, f"{first} waits for unknown job {id!r}; {advice}")


class KeyHeld(TreadleError):
    """An unfinished job holds the key; nothing was stored. `id` is empty if the caller has no access to that job."""

    def __init__(self, key: str, id: str) -> None:
        self.key, self.id = key, id
        holder = f"job {id}" if id else "a job of a queue that the token has no right to; choose another key"
        super().__init__(f"key {key!r} is held by {holder}")


class QueueFull(TreadleError):
    """A queue has no room for the new jobs of the call, which stored nothing.

    queue        its name
    max_waiting  its bound
    waiting      the jobs that waited in it before the call
    asked        the new jobs of the call that need room in it
    retry_after  seconds before which the queue has no room, if a server knows that; None: unknown
    """

    def __init__(
        self, queue: str, max_waiting: int, waiting: int, asked: int, retry_after: float | None = None
    ) -> None:
        self.queue, self.max_waiting, self.waiting, self.asked = queue, max_waiting, waiting, asked
        self.retry_after = retry_after
        jobs = "a job" if asked == 1 else f"{asked:,} jobs"
        fewer = f"enqueue at most {max_waiting:,} jobs in one call, " if asked > max_waiting else ""
        super().__init__(
            f"queue {queue!r} has no room for {jobs}: {waiting:,} wait, max_waiting is {max_waiting:,}; {fewer}try "
            f"again later, add workers, or raise the bound in the rule {f'queue:{queue}'!r}, or in the rule 'queue' if "
            "`treadle limits list` shows no other (a rule is replaced whole: repeat its slots and its rate)"
        )


class IdTaken(TreadleError):
    """The chosen id belongs to a stored job of another task or with other arguments; this call stored nothing.

    task   the task of the stored job; None if the caller has no access to that job, or the id is one of Treadle's own
    asked  the task of the job that was to be stored
    other  whether the stored arguments, as the codec's text, differ from those of the call
    """

    def __init__(self, id: str, task: str | None, asked: str, other: bool) -> None:
        self.id, self.task, self.asked, self.other = id, task, asked, other
        if task is None:
            super().__init__(
                f"id {id!r} is taken by a job that the token may not see, or by a row of Treadle's own; choose another "
                "id"
            )
            return
        owner = f"a job of {task}" if task else "a promise"
        expected = f"{asked} with the same arguments" if task == asked else asked or "a promise"
        super().__init__(
            f"id {id!r} is taken by {owner}{' with other arguments' if other else ''}, expected {expected}; "
            "choose another id, or repeat the call with the task and arguments of the stored job"
        )


class ForeignRow(TreadleError):
    """Another caller stored a row whose id Treadle derives, such as that of a signal or a mark. The row is not used."""

    def __init__(self, id: str, found: str, expected: str) -> None:
        self.id, self.found, self.expected = id, found, expected
        super().__init__(
            f"row {id} was stored by another caller: expected queue {expected!r} and the workflow of this job, found "
            f"queue {found!r}. Find out which program stored it, and cancel the row. If jobs of two queues share a key "
            "of once(), give each queue its own key"
        )


class Stale(TreadleError):
    """Another caller settled or claimed the job meanwhile. Nothing was changed."""

    def __init__(self, id: str, found: str) -> None:
        self.id, self.found = id, found
        super().__init__(f"job {id} has changed: it is {found}")


class Signalled(TreadleError):
    """The job was given that signal before. The first value stays; this one was not stored."""

    fails_as: str | None = CODE

    def __init__(self, id: str, name: str) -> None:
        self.id, self.name = id, name
        super().__init__(f"job {id} has already received the signal {name!r}; the first value stays")


class MailboxFull(TreadleError):
    """The mailbox of a job holds as many messages as it takes. This one was not stored.

    most  the messages that it takes
    """

    def __init__(self, id: str, name: str, most: int) -> None:
        self.id, self.name, self.most = id, name, most
        super().__init__(
            f"the mailbox {name!r} of job {id} is full: {most:,} messages wait. Send again later; if the job does not "
            "receive them, find out why it does not run"
        )


class AskRefused(TreadleError):
    """The job refused the question, with `ask.refuse(why)`."""

    def __init__(self, id: str, name: str, why: str) -> None:
        self.id, self.name, self.why = id, name, why
        super().__init__(f"job {id} refused the question {name!r}: {why}")


class AlreadyDecided(TreadleError):
    """The request for approval has its decision. Nothing was changed.

    approved, by, reason, at  the decision that counts; `at` in seconds since 1970
    """

    def __init__(self, id: str, name: str, approved: bool, by: str, reason: str, at: float) -> None:
        self.id, self.name, self.approved, self.by, self.reason, self.at = id, name, approved, by, reason, at
        how = "approved" if approved else "rejected"
        because = f": {reason}" if reason else ""
        super().__init__(f"the request {name!r} was already {how} by {by} at {moment_text(at)}{because}")


class MayNotDecide(TreadleError):
    """This person may not decide the request for approval. `by`: who may, "group:NAME" or "user:NAME"."""

    def __init__(self, id: str, name: str, by: str, user: str) -> None:
        self.id, self.name, self.by, self.user = id, name, by, user
        kind, _, may = by.partition(":")
        super().__init__(f"{user} may not decide the request {name!r}: only the {kind} {may!r} may")


class JobNotDone(TreadleError):
    """A job that did not succeed, or has not ended. `error` is the stored text, `reason` one word such as "aborted"."""

    def __init__(self, id: str, task: str, reason: str | None, error: str | None) -> None:
        self.id, self.task, self.reason, self.error = id, task, reason, error
        super().__init__(f"{task or 'promise'} {id} ({reason}): {error_line(error) or 'no details'}")


class JobFailed(JobNotDone):
    """The job failed: its attempts are used up, it was aborted, or its lease expired too often."""


class JobExpired(JobFailed):
    """The job's deadline passed before it ended."""


class WorkflowFailed(JobFailed, ExceptionGroup[JobNotDone]):
    """Descendants of this job did not succeed, and no condition of the workflow tolerates that. Each descendant that
    failed by itself has a JobNotDone in `exceptions`, with its id, task, reason and error."""

    def __new__(
        cls, id: str, task: str, reason: str | None, error: str | None, failures: Sequence[JobNotDone]
    ) -> WorkflowFailed:
        named = "; ".join(map(str, failures[:3])) + ("; ..." if len(failures) > 3 else "")
        return super().__new__(cls, f"{task} {id}: {len(failures)} failed: {named}", failures)

    def __init__(
        self, id: str, task: str, reason: str | None, error: str | None, failures: Sequence[JobNotDone]
    ) -> None:
        self.id, self.task, self.reason, self.error = id, task, reason, error

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.id, self.task, self.reason, self.error, self.exceptions), self.__dict__

    def derive(self, excs: Sequence[Any]) -> WorkflowFailed:  # type: ignore[override]  # of our own kind of member
        """An exception group of the same class with some of the failures; `split`, `subgroup` and `except*` call
        this."""
        return WorkflowFailed(self.id, self.task, self.reason, self.error, excs)

    def __str__(self) -> str:
        return self.message


class JobCancelled(JobNotDone):
    """The job was cancelled: by request, because another job superseded it, or because of a job it waited for."""
