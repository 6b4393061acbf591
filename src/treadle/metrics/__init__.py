"""The numbers that workers measure of their jobs: counts and a sample of times for each minute, queue and task.

Metrics are telemetry, never truth: a killed worker loses the last seconds of them, and no decision reads them.
"""

from treadle.metrics.cells import Cell, Cells, count, decode, encode, waited
from treadle.metrics.folding import AGES, KEPT, Folded, fold, windows
from treadle.metrics.histogram import add, edges, middle, quantiles
from treadle.metrics.pairs import OTHER, Counts, PairCounts, Pairs, is_own
from treadle.metrics.process_counts import NAMED, Numbers, NumbersSum, ProcessCounts
from treadle.metrics.recorder import MINUTE, Recorder
from treadle.metrics.series import POINTS, Count, Metrics, Percentiles, QuantileSeries, SeriesBuilder, Totals, step_for

__all__ = [
    "AGES",
    "KEPT",
    "MINUTE",
    "NAMED",
    "OTHER",
    "POINTS",
    "Cell",
    "Cells",
    "Count",
    "Counts",
    "Folded",
    "Metrics",
    "Numbers",
    "NumbersSum",
    "PairCounts",
    "Pairs",
    "Percentiles",
    "ProcessCounts",
    "QuantileSeries",
    "Recorder",
    "SeriesBuilder",
    "Totals",
    "add",
    "count",
    "decode",
    "edges",
    "encode",
    "fold",
    "is_own",
    "middle",
    "quantiles",
    "step_for",
    "waited",
    "windows",
]
