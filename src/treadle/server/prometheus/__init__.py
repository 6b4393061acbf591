"""Metrics for Prometheus, from two sources: what is stored, read for scrapers; and what the workers have counted.

Only `exposition` needs prometheus-client: a process without it starts, and answers scrapers with what is missing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from treadle.server.prometheus.catalogue import HAPPENED, STORED, Metric
from treadle.server.prometheus.happened import Fleet, worker_samples
from treadle.server.prometheus.reader import StoredReader, read_stored
from treadle.server.prometheus.samples import Names, Samples
from treadle.server.prometheus.stored import Reading, Scrape, stored_samples

if TYPE_CHECKING:
    from treadle.server.prometheus.exposition import Exposition

__all__ = [
    "HAPPENED",
    "MISSING",
    "STORED",
    "Fleet",
    "Metric",
    "Names",
    "Reading",
    "Samples",
    "Scrape",
    "StoredReader",
    "check_installed",
    "read_stored",
    "stored_samples",
    "worker_samples",
    "written",
]

MISSING: Final = "metrics for Prometheus need: pip install 'prometheus-client>=0.21', or the extra treadle[prometheus]"


def check_installed() -> None:
    """Raise ImportError with what to install if prometheus-client is missing."""
    try:
        import prometheus_client  # noqa: F401
    except ImportError as error:
        raise ImportError(f"{MISSING} ({error})", name=error.name) from None


def written(samples: Samples, accept: str = "") -> Exposition:
    """The samples as text, see `treadle.server.prometheus.exposition`. Raises ImportError with what to install."""
    check_installed()
    from treadle.server.prometheus.exposition import exposition

    return exposition(samples, accept)
