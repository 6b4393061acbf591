"""The metrics "treadle.queue.jobs" and "treadle.queue.oldest": the stored jobs, from one place only.

Every process sees the same jobs, so if several reported them, a sum would count each job several times.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from opentelemetry.metrics import CallbackOptions, Meter, Observation

from treadle.core import clock, defaults
from treadle.core.query_model import Count
from treadle.integrations.otel.attributes import DESTINATION, STATE, SYSTEM

if TYPE_CHECKING:
    from treadle.app import App

log = logging.getLogger("treadle")

FRESH = 1.0  # s for which one read of the counts serves both metrics


class QueueGauges:
    """Reads the counts of an app when a reader of the SDK collects, in the thread of that reader, while the app is
    open."""

    def __init__(self, app: App, meter: Meter) -> None:
        self._app = app
        self._counts: Sequence[Count] = ()
        self._read_at = float("-inf")
        self._failing = False
        meter.create_observable_up_down_counter(
            "treadle.queue.jobs", [self._jobs], "{job}", "Stored jobs by queue and state."
        )
        meter.create_observable_gauge(
            "treadle.queue.oldest", [self._oldest], "s", "Age of the job that has been queued longest."
        )

    def _jobs(self, options: CallbackOptions) -> Iterable[Observation]:
        sums: dict[tuple[str, str], int] = {}
        for count in self._read():
            key = count.queue, str(count.state)
            sums[key] = sums.get(key, 0) + count.jobs
        return [
            Observation(number, {SYSTEM: "treadle", DESTINATION: queue, STATE: state})
            for (queue, state), number in sums.items()
        ]

    def _oldest(self, options: CallbackOptions) -> Iterable[Observation]:
        ages: dict[str, float] = {}
        for count in self._read():
            ages[count.queue] = max(ages.get(count.queue, 0.0), count.oldest or 0.0)
        return [Observation(age, {SYSTEM: "treadle", DESTINATION: queue}) for queue, age in ages.items()]

    def _read(self) -> Sequence[Count]:
        """The counts of users' jobs; none while the app is closed or its storage is away."""
        if self._app._core.loop is None:  # collecting must not open it: the last time is at the end of the process
            return ()
        if clock.monotonic() - self._read_at > FRESH:
            try:
                found = self._app.sync.queues.stats().counts
            except Exception as error:
                if not self._failing:
                    log.warning("could not read the queues for their metrics (%s); jobs are not affected", error)
                self._failing = True
                return ()
            self._counts = [each for each in found if each.queue != defaults.SYSTEM_QUEUE and each.task]
            self._failing, self._read_at = False, clock.monotonic()
        return self._counts
