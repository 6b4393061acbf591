"""The middleware that reports failures to Sentry and carries its traces from the sender of a job to its runs."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any, Final, Literal, Protocol, TypeVar, get_args

import sentry_sdk
from sentry_sdk import Scope
from sentry_sdk.integrations import Integration
from sentry_sdk.integrations.logging import ignore_logger

from treadle.app import App
from treadle.core.errors import BadOption
from treadle.core.model import Record
from treadle.execution import RunOutcome, every_app
from treadle.execution.context import Context
from treadle.execution.middleware import Middleware, Run, Send, Specs
from treadle.integrations.header_room import HeaderRoom
from treadle.integrations.sentry import failures, scopes, traces
from treadle.integrations.sentry.check_ins import CheckIns
from treadle.tasks.options import Sizes
from treadle.tasks.redactor import Redactor

DEAD: Final = ("failed", "expired", "paused")


class Options(Protocol):
    """The options of `TreadleIntegration`."""

    report: str
    send_arguments: bool
    monitor_schedules: bool


class SentryMiddleware(Middleware):
    """Does nothing while `active` returns None: then no client has the integration."""

    def __init__(self, active: Callable[[], Options | None]) -> None:
        self._active, self._check_ins, self._harmless = active, CheckIns(), Harmless()
        self._redactor: Redactor | None = None
        self._room = HeaderRoom("Sentry", Sizes().headers)

    @property
    def enabled(self) -> bool:
        """Whether the current client has the integration."""
        return self._active() is not None

    def added(self, app: App) -> None:
        """Called by Treadle."""
        self._check_ins.use(app)
        self._redactor, self._room.most = app._core.redactor, app._core.sizes.headers

    async def enqueue(self, specs: Specs, proceed: Send) -> Any:
        """Adds the headers of the current trace."""
        with self._harmless.block("enqueue", lambda: traces.publishing(specs)):
            traced = self._harmless.call("enqueue", lambda: traces.with_traces(specs, self._room))
            return await proceed(specs if traced is None else traced)

    async def run(self, context: Context, proceed: Run) -> Any:
        """Gives the run a scope, a transaction, and for a schedule's job a check-in."""
        integration = self._active()
        if integration is None:  # the client was closed since the worker started
            return await proceed()
        if integration.monitor_schedules:
            try:
                await self._check_ins.begun(context)
            except Exception:
                self._harmless.failed("check-in")
        block = self._harmless.block
        with block("run", lambda: scopes.of_run(context, self._shown(integration))):
            if context.kind == "batch":  # its one call has the transaction
                return await proceed()
            with block("run", lambda: traces.running(context)):
                carried = self._harmless.call("run", traces.outgoing) or {}
                if self._room.passes_on(context.record, carried):
                    context.child_headers.update(carried)
                return await proceed()

    @contextmanager
    def call(self, contexts: Sequence[Context]) -> Iterator[None]:
        """A scope and a transaction for calls that run elsewhere than `run`."""
        integration = self._active()
        if integration is None or contexts[0].kind not in ("batch", "process"):
            yield
            return
        block = self._harmless.block
        with (
            block("call", lambda: scopes.of_call(contexts, self._shown(integration))),
            block("call", lambda: traces.running(*contexts)),
        ):
            yield

    def _shown(self, integration: Options) -> scopes.Arguments:
        """Returns the arguments of a row for people to see; None if they are not to be sent."""
        if not integration.send_arguments:
            return None
        return lambda row: (row if self._redactor is None else self._redactor.row(row)).job.payload

    def _hide_in_events(self, scope: Scope, record: Record) -> None:
        """Replace the secrets of this row in the events of the scope: in messages, local variables and breadcrumbs."""
        redactor = self._redactor
        if redactor is not None:
            hide, hides = redactor.hiding(record), redactor.of(record.job.task).hides
            scope.add_event_processor(lambda event, hint: failures.hidden(event, hide, hides))

    def close_process(self) -> None:
        """Sends what a process that ran functions has buffered."""
        sentry_sdk.flush(timeout=2)

    def judged(self, context: Context, outcome: RunOutcome, error: BaseException | None) -> None:
        """Reports a job that is dead, and ends its check-in."""
        integration = self._active()
        if integration is None:
            return
        if integration.monitor_schedules and outcome.final:
            self._check_ins.ended(context, outcome)
        every = integration.report == "every" and outcome.name == "retrying"
        if error is None or not (every or outcome.name in DEAD):
            return
        with scopes.after_run(context, self._shown(integration)) as scope:
            scope.set_context("treadle.outcome", _facts(outcome))
            self._hide_in_events(scope, context.record)
            failures.send(error, context.task, outcome.reason, "warning" if every else "error")

    def reported(self, record: Record, outcome: RunOutcome, error: str | None) -> None:
        """Reports a dead job of a runner in another language, in the server that it reported to."""
        integration = self._active()
        if integration is None or outcome.name not in DEAD:
            return
        with scopes.of_row(record, self._shown(integration)) as scope:
            scope.set_context("treadle.outcome", _facts(outcome))
            self._hide_in_events(scope, record)
            failures.send_text(error or outcome.reason or outcome.name, record.job.task)


def _facts(outcome: RunOutcome) -> dict[str, Any]:
    facts = {"outcome": outcome.name, "reason": outcome.reason, "next_in": outcome.delay, "seconds": outcome.seconds}
    return {name: value for name, value in facts.items() if value is not None}


log = logging.getLogger("treadle")

T = TypeVar("T")


# --- calls into the SDK
#
# Calls into the SDK of Sentry that fail no job: what it raises is logged once.
#
# The SDK parses headers that a visitor of the user's site may have sent, and raises for some of them, such as a
# sample rate of `inf`.


class Harmless:
    """Runs calls into the SDK for one app."""

    def __init__(self) -> None:
        self._failed = False

    def call(self, what: str, call: Callable[[], T]) -> T | None:
        """The value of a call; None if it raises."""
        try:
            return call()
        except Exception:
            self.failed(what)
            return None

    @contextmanager
    def block(self, what: str, make: Callable[[], AbstractContextManager[object]]) -> Iterator[None]:
        """The block inside the context manager that `make` returns; without it if that cannot be entered. Only the
        block's own exceptions are raised."""
        manager = self.call(what, make)
        if manager is None or self.call(what, lambda: (manager.__enter__(),)) is None:
            yield
            return
        try:
            yield
        except BaseException as error:
            self._leave(what, manager, error)
            raise
        self._leave(what, manager, None)

    def _leave(self, what: str, manager: AbstractContextManager[object], error: BaseException | None) -> None:
        try:
            if error is None:
                manager.__exit__(None, None, None)
            else:
                manager.__exit__(type(error), error, error.__traceback__)
        except BaseException as broken:
            if broken is not error:
                self.failed(what)

    def failed(self, what: str) -> None:
        """Log the exception that is handled now, unless one was logged before."""
        if not self._failed:
            text = "Sentry failed (%s); jobs are not affected, and further failures are not logged"
            log.error(text, what, exc_info=True)  # noqa: LOG014 (its callers handle an exception)
        self._failed = True


# --- switching it on
#
# `TreadleIntegration`, which a program passes to `sentry_sdk.init`.


Report = Literal["final", "every"]

JOB_LOG: Final = "treadle.jobs"  # its records carry the same exceptions


class TreadleIntegration(Integration):
    """Error events, traces and cron check-ins of all apps of this process. Pass it to `sentry_sdk.init`, in every
    program that runs jobs or sends them; before or after the app is made, but before its worker starts.

    report             "final": one event for each job that failed or expired, when it will not run again. "every": one
                       event for each failed attempt, too, at level "warning"
    send_arguments     add the stored arguments of the job to its events. Sentry also shows the local variables of the
                       stack, unless `sentry_sdk.init(include_local_variables=False)`
    monitor_schedules  send check-ins of the jobs of schedules: one monitor for each schedule, under its name

    Records of the logger `treadle.jobs` become no events and no breadcrumbs, because the events are made here.
    Raises BadOption.
    """

    identifier = "treadle"
    origin = f"auto.queue.{identifier}"

    def __init__(
        self, *, report: Report = "final", send_arguments: bool = False, monitor_schedules: bool = False
    ) -> None:
        if report not in get_args(Report):
            raise BadOption("report", f'expected "final" or "every", found {report!r}')
        self.report: str = report
        self.send_arguments, self.monitor_schedules = send_arguments, monitor_schedules

    @staticmethod
    def setup_once() -> None:
        """Called by `sentry_sdk.init`, once in a process."""
        ignore_logger(JOB_LOG)
        every_app.add(lambda app: SentryMiddleware(_active))


def _active() -> TreadleIntegration | None:
    return sentry_sdk.get_client().get_integration(TreadleIntegration)
