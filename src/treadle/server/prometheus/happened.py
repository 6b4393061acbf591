"""The counts of the workers, as samples. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from msgspec import Struct

from treadle.metrics import Cell, Counts, Numbers
from treadle.server.prometheus import catalogue
from treadle.server.prometheus.catalogue import Metric
from treadle.server.prometheus.samples import Names, Samples

OUTCOMES: Final = ("succeeded", "failed", "retried", "other")


class Fleet(Struct, frozen=True):
    """The processes of a supervisor: those that live, and how many died and were started again."""

    processes: int
    restarts: int


def worker_samples(numbers: Numbers, names: Names, fleet: Fleet | None = None) -> Samples:
    """The samples of these numbers. Without `fleet` they are of the process that is scraped."""
    samples = Samples()
    _runs(samples, names, numbers.cells)
    _pairs(samples, names, catalogue.ENQUEUED, numbers.enqueued)
    _pairs(samples, names, catalogue.LOST, numbers.lost)
    samples.add_histogram(catalogue.LOOP_LAG, numbers.lag)
    for verb, calls in numbers.calls.items():
        label = names.one("verb", verb)
        samples.add_histogram(catalogue.CALL_SECONDS, calls, label)
        samples.add(catalogue.CALL_ERRORS, numbers.errors.get(verb, 0), label)
    if fleet is not None:
        samples.add(catalogue.PROCESSES, fleet.processes)
        samples.add(catalogue.RESTARTS, fleet.restarts)
    return samples


def _runs(samples: Samples, names: Names, cells: Iterable[Cell]) -> None:
    for cell in cells:
        pair = names.pair(cell.queue, cell.task)
        counts = cell.succeeded, cell.failed, cell.retried, cell.other
        for outcome, count in zip(OUTCOMES, counts, strict=True):
            samples.add(catalogue.RUNS, count, *pair, outcome)
        samples.add(catalogue.LOST, 0, *pair)
        samples.add_histogram(catalogue.RUN_SECONDS, cell.run, *pair)
        samples.add_histogram(catalogue.WAIT_SECONDS, cell.wait, pair[0])


def _pairs(samples: Samples, names: Names, metric: Metric, counts: Counts) -> None:
    for queue, task, count in counts:
        samples.add(metric, count, *names.pair(queue, task))
