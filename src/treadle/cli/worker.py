"""`treadle worker`: runs the worker processes of an app under one supervisor."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from typing import Any

import click

from treadle.cli.child_protocol import Orders
from treadle.cli.event_loop import LOOPS, check
from treadle.cli.output import USAGE, Stop, seconds
from treadle.cli.placement_options import ROLES, placed
from treadle.cli.probe_options import probed, probes_of
from treadle.cli.protocols import protocol as protocol_named
from treadle.cli.protocols import worker_options
from treadle.cli.recording_options import recording
from treadle.cli.recycling_options import recycled, recycling_of, refuse_with
from treadle.cli.reload import GRACE, watching
from treadle.cli.reload import check as check_reload
from treadle.cli.reload import supervise as run_reloading
from treadle.cli.target import Target


def _queues(ctx: click.Context, param: click.Parameter, texts: tuple[str, ...]) -> dict[str, int] | None:
    """Parse `mail=3,bulk` -> {"mail": 3, "bulk": 1}."""
    found: dict[str, int] = {}
    for each in _listed(texts):
        name, _, weight = each.rpartition("=") if "=" in each else (each, "", "1")
        if not name or not weight.isdecimal() or int(weight) < 1:
            raise click.BadParameter(f"expected names with weights such as mail=3,bulk; found {each!r}")
        found[name] = int(weight)
    return found or None


def _listed(texts: tuple[str, ...]) -> list[str]:
    return [part.strip() for text in texts for part in text.split(",") if part.strip()]


@click.command()
@click.argument("app", metavar="[MODULE:APP]", required=False)
@click.option("--protocol", type=click.Choice(("delayed",)), help="Deliver delayed jobs; an app is not needed then.")
@click.option(
    "--url",
    metavar="URL",
    help="Storage URL, if no app is given. [default: TREADLE_URL, else treadle.db in this directory]",
)
@click.option(
    "--concurrency",
    "-c",
    type=click.IntRange(1),
    help="Number of jobs that run at the same time in each process. [default: 20; delayed: 1]",
)
@click.option(
    "--processes", "-p", type=click.IntRange(1), default=1, show_default=True, help="Number of worker processes."
)
@click.option(
    "--queues",
    "-q",
    multiple=True,
    callback=_queues,
    help="Queues with weights, such as mail=3,bulk. [default: the queues of all tasks]",
)
@click.option("--tasks", "-t", multiple=True, help="Names of the tasks to run. [default: all]")
@click.option(
    "--grace",
    type=seconds,
    metavar="SECONDS",
    help="Seconds that running jobs get to finish when the worker stops. [default: 30; with --reload: 2]",
)
@click.option(
    "--lease",
    type=seconds,
    metavar="SECONDS",
    help="Seconds after which the jobs of a dead worker are run again. [default: 30]",
)
@click.option(
    "--poll",
    type=seconds,
    metavar="SECONDS",
    help="Seconds between polls for work when no notification arrives. [default: 1]",
)
@click.option(
    "--role",
    type=click.Choice(ROLES),
    envvar="TREADLE_ROLE",
    help="Role for pruning, redriving and ticking schedules: leader does it; follower only while no leader has sent a "
    "heartbeat for 5 s; auto elects a leader. [default: every worker does it]",
)
@click.option(
    "--loop", type=click.Choice(LOOPS), default="auto", help="Event loop; auto uses uvloop if it is installed."
)
@click.option(
    "--name", help="Name of the workers; a number and a random part are appended. [default: from host and process]"
)
@click.option("--log-level", type=click.Choice(["debug", "info", "warning", "error"]), default="info")
@click.option("--log-json", is_flag=True, help="Log one JSON object per line.")
@placed
@recording
@click.option("--no-relay", is_flag=True, help="Do not deliver the jobs of the app's outbox; `treadle relay` does it.")
@probed
@recycled
@watching
@worker_options
def worker(
    app: str | None,
    protocol: str | None,
    url: str | None,
    concurrency: int | None,
    processes: int,
    queues: dict[str, int] | None,
    tasks: tuple[str, ...],
    grace: float | None,
    lease: float | None,
    poll: float | None,
    role: str | None,
    loop: str,
    name: str | None,
    log_level: str,
    log_json: bool,
    labels: dict[str, str],
    resources: dict[str, int],
    capture_logs: str | None,
    no_metrics: bool,
    no_relay: bool,
    health: str | None,
    health_file: Path | None,
    reload: bool,
    watch: tuple[Path, ...],
    **options: Any,
) -> int:
    """Run the jobs of MODULE:APP (or path/to/file.py:APP; without :APP, the only app of the module).

    Without MODULE:APP it runs those of the only app in this directory, and imports the modules called `tasks` of the
    app's package.

    After the first SIGTERM or Ctrl-C it claims no more jobs, waits up to --grace seconds for running jobs, releases the
    rest and exits with 0. After the second it exits at once. A worker process that dies is restarted.

    With --protocol delayed it delivers the jobs that `treadle server --protocol delayed` accepts: to the app's
    @app.delayed_handler, to --webhook, to --command, or as lines to stdout.
    """
    delivery = protocol_named("delayed").handling(options)
    check_reload(reload, watch)
    if reload:
        refuse_with("--reload", {**options, "health": health, "health_file": health_file})
    probes = probes_of(health, health_file)
    if reload and protocol is not None:
        raise Stop(USAGE, "with --protocol, --reload is an option of `treadle up`")
    if protocol is not None:
        guest, target = protocol_named(protocol), Target(url, app)
        target.fall_back(guest.storage_url())
        guest.prepare(target.app, app, delivery)
        role, concurrency, url = guest.role(role), concurrency or 1, None if app else target.app.url
    elif url is not None or delivery is not None:
        words = "name an app, as MODULE:APP; --url, --webhook and --command need --protocol delayed"
        raise Stop(USAGE, words)
    check(loop)
    orders = Orders(
        app=app or "",
        search=app is None and protocol is None,
        url=url,
        delayed=protocol is not None,
        delivery=delivery,
        ordered=protocol is not None,
        name=name,
        concurrency=concurrency,
        queues=queues,
        tasks=_listed(tasks) or None,
        grace=GRACE if reload and grace is None else grace,
        lease=lease,
        poll=poll,
        role=role,
        loop=loop,
        log_level=log_level,
        log_json=log_json,
        metrics=not no_metrics,
        relay=not no_relay,
        capture_logs=capture_logs,
        labels=labels,
        resources=resources,
    )
    if sys.platform == "win32":
        # Windows has no process groups and no signals to forward: run one worker in this process.
        if processes > 1:
            raise Stop(USAGE, "--processes needs signals that Windows does not have: start the command several times")
        from treadle.cli.child import serve

        refuse_with("Windows", {**options, "health": None, "health_file": None})
        serve(orders, None, probes)
        return 0
    from treadle.cli.supervise import starts, supervise

    if reload:
        return run_reloading(starts(orders, processes), watch, GRACE if grace is None else grace)
    return asyncio.run(supervise(orders, processes, recycling_of(options), probes))
