"""Writes docs/guides/metrics.md: all metrics for Prometheus, from the catalogue in `treadle.server.prometheus`.

python -m tools.metrics_page             write the page
python -m tools.metrics_page --check     exit with 1 if it is stale
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final

from treadle.server.prometheus import HAPPENED, STORED, Metric

PAGE: Final = Path(__file__).resolve().parents[1] / "docs/guides/metrics.md"
HEAD: Final = """# All metrics

The metrics that [Prometheus](observability.md#metrics) reads. This page is made of the code by `python -m
tools.metrics_page`. Counters end in `_total`; histograms have series that end in `_bucket`, `_count` and `_sum`.
"""
STORED_HEAD: Final = """
## What is stored

Served by `treadle server` and `treadle storage metrics`. All are gauges. `state` is one of waiting, ready, running,
succeeded, failed and cancelled.
"""
HAPPENED_HEAD: Final = """
## What happens

Served by `treadle worker --health`; those of a program's own process by
[`TreadleCollector`](observability.md#what-happens), without the last two. `outcome` is one of succeeded, failed,
retried and other; `verb` is the name of a method of the storage.
"""


def page() -> str:
    """The text of the page."""
    return "\n".join(
        (
            f"{HEAD}{STORED_HEAD}",
            *_rows(STORED),
            HAPPENED_HEAD,
            *_rows(HAPPENED, with_kind=True),
            "",
        )
    )


def _rows(metrics: Iterable[Metric], with_kind: bool = False) -> Iterator[str]:
    yield f"| metric | {'kind | ' if with_kind else ''}labels | meaning |"
    yield "|---" * (4 if with_kind else 3) + "|"
    for metric in metrics:
        name = f"{metric.name}_total" if metric.kind == "counter" else metric.name
        kind = f"{metric.kind} | " if with_kind else ""
        yield f"| `{name}` | {kind}{', '.join(metric.labels) or '-'} | {metric.help} |"


def main() -> int:
    if "--check" in sys.argv[1:]:
        if PAGE.read_text() != page():
            print("docs/guides/metrics.md is stale: run `python -m tools.metrics_page`")
            return 1
        return 0
    PAGE.write_text(page())
    return 0


if __name__ == "__main__":
    sys.exit(main())
