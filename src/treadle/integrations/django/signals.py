"""`task_finished`: sent when the end of a job is stored, in a thread of its own, so that receivers may use the ORM.

A receiver that raises is logged by Django and changes nothing. The exception of a failed task is active meanwhile,
because receivers read it with `sys.exc_info()`.
"""

from __future__ import annotations

import logging
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final

from treadle.core.errors import JobNotDone
from treadle.core.events import Event
from treadle.execution import RunOutcome
from treadle.execution.context import Context
from treadle.execution.middleware import Middleware
from treadle.integrations.django import results
from treadle.integrations.django.bridge import sender_of, threads
from treadle.integrations.django.compat import LOGGER, TaskResultDoesNotExist, task_finished
from treadle.integrations.django.known_tasks import Raised, Store
from treadle.worker import DaemonThreads

if TYPE_CHECKING:
    from treadle.app import App

log = logging.getLogger("treadle")

FINAL: Final = ("succeeded", "failed", "expired", "cancelled")


class Endings:
    """Sends `task_finished` for the jobs of an app."""

    def __init__(self, app: App, store: Store) -> None:
        self._app, self._store = app, store
        self._thread: DaemonThreads | None = None

    def listen(self) -> None:
        self._app.on(*FINAL)(self._ended)
        self._app.on("worker.stopped")(self._stopped)
        self._app.middleware(Verdicts(self._store.raised))

    async def _ended(self, event: Event) -> None:
        error = self._store.raised.take(event.id)
        if event.task not in self._store.tasks or not wanted(event.name):
            return
        [row] = await self._app._core.client.get([event.id])
        if row is None:  # its retention is 0, and the arguments and the result are gone
            return
        if self._thread is None:
            self._thread = DaemonThreads(1, "treadle-django-signals")
        _, failed = await self._thread.run(lambda: self._send(row, error))
        if failed is not None:
            log.error("task_finished of %s %s could not be sent", event.task, event.id, exc_info=failed)

    async def _stopped(self, event: Event) -> None:
        thread, self._thread = self._thread, None
        if thread is not None:
            thread.close()
        await threads.close()

    def _send(self, row: Any, error: BaseException | None) -> None:
        try:
            result = results.result_of(row, self._store, self._store.tasks[row.job.task].task.backend)
        except TaskResultDoesNotExist:
            return
        if result.errors and error is None and row.state.final:
            error = JobNotDone(row.job.id, row.job.task, row.reason, row.error)
        send_finished(result, error)


class Verdicts(Middleware):
    """Keeps the exceptions for `task_finished`."""

    def __init__(self, raised: Raised) -> None:
        self._raised = raised

    def judged(self, context: Context, outcome: RunOutcome, error: BaseException | None) -> None:
        if outcome.final and error is not None:
            self._raised.note(context.id, error)


def send_finished(result: Any, error: BaseException | None) -> None:
    """Send `task_finished`, with the exception active."""
    sender = sender_of(result.task)
    if error is None:
        task_finished.send_robust(sender=sender, task_result=result)
        return
    known = of_the_task(error.__traceback__)
    try:
        raise error
    except BaseException:  # it re-raises `error`, whatever its class
        error.__traceback__ = known
        task_finished.send_robust(sender=sender, task_result=result)


def of_the_task(traceback: TracebackType | None) -> TracebackType | None:
    """The traceback without the frames of Treadle before those of the task."""
    known = traceback
    while known is not None and known.tb_frame.f_globals.get("__name__", "").startswith("treadle."):
        known = known.tb_next
    return known or traceback


def wanted(name: str) -> bool:
    """Whether the signal does anything: a receiver besides Django's own, or a log line that is written."""
    level = logging.INFO if name == "succeeded" else logging.ERROR
    return len(task_finished.receivers) > 1 or logging.getLogger(LOGGER).isEnabledFor(level)
