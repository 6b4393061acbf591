"""The metrics of sends and runs, by the conventions for messaging, and "treadle.job.wait"."""

from __future__ import annotations

from typing import Final
from weakref import WeakKeyDictionary

from opentelemetry.metrics import Meter, MeterProvider

from treadle.core.model import NewJob, Record
from treadle.integrations.otel.attributes import (
    DESTINATION,
    ERROR_TYPE,
    OPERATION,
    OTHER_ERROR,
    OUTCOME,
    SYSTEM,
    TASK,
    Attributes,
)
from treadle.metrics import NAMED, OTHER, Pairs, waited

REST: Final = "other"  # the name for all queues or tasks beyond those that are named
TIMES: Final = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300, 1_800, 3_600)  # s, of histograms


class Instruments:
    """The instruments of one meter. A task name is an attribute; ids, workers and hosts are not.

    The SDK keeps each set of attributes until the end of the process, and names may come from any sender. So at most
    300 pairs of queue and task, and 300 types of errors, have a set of their own; the others are "other" and "_OTHER".
    """

    def __init__(self, meter: Meter) -> None:
        self._pairs, self._errors = Pairs(NAMED), set[str]()
        self._sent = meter.create_counter(
            "messaging.client.sent.messages", "{message}", "Number of jobs that a call tried to send."
        )
        self._send_time = meter.create_histogram(
            "messaging.client.operation.duration",
            "s",
            "Duration of a call that sends jobs.",
            explicit_bucket_boundaries_advisory=TIMES[:12],
        )
        self._consumed = meter.create_counter(
            "messaging.client.consumed.messages", "{message}", "Number of runs of jobs, by outcome."
        )
        self._run_time = meter.create_histogram(
            "messaging.process.duration",
            "s",
            "Duration of a run of a job.",
            explicit_bucket_boundaries_advisory=TIMES,
        )
        self._wait = meter.create_histogram(
            "treadle.job.wait",
            "s",
            "How long a job was queued before its first run.",
            explicit_bucket_boundaries_advisory=TIMES,
        )

    def sent(self, jobs: list[NewJob], seconds: float, error: str | None) -> None:
        """A call has sent these jobs, or failed."""
        counts: dict[tuple[str, str], int] = {}
        for job in jobs:
            counts[job.queue, job.task] = counts.get((job.queue, job.task), 0) + 1
        queues = set[str]()
        for (queue, task), number in counts.items():
            about = self._attributes("enqueue", queue, task, error)
            self._sent.add(number, about)
            queues.add(str(about.pop(DESTINATION)))
            del about[TASK]
        if len(queues) == 1:
            about[DESTINATION] = queues.pop()
        self._send_time.record(seconds, about)

    def ran(self, record: Record, outcome: str, seconds: float, error: str | None) -> None:
        """A run has ended."""
        job = record.job
        about = self._attributes("run", job.queue, job.task, error)
        self._run_time.record(seconds, about)
        self._consumed.add(1, about | {OUTCOME: outcome})
        if (wait := waited(record)) is not None:
            self._wait.record(max(0.0, wait), self._attributes("run", job.queue, job.task, None))

    def _attributes(self, operation: str, queue: str, task: str, error: str | None) -> Attributes:
        queue, task = self._pairs.of(queue, task)
        about: Attributes = {
            SYSTEM: "treadle",
            OPERATION: operation,
            DESTINATION: REST if queue == OTHER else queue,
            TASK: REST if task == OTHER else task,
        }
        if error is not None:
            about[ERROR_TYPE] = self._error(error)
        return about

    def _error(self, error: str) -> str:
        if error not in self._errors:
            if len(self._errors) >= NAMED:
                return OTHER_ERROR
            self._errors.add(error)
        return error


_shared: WeakKeyDictionary[MeterProvider, Instruments] = WeakKeyDictionary()


def shared_instruments(provider: MeterProvider, meter: Meter) -> Instruments:
    """One set for all apps of a process that use this provider: the SDK warns of a second instrument of one name."""
    instruments = _shared.get(provider)
    if instruments is None:
        instruments = _shared[provider] = Instruments(meter)
    return instruments
