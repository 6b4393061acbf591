"""The metrics "treadle.queue.jobs" and "treadle.queue.oldest": the stored jobs, from one place only.

Every process sees the same jobs, so if several reported them, a sum would count each job several times.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary, WeakSet

from opentelemetry.metrics import CallbackOptions, Meter, MeterProvider, Observation

from treadle.core import clock, defaults
from treadle.core.query_model import Count
from treadle.integrations.otel.attributes import DESTINATION, STATE, SYSTEM

if TYPE_CHECKING:
    from treadle.app import App

log = logging.getLogger("treadle")

FRESH = 1.0  # s for which one read of the counts serves both metrics


class QueueGauges:
    """Reads the counts of its apps when a reader of the SDK collects, in the thread of that reader, while an app is
    open. One for all apps of a meter provider: of two instruments of one name, the SDK calls only the first one."""

    def __init__(self, meter: Meter) -> None:
        self._apps: WeakSet[App] = WeakSet()
        self._reads: WeakKeyDictionary[App, tuple[float, Sequence[Count]]] = WeakKeyDictionary()
        self._failing: WeakSet[App] = WeakSet()
        meter.create_observable_up_down_counter(
            "treadle.queue.jobs", [self._jobs], "{job}", "Stored jobs by queue and state."
        )
        meter.create_observable_gauge(
            "treadle.queue.oldest", [self._oldest], "s", "Age of the job that has been queued longest."
        )

    def watch(self, app: App) -> None:
        """Read the counts of this app, too."""
        self._apps.add(app)

    def _jobs(self, options: CallbackOptions) -> Iterable[Observation]:
        sums: dict[tuple[str, str], int] = {}
        for count in self._counts():
            key = count.queue, str(count.state)
            sums[key] = sums.get(key, 0) + count.jobs
        return [
            Observation(number, {SYSTEM: "treadle", DESTINATION: queue, STATE: state})
            for (queue, state), number in sums.items()
        ]

    def _oldest(self, options: CallbackOptions) -> Iterable[Observation]:
        ages: dict[str, float] = {}
        for count in self._counts():
            ages[count.queue] = max(ages.get(count.queue, 0.0), count.oldest or 0.0)
        return [Observation(age, {SYSTEM: "treadle", DESTINATION: queue}) for queue, age in ages.items()]

    def _counts(self) -> list[Count]:
        """The counts of users' jobs; each storage is read once."""
        opened = {_storage_of(app): app for app in list(self._apps) if app._core.loop is not None}
        return [count for app in opened.values() for count in self._read(app)]

    def _read(self, app: App) -> Sequence[Count]:
        """The counts of an app that is open: reading must not open it, because the last collection is at the end of the
        process. None while its storage is away."""
        read_at, counts = self._reads.get(app, (float("-inf"), ()))
        if clock.monotonic() - read_at <= FRESH:
            return counts
        try:
            stored = app.sync.queues.stats().counts
        except Exception as error:
            if app not in self._failing:
                log.warning("could not read the queues for their metrics (%s); jobs are not affected", error)
            self._failing.add(app)
            return ()
        self._failing.discard(app)
        counts = [count for count in stored if count.queue != defaults.SYSTEM_QUEUE and count.task]
        self._reads[app] = clock.monotonic(), counts
        return counts


def _storage_of(app: App) -> object:
    """The same value for two apps of one storage."""
    shared = app.url is not None and not app.url.startswith("memory:")
    return app.url if shared else id(app._core.storage)


_shared: WeakKeyDictionary[MeterProvider, QueueGauges] = WeakKeyDictionary()


def shared_gauges(provider: MeterProvider, meter: Meter) -> QueueGauges:
    """The gauges of all apps of a process that use this provider."""
    gauges = _shared.get(provider)
    if gauges is None:
        gauges = _shared[provider] = QueueGauges(meter)
    return gauges
