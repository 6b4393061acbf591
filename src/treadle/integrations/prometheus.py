"""A collector for prometheus-client in your own program: the runs, enqueues and storage calls of its process.

`treadle worker --health` needs none of it: its supervisor serves the same metrics for all of its processes.
"""

from __future__ import annotations

from collections.abc import Iterable

from treadle.app import App
from treadle.server.prometheus import Names, check_installed, worker_samples

check_installed()

from prometheus_client import Metric  # noqa: E402 (after the error that says what to install)
from prometheus_client.registry import Collector  # noqa: E402

from treadle.server.prometheus.exposition import families  # noqa: E402

__all__ = ["TreadleCollector"]


class TreadleCollector(Collector):
    """The runs, enqueues and storage calls of an app in this process: `REGISTRY.register(TreadleCollector(app))`.

    Make it before the app is opened, because it counts the calls to the storage, too. Each process has its own counts:
    in a web server of several processes, a scraper must reach each of them. It may be read in any thread.

    Raises BadOption if the app is open.
    """

    def __init__(self, app: App) -> None:
        self._counts, self._names = app._core.count(), Names()

    def collect(self) -> Iterable[Metric]:
        """The families of prometheus-client, with the names that `treadle worker --health` shows."""
        return families(worker_samples(self._counts.numbers(), self._names))

    def describe(self) -> Iterable[Metric]:
        """None: registering reads no counts."""
        return ()
