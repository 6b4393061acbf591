"""Cron check-ins of Sentry for the jobs of schedules: "in progress" when the first run begins, then how it ended."""

from __future__ import annotations

import re
import uuid
from typing import Any, Final

from sentry_sdk.crons import capture_checkin

from treadle.app import App
from treadle.core.errors import TreadleError
from treadle.execution import RunOutcome
from treadle.execution.context import Context
from treadle.scheduling import Schedule

SCHEDULE: Final = "treadle-schedule"  # header of the jobs of a schedule
SLUG: Final = 50  # characters of the name of a monitor, at most
MINUTE: Final = 60.0
FIELDS: Final = 5  # fields of a cron line that Sentry reads; a sixth one is seconds
UNITS: Final = (("day", 86_400.0), ("hour", 3_600.0), ("minute", 60.0))

_NAMESPACE: Final = uuid.UUID("6f0b7a52-6a50-4e6f-9a0d-1d8f0c3f2b11")


class CheckIns:
    """The id of a check-in follows from the job's id, so any worker can end it, even after a retry elsewhere."""

    def __init__(self) -> None:
        self._app: App | None = None
        self._configs: dict[str, dict[str, Any] | None] = {}

    def use(self, app: App) -> None:
        """The app that has the schedules."""
        self._app = app

    async def begun(self, context: Context) -> None:
        """A run begins. Only the first run of a schedule's job is reported, with the times of the schedule."""
        name = context.headers.get(SCHEDULE)
        if name is None or context.record.version > 1:
            return
        if name not in self._configs:
            self._configs[name] = await self._config_of(name)
        capture_checkin(_slug(name), _id(context), "in_progress", monitor_config=self._configs[name])  # type: ignore[arg-type]

    def ended(self, context: Context, outcome: RunOutcome) -> None:
        """The job of a schedule has ended."""
        name = context.headers.get(SCHEDULE)
        if name is not None:
            status = "ok" if outcome.name == "succeeded" else "error"
            capture_checkin(_slug(name), _id(context), status, duration=outcome.seconds)

    async def _config_of(self, name: str) -> dict[str, Any] | None:
        """The configuration of the monitor; None if the schedule is gone, or has times that Sentry cannot express."""
        try:
            schedule = None if self._app is None else await self._app.schedules.get(name)
        except TreadleError:  # a check-in is never worth a failed run
            return None
        return None if schedule is None else config_of(schedule)


def config_of(schedule: Schedule) -> dict[str, Any] | None:
    """The configuration of a schedule's monitor. None for a function, for a line with seconds, and for an interval that
    is no number of minutes: Sentry has no such monitors, and takes their check-ins only for one made by hand."""
    if schedule.cron is not None and len(schedule.cron.split()) == FIELDS:
        return {"schedule": {"type": "crontab", "value": schedule.cron}, "timezone": schedule.tz or "UTC"}
    if schedule.every is not None and schedule.every % MINUTE == 0:
        unit, length = next((unit, length) for unit, length in UNITS if schedule.every % length == 0)
        return {"schedule": {"type": "interval", "value": int(schedule.every / length), "unit": unit}}
    return None


def _slug(name: str) -> str:
    """The name of the monitor: Sentry allows a-z, 0-9, - and _."""
    return re.sub(r"[^a-z0-9_-]+", "-", name.lower())[:SLUG].strip("-") or "schedule"


def _id(context: Context) -> str:
    return uuid.uuid5(_NAMESPACE, context.id).hex
