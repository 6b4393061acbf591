"""Writes the samples of a scrape as text, in Prometheus' format or as OpenMetrics. Needs prometheus-client."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final, NamedTuple

from prometheus_client import Metric as Family
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.exposition import generate_latest
from prometheus_client.openmetrics.exposition import generate_latest as generate_openmetrics
from prometheus_client.registry import Collector

from treadle.metrics import middle
from treadle.server.prometheus.catalogue import Metric
from treadle.server.prometheus.samples import Samples

# The edges of buckets, 2^9 to 2^32 us: 0.5 ms to 72 minutes. Treadle's own buckets are quarters of these, so counts are
# exact.
EDGES: Final = range(9, 33)
BOUNDS: Final = tuple((4 * (edge - 1), str(2**edge / 1e6)) for edge in EDGES)

TEXT: Final = "text/plain; version=0.0.4; charset=utf-8"
OPENMETRICS: Final = "application/openmetrics-text; version=1.0.0; charset=utf-8"


class Exposition(NamedTuple):
    """A text for a scraper, and its media type."""

    body: bytes
    content_type: str


class _Once(Collector):
    """A registry with the families of one scrape."""

    def __init__(self, families: Sequence[Family]) -> None:
        self._families = families

    def collect(self) -> Iterable[Family]:
        return self._families


def exposition(samples: Samples, accept: str = "") -> Exposition:
    """The samples as OpenMetrics if the header `Accept` names it, otherwise in Prometheus' text format.

    `choose_encoder` of prometheus-client raises TypeError for a version such as "x" in that header.
    """
    once = _Once(list(families(samples)))
    if is_openmetrics(accept):
        return Exposition(generate_openmetrics(once), OPENMETRICS)  # type: ignore[no-untyped-call]
    return Exposition(generate_latest(once), TEXT)


def is_openmetrics(accept: str) -> bool:
    """Whether the header asks for OpenMetrics."""
    return any(part.partition(";")[0].strip() == "application/openmetrics-text" for part in accept.split(","))


def families(samples: Samples) -> Iterator[Family]:
    """The samples as objects of prometheus-client."""
    for metric, values in samples.values.items():
        kind = CounterMetricFamily if metric.kind == "counter" else GaugeMetricFamily
        family = kind(metric.name, metric.help, labels=metric.labels)
        for labels, value in values.items():
            family.add_metric(labels, value)
        yield family
    for metric, histograms in samples.histograms.items():
        yield _histogram(metric, histograms)


def _histogram(metric: Metric, histograms: Mapping[tuple[str, ...], Mapping[int, int]]) -> Family:
    family = HistogramMetricFamily(metric.name, metric.help, labels=metric.labels)
    for labels, counts in histograms.items():
        family.add_metric(labels, _cumulative(counts), sum(middle(bucket) * count for bucket, count in counts.items()))
    return family


def _cumulative(counts: Mapping[int, int]) -> list[tuple[str, float]]:
    """(edge in seconds, observations up to it)"""
    buckets, pending, seen = list[tuple[str, float]](), sorted(counts.items(), reverse=True), 0
    for first_beyond, edge in BOUNDS:
        while pending and pending[-1][0] < first_beyond:
            seen += pending.pop()[1]
        buckets.append((edge, seen))
    return [*buckets, ("+Inf", seen + sum(count for _, count in pending))]
