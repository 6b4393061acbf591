"""`treadle server`: serves jobs over HTTP. `treadle up` uses the same code to run workers with a server."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from treadle.cli import event_loop
from treadle.cli.options import added, duration, filing, number, probes_of, several
from treadle.cli.output import USAGE, Stop, note, place
from treadle.cli.protocols import ServerWorkers, Stopping, all_protocols, protocol, server_options
from treadle.cli.reload.options import reloading
from treadle.cli.target import Target, move_of, targeted
from treadle.contrib import PROTOCOLS
from treadle.core import defaults
from treadle.core.host_names import address_of, is_loopback
from treadle.worker.logs import simple
from treadle.worker.probes import HealthReporter, Verdict

if TYPE_CHECKING:
    from treadle.app import App
    from treadle.server import ProtocolRoutes, Serving, Settings


# --- options
#
# Options of the commands that serve HTTP.


serving = added(
    click.option(
        "--host",
        envvar="TREADLE_HOST",
        help="Address to listen on. [default: 127.0.0.1; with --protocol and --tokens: 0.0.0.0]",
    ),
    click.option(
        "--port",
        type=click.IntRange(0, 65535),
        envvar="TREADLE_PORT",
        help="Port to listen on; 0 picks a free one. [default: 7373; queuey: from 1717; delayed: 8080]",
    ),
    click.option(
        "--tokens",
        type=click.Path(dir_okay=False, path_type=Path),
        envvar="TREADLE_TOKENS",
        metavar="FILE",
        help="File of tokens, written by `treadle token`.",
    ),
    click.option(
        "--open",
        "open_",
        is_flag=True,
        help="Allow other machines to connect without tokens. With --protocol and without --api, --host alone "
        "allows it: clients of the systems that these protocols replace send no tokens.",
    ),
    several(
        "--allow-host",
        "hosts",
        metavar="NAME",
        envvar="TREADLE_ALLOW_HOST",
        help="Host name that requests may use; .example.org allows every name below it. May be repeated.",
    ),
    several("--origin", "origins", help="Origin whose web pages may call the server; may be repeated."),
    click.option(
        "--rate",
        type=click.FloatRange(0, min_open=True),
        help="Requests per second for each token. [default: no limit]",
    ),
    number("--requests", help="Concurrent requests for each token. [default: 512]"),
    number("--connections", help="Concurrent connections. [default: three quarters of ulimit -n, at most 10000]"),
    click.option("--max-body", type=click.IntRange(1_000), help="Bytes of the largest request. [default: 33554432]"),
    duration("--timeout", help="Seconds that one response may take. [default: 30]"),
    click.option("--dashboard", is_flag=True, help="Serve the dashboard at /dashboard/, and the API that it needs."),
    several(
        "--proxy",
        "proxies",
        metavar="ADDRESS",
        envvar="TREADLE_PROXY",
        help="Address or network of a proxy whose X-Forwarded-For, -Proto and -Prefix headers are believed; may be "
        "repeated.",
    ),
    several(
        "--redact",
        metavar="NAME",
        envvar="TREADLE_REDACT",
        help="Key whose values answers hide, besides passwords, tokens and the like; may be repeated.",
    ),
    several(
        "--reveal",
        metavar="NAME",
        envvar="TREADLE_REVEAL",
        help="Key whose values answers show although it looks like a secret, such as max_tokens; may be repeated.",
    ),
    click.option(
        "--pass-texts",
        is_flag=True,
        help="Store arguments that are encrypted or in a blob store also if the app of this server cannot read "
        "them: its workers have the keys or the blob store.",
    ),
    click.option("--tls-cert", type=click.Path(exists=True, dir_okay=False), help="TLS certificate file."),
    click.option("--tls-key", type=click.Path(exists=True, dir_okay=False), help="TLS key file."),
    click.option("--no-docs", is_flag=True, help="Do not serve /docs and /v1/openapi.json."),
    click.option("--quiet", is_flag=True, help="Do not log each request."),
    filing,
)


# --- the command


MAINTENANCE_SLOTS: Final = 4  # slots of the worker that runs Treadle's own jobs, which are short


@click.command()
@targeted
@click.option(
    "--protocol",
    "protocols",
    multiple=True,
    type=click.Choice(tuple(PROTOCOLS)),
    help="Serve the protocol of another system.",
)
@click.option("--api", is_flag=True, help="With --protocol: also serve /v1.")
@server_options
@serving
@reloading
def server(target: Target, protocols: tuple[str, ...], api: bool, **options: Any) -> int:
    """Serve jobs over HTTP: the API and the worker protocol under /v1, their documentation at /docs.

    Other programs use the server as their storage: App("http://host:7373"). With --protocol queuey it serves the HTTP
    queue of WASI jobs instead, on the first free port from 1717. With --protocol delayed it accepts delayed jobs by
    POST / on port 8080. Without --tokens these protocols listen on this machine only; --host 0.0.0.0 opens them. After
    Ctrl-C or SIGTERM the server finishes the requests in progress and stops.
    """
    for name in protocols:
        target.fall_back(protocol(name).storage_url())
    return run_server(
        target,
        {**options, "protocols": protocols, "api": api or not protocols},
        lambda *_: MaintenanceWorker(target.app),
    )


MakeWorkers = Callable[[Stopping, "Serving"], ServerWorkers]  # called once the server listens


class MaintenanceWorker(ServerWorkers):
    """A worker without user tasks in the process of the server, for maintenance: pruning, schedules, compositions.

    It serves storages whose workers are all written in other languages. Several servers of one storage elect a leader.
    """

    def __init__(self, app: App) -> None:
        from treadle.worker import Worker

        self._worker = Worker(app, concurrency=MAINTENANCE_SLOTS, tasks=(), role="auto")

    @property
    def verdict(self) -> Verdict:
        """The verdict about the server; the worker says whether the storage answers."""
        return self._worker.health().verdict._replace(status="the server answers")

    async def __aenter__(self) -> None:
        await self._worker.start()

    async def __aexit__(self, *_: object) -> None:
        await self._worker.stop()


def run_server(target: Target, options: dict[str, Any], make_workers: MakeWorkers) -> int:
    """Serve until a signal, or until the accompanying workers have ended -> the exit code."""
    try:
        import starlette  # noqa: F401  # an optional dependency
        import uvicorn  # noqa: F401
    except ImportError as error:
        packages = "pip install 'starlette>=0.45' 'uvicorn>=0.34', or the extra treadle[server]"
        raise Stop(USAGE, f"the server needs packages: {packages} ({error})") from None
    protocols = options.get("protocols", ())
    for name in protocols:
        protocol(name).complete(options)
    if options["dashboard"]:
        options["api"] = True
    options["host"] = options["host"] or ("0.0.0.0" if protocols and options["tokens"] is not None else "127.0.0.1")
    settings = _settings(options)
    is_open = options["open_"] or not options.get("api", True)  # clients of the protocols alone may know no tokens
    if bool(options["tls_cert"]) != bool(options["tls_key"]):
        raise Stop(USAGE, "give --tls-cert and --tls-key together")
    if not settings.has_tokens and not is_open and not is_loopback(options["host"]):
        advice = "give --tokens FILE (`treadle token` makes it), or --open to let everybody there do anything"
        raise Stop(USAGE, f"--host {options['host']} can be reached from other machines; {advice}")
    target.check_there(make=options.get("make", True))
    _log(options["quiet"])  # after the import of the app, which may set up logging
    return event_loop.run(_serve(target.app, settings, options, make_workers))


def _settings(options: dict[str, Any]) -> Settings:
    from treadle.cli.tokens import read_tokens
    from treadle.server import Settings
    from treadle.server.auth.live_tokens import LiveTokens

    numbers = ("rate", "requests", "max_body", "timeout")
    limits = {name: options[name] for name in numbers if options[name] is not None}
    tokens = LiveTokens(options["tokens"], read_tokens) if options["tokens"] is not None else None
    if tokens is not None and not tokens():
        raise Stop(USAGE, f"{options['tokens']} contains no tokens; make one: `treadle token NAME`")
    hosts = tuple(host.lower() for host in options["hosts"])
    if address_of(options["host"]) is None:
        hosts += (options["host"].lower(),)  # accept requests for the name that it listens on
    limits |= {name: options[name] for name in ("link", "app") if options.get(name) is not None}
    return Settings(
        token_file=tokens,
        hosts=hosts,
        origins=options["origins"],
        proxies=options["proxies"],
        redact=options["redact"],
        reveal=options["reveal"],
        pass_texts=options["pass_texts"],
        docs=not options["no_docs"],
        **limits,
    )


async def _serve(app: App, settings: Settings, options: dict[str, Any], make_workers: MakeWorkers) -> int:
    from treadle.server import GRACE, OPEN_PATHS, PORT, Bounds, Serving, dashboard_routes, make_site, open_if_there
    from treadle.worker import Signals

    stopping, named = Stopping(), options.get("protocols", ())
    first, tries = protocol(named[0]).ports if named else (PORT, options.get("tries", 1))
    if options["port"] is not None:
        first, tries = options["port"], 1
    with Signals(asyncio.get_running_loop(), stopping):
        # Before the socket is opened, so that an error of the storage that waiting cannot fix ends the command.
        async with AsyncExitStack() as guests, open_if_there(app, options.get("waits", True)) as away:
            routes: list[ProtocolRoutes] = [dashboard_routes()] if options["dashboard"] else []
            for guest in all_protocols():
                routes += await guests.enter_async_context(guest.served(options))
            site = make_site(
                app, settings, routes, options.get("api", True), OPEN_PATHS if options["dashboard"] else ()
            )
            serving = Serving(
                site,
                host=options["host"],
                port=first,
                tries=tries,
                tls=(options["tls_cert"], options["tls_key"]) if options["tls_cert"] else None,
                on_stop=site.state.waiting.stop,
                bounds=Bounds(connections=options["connections"]),
            )
            async with serving, AsyncExitStack() as announcements:
                for guest in all_protocols():
                    await announcements.enter_async_context(guest.announced(options, serving))
                where = place(app.url, "a storage of the app")
                note(f"treadle: {serving.url} ({_who(settings, serving)}); jobs live in {where}")
                if away is not None:
                    note(f"treadle: the storage is unavailable ({away}); retrying, and answering 503 until it is back")
                elif (moved := await move_of(app)) is not None:
                    note(f"treadle: {moved}")
                if options["dashboard"]:
                    note(f"treadle: the dashboard is at {serving.url}/dashboard/")
                company = make_workers(stopping, serving)
                site.state.probes.verdict = lambda: company.verdict
                # It takes $NOTIFY_SOCKET out of the environment before worker processes inherit it.
                reporter = HealthReporter(probes_of(None, options.get("health_file")), lambda: company.verdict)
                async with reporter, AsyncExitStack() as beside_it:
                    async with event_loop.until(stopping.asked):  # also while workers wait for the storage
                        await beside_it.enter_async_context(company)
                    await stopping.asked.wait()
                    note("treadle: stopping")
                    reporter.stopping(GRACE + defaults.LEASE + (options.get("grace") or defaults.GRACE))
    note("treadle: stopped")
    return company.code


def _who(settings: Settings, serving: Serving) -> str:
    """Describes the access to the server in its first output: the tokens, or the clients that need none."""
    from treadle.server.auth.tokens import in_short

    if settings.has_tokens:
        return "tokens: " + "; ".join(map(in_short, settings.current()))
    if is_loopback(serving.host):
        return "no tokens: every program on this machine has access"
    return f"no tokens: every program that can reach {serving.host} port {serving.port} has access"


def _log(quiet: bool) -> None:
    simple("%(asctime)s %(levelname)s %(name)s: %(message)s")
    logging.getLogger("uvicorn").setLevel(logging.WARNING)
    logging.getLogger("treadle.access").setLevel(logging.WARNING if quiet else logging.INFO)
