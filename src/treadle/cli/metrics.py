"""`treadle storage metrics`: prints what is stored as metrics for Prometheus, writes it to a file, or serves it."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

from treadle.cli.output import USAGE, Stop, data, note
from treadle.cli.target import Target, targeted
from treadle.core.clock import monotonic
from treadle.core.errors import BadOption, StorageError
from treadle.metrics import Numbers
from treadle.server.prometheus import (
    Fleet,
    Names,
    Scrape,
    StoredReader,
    check_installed,
    read_stored,
    stored_samples,
    worker_samples,
    written,
)
from treadle.worker import Signals
from treadle.worker.fleet import FleetCounts
from treadle.worker.logs import simple
from treadle.worker.probes import Address, PageListener, PageRequest, Reply, text_reply

if TYPE_CHECKING:
    from treadle.app import App


@click.command()
@targeted
@click.option(
    "--port",
    metavar="[HOST:]PORT",
    help="Serve http://HOST:PORT/metrics until Ctrl-C; :PORT for every address. [default: print once and exit]",
)
@click.option(
    "--output",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="FILE",
    help="File to write once, replaced in one step, such as a .prom file of node_exporter. [default: stdout]",
)
def metrics(target: Target, port: str | None, output: Path | None) -> None:
    """Show jobs, queues, workers, limits, schedules and the outbox as metrics for Prometheus.

    `treadle server` serves the same at /metrics. The counts and times of runs are not stored in this form: `treadle
    worker --health PORT` serves those.
    """
    try:
        check_installed()
    except ImportError as error:
        raise Stop(USAGE, str(error)) from None
    if port is None:
        _once(target, output)
        return
    if output is not None:
        raise Stop(USAGE, "give --port or --output, not both")
    target.check_there()
    try:
        with target.app._core.looking():
            asyncio.run(_serve(target.app, port))
    except BadOption as error:
        if error.option != "health":
            raise
        raise Stop(USAGE, f"--port: {error.problem}") from None


# --- once


def _once(target: Target, output: Path | None) -> None:
    """Print or write the metrics. If the storage is unavailable, one of the metrics says so, and the command fails."""
    try:
        reading = target.run(lambda app: read_stored(app._core), look=True)
    except StorageError:
        _write(_text(Scrape(reading=None, age=0.0, up=False)), output)
        raise
    _write(_text(Scrape(reading=reading, age=0.0, up=True)), output)


def _text(scrape: Scrape) -> bytes:
    return written(stored_samples(scrape, Names())).body


def _write(text: bytes, output: Path | None) -> None:
    if output is None:
        data(text.decode().removesuffix("\n"))
        return
    # A collector may read at any moment. The collector reads only files whose names end in .prom.
    beside = output.with_name(f"{output.name}.{os.getpid()}.tmp")
    try:
        beside.write_bytes(text)
        beside.replace(output)
    except OSError as error:
        beside.unlink(missing_ok=True)
        raise Stop(USAGE, f"--output: cannot write {output} ({error.strerror or error})") from None


# --- until Ctrl-C


async def _serve(app: App, port: str) -> None:
    simple("%(asctime)s %(levelname)-7s %(message)s")
    stopping = asyncio.Event()
    with Signals(asyncio.get_running_loop(), stopping.set):
        try:
            async with PageListener(Address.parse(port), {"/metrics": _page(app)}) as listener:
                note(f"treadle: metrics at {listener.address.url}/metrics; Ctrl-C stops")
                await stopping.wait()
        finally:
            await app.close()
    note("treadle: stopped")


def _page(app: App) -> Callable[[PageRequest], Awaitable[Reply]]:
    """The page of all metrics. The first read opens the storage, so that a storage that is away is shown, too."""
    reader, names = StoredReader(app._core), Names()

    async def page(request: PageRequest) -> Reply:
        text = written(stored_samples(await reader.scrape(), names), request.headers.get("accept", ""))
        return Reply(200, text.content_type, text.body)

    return page


# --- the page of a supervisor
#
# The page /metrics of a supervisor: what all its worker processes have counted, for Prometheus.


FRESH: Final = 1.0  # s that numbers are reused: a scraper in a loop must not keep the workers busy


class MetricsPage:
    """Answers scrapers, also several at once, with one request to each process."""

    def __init__(self, counts: FleetCounts) -> None:
        self._counts, self._names = counts, Names()
        self._once = asyncio.Lock()
        self._numbers, self._at = Numbers(), float("-inf")

    async def __call__(self, request: PageRequest) -> Reply:
        try:
            check_installed()
        except ImportError as error:
            return text_reply(501, str(error))
        async with self._once:
            if monotonic() - self._at >= FRESH:
                self._numbers, self._at = await self._counts.numbers(), monotonic()
        samples = worker_samples(self._numbers, self._names, Fleet(*self._counts.size()))
        text = written(samples, request.headers.get("accept", ""))
        return Reply(200, text.content_type, text.body)
