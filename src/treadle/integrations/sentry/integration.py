"""`TreadleIntegration`, which a program passes to `sentry_sdk.init`."""

from __future__ import annotations

from typing import Final, Literal, get_args

import sentry_sdk
from sentry_sdk.integrations import Integration
from sentry_sdk.integrations.logging import ignore_logger

from treadle.core.errors import BadOption
from treadle.execution import every_app
from treadle.integrations.sentry.layer import SentryMiddleware

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
