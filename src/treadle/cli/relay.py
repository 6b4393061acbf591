"""`treadle storage relay`: delivers the jobs of an outbox; lists, retries and deletes those that are refused."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

import click

from treadle.cli import event_loop
from treadle.cli.app_loader import find_app
from treadle.cli.group import HELP, Group
from treadle.cli.listing import listed
from treadle.cli.options import app_option, logging, number, probed, probes_of, required_app
from treadle.cli.output import USAGE, Stop, as_json, data, lasts, note, plural
from treadle.core.errors import PASSING, StorageError
from treadle.outbox import Outbox, OutboxRow, OutboxStats
from treadle.worker import RECOVERY, Signals, StorageOutage, logs
from treadle.worker.probes import HealthReporter, Probes, Verdict

if TYPE_CHECKING:
    from treadle.app import App

T = TypeVar("T")
COLUMNS = ("id", "task", "queue", "age", "tries", "next", "error")
RIGHT = ("age", "tries", "next")
STOPPING: Final = 30.0  # s that the last delivery may take


class RelayGroup(Group):
    """Takes an app in place of a subcommand: `treadle storage relay MODULE:APP` runs a relay."""

    def with_default(self, args: list[str]) -> list[str]:
        return ["run", *args] if args and args[0] not in (*self.commands, *HELP) else args


@click.group(cls=RelayGroup, subcommand_metavar="MODULE:APP | COMMAND [ARGS]...")
def relay() -> None:
    """Deliver the jobs of an app's outbox to its storage: `treadle storage relay MODULE:APP`.

    Workers do this too, unless they run with --no-relay. One process relays at a time; any other takes over when it
    dies.
    """


@relay.command("run")
@required_app
@click.option("--once", is_flag=True, help="Deliver the jobs that wait now, then exit.")
@logging
@probed
def run(app: str, once: bool, log_level: str, log_json: bool, health: str | None, health_file: Path | None) -> None:
    """Deliver the jobs of the outbox of MODULE:APP until SIGTERM or Ctrl-C."""
    probes = probes_of(health, health_file)
    loaded = find_app(app)
    outbox = _outbox_of(loaded)
    if once:
        if health is not None or health_file is not None:
            raise Stop(USAGE, "--health and --health-file are for a relay that stays: leave out --once")
        note(f"treadle: {plural(event_loop.run(_everything(loaded)), 'job')} delivered")
        return
    logs.set_up("relay", log_level, log_json)
    note(f"treadle: relaying from {outbox.url}; Ctrl-C stops")
    event_loop.run(_relaying(loaded, probes))


async def _everything(app: App) -> int:
    async with app:
        relay = app._core.relay
        assert relay is not None
        return await relay.everything()


async def _relaying(app: App, probes: Probes) -> None:
    relaying, stop_asked = Relaying(app), asyncio.Event()
    reporter = HealthReporter(probes, lambda: relaying.verdict)

    def stop() -> None:
        reporter.stopping(STOPPING)
        stop_asked.set()

    with Signals(asyncio.get_running_loop(), stop):
        async with reporter:
            if reporter.address is not None:
                note(f"treadle: probes at {reporter.address.url}/livez and /readyz")
            async with event_loop.until(stop_asked):
                await relaying.run()


def _outbox_of(app: App) -> Outbox:
    if app.outbox is None:
        raise Stop(USAGE, "this app has no outbox: give it one, App(..., outbox=Outbox(url))")
    return app.outbox


class Relaying:
    """One run of a relay, and its health."""

    def __init__(self, app: App) -> None:
        self._app, self._is_open = app, False
        self._outage = StorageOutage("relay", RECOVERY, app._core.random, lambda *_: None, ("open", "relay"))

    @property
    def verdict(self) -> Verdict:
        """Ready: the database of the outbox and the storage answer."""
        away, problem = self._outage.away, None
        if away is not None:
            problem = f"the outbox or the storage has been unavailable for {away:.0f} s; the log has the reason"
        elif not self._is_open:
            problem = "it connects"
        return Verdict(None, problem, "the relay delivers jobs, or stands by for another one")

    async def run(self) -> None:
        """Relay; after an error of the database or of the storage, again after a growing pause."""
        outage = self._outage
        while True:
            try:
                async with self._app:
                    outage.answered("open")
                    self._is_open = True
                    await self._relay()
            except PASSING as error:
                self._is_open = False
                await outage.failed("open", error)

    async def _relay(self) -> None:
        relay, outage = self._app._core.relay, self._outage
        assert relay is not None
        while True:
            try:
                await relay.run(lambda: outage.answered("relay"))
            except StorageError as error:
                await outage.failed("relay", error)


# --- the rows


def on_outbox(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add --app and --outbox to a command, which receives an Outbox as `outbox`."""

    @app_option("App whose outbox to use.")
    @click.option("--outbox", "url", metavar="URL", help="URL of the database with the outbox, in place of --app.")
    @click.option("--schema", metavar="NAME", help="PostgreSQL schema of its tables. [default: the search path]")
    @functools.wraps(command)
    def with_outbox(app: str | None, url: str | None, schema: str | None, **rest: Any) -> Any:
        if (app is None) == (url is None):
            raise click.UsageError("give --app MODULE:APP or --outbox URL")
        if url is not None:
            return command(outbox=Outbox(url, schema=schema), **rest)
        return command(outbox=_outbox_of(find_app(app or "")), **rest)

    return with_outbox


def call(outbox: Outbox, act: Callable[[], Awaitable[T]]) -> T:
    """Run one call of the outbox, and close its connection."""

    async def work() -> T:
        try:
            return await act()
        finally:
            await outbox._close()

    return asyncio.run(work())


@relay.command("list")
@on_outbox
@click.option("--all", "all_", is_flag=True, help="Also those whose delivery was not refused.")
@number("--limit", default=100, show_default=True, help="Number of jobs to show.")
@as_json
def list_(outbox: Outbox, all_: bool, limit: int, json_: bool) -> None:
    """List the jobs whose delivery was refused, with the reason."""

    async def look() -> tuple[OutboxStats, list[OutboxRow]]:
        return await outbox.stats(), await outbox.list(limit, failing=not all_)

    stats, jobs = call(outbox, look)
    rows = [
        (row.id, row.task, row.job and row.job.queue, lasts(row.age), row.tries, _next(row), row.error) for row in jobs
    ]
    empty = "no job was refused" if not all_ else "the outbox is empty"
    listed(json_, {"stats": stats, "jobs": jobs}, COLUMNS, rows, empty, right=RIGHT)
    if stats.rows and not json_:
        relaying = f"{stats.relay} relays" if stats.relay else "no process relays"
        note(f"{plural(stats.rows, 'job')}, the oldest {lasts(stats.oldest)} old; {relaying}")


def _next(row: OutboxRow) -> str:
    if row.next is None:
        return "given up"
    return "now" if not row.next else f"in {lasts(row.next)}"


@relay.command("retry")
@click.argument("ids", metavar="[ID]...", nargs=-1)
@on_outbox
def retry(outbox: Outbox, ids: tuple[str, ...]) -> None:
    """Deliver jobs again, with the other jobs of their calls. Without an ID: all that were given up."""
    data(f"{plural(call(outbox, lambda: outbox.retry(*ids)), 'job')} will be tried again")


@relay.command("delete")
@click.argument("ids", metavar="[ID]...", nargs=-1)
@click.option("--given-up", is_flag=True, help="Delete all jobs that were given up.")
@on_outbox
def delete(outbox: Outbox, ids: tuple[str, ...], given_up: bool) -> None:
    """Delete jobs, with the other jobs of their calls, so that they never run."""
    if bool(ids) == given_up:
        raise click.UsageError("give ids, or --given-up")
    data(f"{plural(call(outbox, lambda: outbox.delete(*ids)), 'job')} deleted")


@relay.command("ddl")
@on_outbox
def ddl(outbox: Outbox) -> None:
    """Print the SQL that creates the tables, for a migration of your own. It does not connect."""
    data(outbox.ddl().rstrip())
