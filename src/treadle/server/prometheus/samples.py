"""The values of one scrape, by metric and labels: what prometheus-client writes as text.

The number of label values is bounded, and a name of a hostile sender is text without control characters.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from treadle.core.redaction import in_line
from treadle.metrics import NAMED, OTHER, Pairs
from treadle.server.prometheus.catalogue import Metric

REST: Final = "other"  # the label value for all names beyond those that are shown

Labels = tuple[str, ...]


class Names:
    """The names that have label values of their own; the first ones stay, so a series does not come and go.

    most  names of each label, and pairs of queue and task
    """

    def __init__(self, most: int = NAMED) -> None:
        self._pairs, self._most = Pairs(most), most
        self._single: dict[str, set[str]] = {}

    def pair(self, queue: str, task: str) -> tuple[str, str]:
        """The labels queue and task."""
        queue, task = self._pairs.of(queue, task)
        return text_of(queue), text_of(task)

    def one(self, label: str, name: str) -> str:
        """The value of another label."""
        known = self._single.setdefault(label, set())
        if name not in known:
            if len(known) >= self._most:
                return REST
            known.add(name)
        return text_of(name)


def text_of(name: str) -> str:
    """The label value of a name."""
    return REST if name == OTHER else in_line(name)


class Samples:
    """The values of one scrape."""

    def __init__(self) -> None:
        self.values: dict[Metric, dict[Labels, float]] = {}
        self.histograms: dict[Metric, dict[Labels, dict[int, int]]] = {}

    def add(self, metric: Metric, value: float, *labels: str) -> None:
        """Add a value; two of the same labels are joined as the metric says."""
        values = self.values.setdefault(metric, {})
        known = values.get(labels)
        if known is None:
            values[labels] = value
        elif metric.join == "sum":
            values[labels] = known + value
        else:
            values[labels] = max(known, value) if metric.join == "max" else min(known, value)

    def add_histogram(self, metric: Metric, buckets: Mapping[int, int], *labels: str) -> None:
        """Add the counts of a histogram, see `treadle.metrics.histogram`."""
        known = self.histograms.setdefault(metric, {}).setdefault(labels, {})
        for bucket, count in buckets.items():
            known[bucket] = known.get(bucket, 0) + count
