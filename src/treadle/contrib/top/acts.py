"""The acts of `treadle top`: a question to confirm, and the function that then acts.

Like other commands, it records each act in the audit log before it begins.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Final, Literal

from msgspec import Struct

from treadle.admin import Operation, Selection, TooManyOperations
from treadle.admin.audit import whoami
from treadle.admin.failure_groups import FailureGroup, read_key
from treadle.admin.known_names import heard
from treadle.cli.output import lasts, plural
from treadle.cli.target import audited
from treadle.contrib.top.bounds import WHEN_FULL, bounded, waiting
from treadle.core.errors import Stale
from treadle.core.limit_model import LimitUse, WhenFull
from treadle.core.model import Record, State
from treadle.core.query_model import Query
from treadle.core.queue_rules import ALL, OF
from treadle.core.redaction import in_line
from treadle.policy.pauses import due_at
from treadle.server.overview import QueueOverview

if TYPE_CHECKING:
    from treadle.app import App

JobVerb = Literal["cancel", "run_now", "retry"]
FITS: Final[dict[JobVerb, tuple[tuple[State, ...], str]]] = {
    "cancel": ((State.WAITING, State.READY, State.RUNNING), "only unfinished jobs can be cancelled"),
    "run_now": ((State.READY,), "only ready jobs can be run now"),
    "retry": ((State.FAILED, State.CANCELLED), "only failed and cancelled jobs can be retried"),
}


class Act(Struct, frozen=True):
    """An act that must be confirmed.

    question  asks whether to do it
    detail    the consequences
    yes       the verb on the button
    run       acts, and returns a sentence about the outcome
    """

    question: str
    detail: str
    yes: str
    run: Callable[[], Awaitable[str]]


class Acts:
    """Makes acts on the storage of an app. `progress` is called with a sentence while a long act runs."""

    def __init__(self, app: App, progress: Callable[[str], object]) -> None:
        self._app, self._progress = app, progress
        self._ended: dict[str, asyncio.Future[Operation]] = {}
        app._core.operations.listen(self._hear)

    async def close(self) -> None:
        """Stop the acts that run. Their changes stay."""
        await self._app._core.operations.close()

    # --- queues

    def pause(self, queue: QueueOverview) -> Act:
        """Pause a queue, or resume one that is paused."""
        name = in_line(queue.name)
        if queue.paused_by == ALL:
            return Act(
                f"Resume the limit {ALL}?",
                f"It pauses queue {name} and each other queue without a limit of its own.",
                "Resume",
                lambda: self._switch("limit", ALL, "resume"),
            )
        if queue.paused:
            return Act(
                f"Resume queue {name}?",
                f"Workers claim its jobs again; {plural(queue.queued, 'job')} queued.",
                "Resume",
                lambda: self._switch("queue", queue.name, "resume"),
            )
        return Act(
            f"Pause queue {name}?",
            f"Workers claim no more of its jobs; {plural(queue.queued, 'job')} queued. "
            f"{plural(queue.running, 'running job')} will go on.",
            "Pause",
            lambda: self._switch("queue", queue.name, "pause"),
        )

    async def _switch(self, what: Literal["queue", "limit"], name: str, verb: Literal["pause", "resume"]) -> str:
        """Pause or resume a queue or a limit."""
        part = self._app.queues if what == "queue" else self._app.limits
        with heard():
            async with audited(self._app, f"{what}.{verb}", name):
                await (part.pause(name) if verb == "pause" else part.resume(name))
        return f"{what} {name} is {'paused' if verb == 'pause' else 'not paused any more'}"

    def bound(self, queue: QueueOverview, most: int | None, when_full: WhenFull) -> Act:
        """Set how many jobs of a queue may wait to be started; None: any number."""
        name = in_line(queue.name)
        if most is None:
            question, detail, yes = f"Remove the bound of queue {name}?", "Any number of its jobs may wait.", "Remove"
        else:
            question, yes = f"Bound queue {name} to {plural(most, 'waiting job')}?", "Set"
            detail = f"{waiting(queue)} now. When it is full, {WHEN_FULL[when_full]}. Stored jobs stay."
        return Act(question, detail, yes, lambda: self._bound(queue.name, most, when_full))

    async def _bound(self, queue: str, most: int | None, when_full: WhenFull) -> str:
        limits = self._app.limits
        rule = bounded(await limits.list(use=False), queue, most, when_full)
        detail = None if rule.empty else f"max_waiting={most}, when_full={rule.when_full}"
        with heard():
            async with audited(self._app, "limit.delete" if rule.empty else "limit.set", rule.name, detail):
                await limits.set(rule)
        return f"queue {queue} may have {'any number of waiting jobs' if most is None else plural(most, 'waiting job')}"

    # --- limits

    def pause_limit(self, use: LimitUse) -> Act:
        """Pause a limit, or resume one that is paused: the whole one if its rule is, not one of its partitions."""
        is_paused = any(pause.why == "paused" for pause in use.pauses) or (use.rule.slots == 0 and not use.pauses)
        limit = use.rule.name if is_paused else use.key
        name = in_line(limit)
        if is_paused:
            what = "Its rule applies again" if use.pauses else "Its rule of 0 slots is removed"
            detail = f"{what}; it blocks {plural(use.blocked, 'job')} now."
            return Act(f"Resume limit {name}?", detail, "Resume", lambda: self._switch("limit", limit, "resume"))
        jobs = "jobs of queues without a limit of their own" if limit == ALL else "jobs that name it"
        if limit.startswith(OF):
            jobs = f"jobs of queue {in_line(limit.removeprefix(OF))}"
        detail = f"No {jobs} start until it is resumed; running jobs will go on."
        return Act(f"Pause limit {name}?", detail, "Pause", lambda: self._switch("limit", limit, "pause"))

    # --- groups of failures

    async def retry_group(self, group: FailureGroup) -> Act:
        """Retry the failed jobs of a group. Counts them first."""
        core = self._app._core
        chosen = Selection(
            query=Query(),
            before=core.now(),
            group=read_key(group.key),
            signature=group.signature,
            queues=core.storage.capabilities.queues,
        )
        preview = await chosen.preview(core.storage)
        more = "at least " if preview.capped else ""
        return Act(
            f"Retry {more}{plural(preview.matches, 'failed job')} of {in_line(group.task)}?",
            f"Queue {in_line(group.queue)}; error: {in_line(group.signature)}. Their attempts count from 0 again.",
            "Retry",
            lambda: self._operate(chosen),
        )

    async def _operate(self, chosen: Selection) -> str:
        try:
            begun = await self._app._core.operations.start("retry", chosen, tree=True, by=whoami(), source="cli")
        except TooManyOperations:
            return "too many acts run already: wait until one has ended"
        ended = self._ended.setdefault(begun.id, asyncio.get_running_loop().create_future())
        operation = await ended
        del self._ended[begun.id]
        untouched = sum(operation.passed_over.values())
        sentence = f"{plural(operation.done, 'job')} reopened" + (
            f", {untouched:,} left as they were" if untouched else ""
        )
        return sentence if operation.error is None else f"{sentence}; {operation.error}"

    def _hear(self, operation: Operation, _: tuple[str, ...]) -> None:
        if operation.ended_at is None:
            self._progress(f"retry: {plural(operation.done, 'job')} reopened, {operation.scanned:,} looked at")
            return
        ended = self._ended.setdefault(operation.id, asyncio.get_running_loop().create_future())
        if not ended.done():
            ended.set_result(operation)

    # --- one job

    def job(self, row: Record, verb: JobVerb) -> Act:
        """An act on one job. Raises Stale if the job is in no state for it."""
        states, otherwise = FITS[verb]
        if row.state not in states:
            raise Stale(row.id, f"{row.state}: {otherwise}")
        name = in_line(row.job.task) or "the promise"
        question, detail, yes = {
            "cancel": (
                f"Cancel {name}?",
                "Its children are cancelled, too. A running function is stopped.",
                "Cancel job",
            ),
            "run_now": (f"Run {name} now?", f"It is queued at once{self._due(row)}.", "Run now"),
            "retry": (f"Retry {name}?", "It is queued again, and its attempts count from 0.", "Retry"),
        }[verb]
        return Act(question, f"{row.id}. {detail}", yes, lambda: self._job(row.id, verb))

    def _due(self, row: Record) -> str:
        due = due_at(row)
        if due is None or row.queue_position is not None:
            return ""
        return f", {lasts(max(0.0, due - self._app._core.now()))} before it is due"

    async def _job(self, id: str, verb: JobVerb) -> str:
        jobs = self._app.jobs
        act = {"cancel": jobs.cancel, "run_now": jobs.run_now, "retry": jobs.retry}[verb]
        async with audited(self._app, f"jobs.{verb}", "", id) as receipt:
            receipt.ids = [id]
            receipt.done = await act(id)
        done = {"cancel": "cancelled", "run_now": "queued", "retry": "reopened"}[verb]
        return f"{plural(receipt.done, 'job')} {done}"
