"""`treadle worker`: runs the worker processes of an app under one supervisor."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from typing import Any, Final

import click

from treadle.cli.event_loop import LOOPS, check
from treadle.cli.options import (
    ROLES,
    duration,
    logging,
    number,
    optional_app,
    placed,
    probed,
    probes_of,
    recording,
    recycled,
    recycling_of,
    refuse_with,
    several,
    storage_url,
)
from treadle.cli.output import USAGE, Stop
from treadle.cli.protocols import protocol as protocol_named
from treadle.cli.protocols import worker_options
from treadle.cli.reload.options import GRACE, watching
from treadle.cli.reload.options import check as check_reload
from treadle.cli.reload.options import supervise as run_reloading
from treadle.cli.target import Target
from treadle.worker.fleet import Orders

PASSED: Final = (  # options with the same name in the orders of a worker
    *("concurrency", "queues", "grace", "lease", "poll", "loop", "name"),
    *("log_level", "log_json", "capture_logs", "labels", "resources"),
)


def _queues(ctx: click.Context, param: click.Parameter, texts: tuple[str, ...]) -> dict[str, int] | None:
    """Parse `mail=3,bulk` -> {"mail": 3, "bulk": 1}."""
    weights: dict[str, int] = {}
    for text in _listed(texts):
        name, _, weight = text.rpartition("=") if "=" in text else (text, "", "1")
        if not name or not weight.isdecimal() or int(weight) < 1:
            raise click.BadParameter(f"expected names with weights such as mail=3,bulk; found {text!r}")
        weights[name] = int(weight)
    return weights or None


def _listed(texts: tuple[str, ...]) -> list[str]:
    return [part.strip() for text in texts for part in text.split(",") if part.strip()]


@click.command()
@optional_app
@click.option("--protocol", type=click.Choice(("delayed",)), help="Deliver delayed jobs; an app is not needed then.")
@storage_url
@number(
    "--concurrency", "-c", help="Number of jobs that run at the same time in each process. [default: 20; delayed: 1]"
)
@number("--processes", "-p", default=1, show_default=True, help="Number of worker processes.")
@several(
    "--queues",
    "-q",
    callback=_queues,
    help="Queues with weights, such as mail=3,bulk. [default: the queues of all tasks]",
)
@several("--tasks", "-t", help="Names of the tasks to run. [default: all]")
@duration(
    "--grace", help="Seconds that running jobs get to finish when the worker stops. [default: 30; with --reload: 2]"
)
@duration("--lease", help="Seconds after which the jobs of a dead worker are run again. [default: 30]")
@duration("--poll", help="Seconds between polls for work when no notification arrives. [default: 1]")
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
@logging
@placed
@recording
@click.option(
    "--no-relay", is_flag=True, help="Do not deliver the jobs of the app's outbox; `treadle storage relay` does it."
)
@probed
@recycled
@watching
@worker_options
def worker(
    app: str | None,
    protocol: str | None,
    url: str | None,
    processes: int,
    tasks: tuple[str, ...],
    role: str | None,
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
        role, url = guest.role(role), None if app else target.app.url
        options["concurrency"] = options["concurrency"] or 1
    elif url is not None or delivery is not None:
        raise Stop(USAGE, "name an app, as MODULE:APP; --url, --webhook and --command need --protocol delayed")
    check(options["loop"])
    if options["grace"] is None and reload:
        options["grace"] = GRACE
    orders = Orders(
        app=app or "",
        search=app is None and protocol is None,
        url=url,
        delayed=protocol is not None,
        delivery=delivery,
        ordered=protocol is not None,
        tasks=_listed(tasks) or None,
        role=role,
        metrics=not options["no_metrics"],
        relay=not options["no_relay"],
        **{name: options[name] for name in PASSED},
    )
    if sys.platform == "win32":
        # Windows has no process groups and no signals to forward: run one worker in this process.
        if processes > 1:
            raise Stop(USAGE, "--processes needs signals that Windows does not have: start the command several times")
        from treadle.cli.child import serve

        refuse_with("Windows", {**options, "health": None, "health_file": None})
        serve(orders, None, probes)
        return 0
    from treadle.cli.supervise import Supervision, starts

    if reload:
        return run_reloading(starts(orders, processes), watch, options["grace"])
    return asyncio.run(Supervision(orders, processes, recycling_of(options), probes).run())
