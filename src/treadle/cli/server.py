"""`treadle server`: jobs over HTTP; and what `treadle up` needs of it, which runs workers beside.

Without it a server would need a script of its own, and each would bind, log and stop in another way.
"""

from __future__ import annotations

import asyncio
import ipaddress
import logging
from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Protocol

import click

from treadle.cli import event_loop
from treadle.cli.announce import announced, kinds_of
from treadle.cli.logs import simple
from treadle.cli.output import USAGE, Stop, note, place, seconds
from treadle.cli.target import Target, move_of, targeted
from treadle.core.redaction import shown

if TYPE_CHECKING:
    from treadle.app import App
    from treadle.blobs import Blobs
    from treadle.server import Serving, Settings
    from treadle.server.app import Face

TENDERS: Final = 4  # jobs of our own at once; each takes a moment


def serving(command: Callable[..., Any]) -> Callable[..., Any]:
    """The options of everything that listens."""
    options = [
        click.option(
            "--host",
            envvar="TREADLE_HOST",
            help="The address to listen on [127.0.0.1; with --face and --tokens 0.0.0.0].",
        ),
        click.option(
            "--port", type=click.IntRange(0, 65535), envvar="TREADLE_PORT", help="The port [7373]; 0: any free one."
        ),
        click.option(
            "--tokens",
            type=click.Path(dir_okay=False, path_type=Path),
            envvar="TREADLE_TOKENS",
            metavar="FILE",
            help="Who may do what; `treadle token` makes it.",
        ),
        click.option("--open", "open_", is_flag=True, help="Listen beyond this machine without tokens."),
        click.option(
            "--allow-host",
            "hosts",
            multiple=True,
            metavar="NAME",
            envvar="TREADLE_ALLOW_HOST",
            help="Also answer to this host name; .example.org is every name below it.",
        ),
        click.option("--origin", "origins", multiple=True, help="Web pages of this origin may call it."),
        click.option("--rate", type=click.FloatRange(0, min_open=True), help="Requests a second for each token."),
        click.option("--requests", type=click.IntRange(1), help="Requests under way for each token [512]."),
        click.option(
            "--connections",
            type=click.IntRange(1),
            help="Connections at once [three quarters of what ulimit -n allows, at most 10000].",
        ),
        click.option("--max-body", type=click.IntRange(1_000), help="Bytes of one request [33554432]."),
        click.option("--timeout", type=seconds, metavar="SECONDS", help="Seconds for one answer [30]."),
        click.option("--tls-cert", type=click.Path(exists=True, dir_okay=False), help="Speak TLS: the certificate."),
        click.option("--tls-key", type=click.Path(exists=True, dir_okay=False), help="... and its key."),
        click.option("--no-docs", is_flag=True, help="No /docs and no /v1/openapi.json."),
        click.option("--quiet", is_flag=True, help="No line for each request."),
    ]
    for option in reversed(options):
        command = option(command)
    return command


@click.command()
@targeted
@click.option(
    "--face", "faces", multiple=True, type=click.Choice(("queuey", "delayed")), help="Speak another system's protocol."
)
@click.option("--api", is_flag=True, help="With --face: serve /v1 as well.")
@click.option("--abandoned-age", type=seconds, metavar="SECONDS", help="queuey: silence that means gone [300].")
@click.option("--max-attempts", type=click.IntRange(1), help="queuey: attempts before a job fails [3].")
@click.option("--abandon-counting", type=click.Choice(("literal", "claims")), help="queuey: what counts [literal].")
@click.option("--verify-addresses", is_flag=True, help="queuey: take a job only if its blobs are here.")
@click.option(
    "--blobs",
    metavar="PLACE",
    help="Serve content-addressed blobs from a folder, or s3://bucket/prefix?endpoint=URL [treadle-blobs with --face "
    "queuey].",
)
@click.option("--max-blob", type=click.IntRange(1), help="Bytes of the largest blob [268435456].")
@click.option("--sha1", is_flag=True, help="Find blobs that are put from now on by their SHA-1 as well.")
@click.option(
    "--discovery/--no-discovery", default=None, help="Announce queue and blobs by multicast DNS [with --face queuey]."
)
@serving
def server(target: Target, faces: tuple[str, ...], api: bool, **options: Any) -> int:
    """Serve jobs over HTTP: the API and the worker protocol under /v1, its description at /docs.

    Programs elsewhere use it as their storage: App("http://host:7373"). With --face queuey it is the HTTP queue of
    WASI jobs instead, on the first free port from 1717; with --face delayed it takes delayed jobs by POST / on port
    8080. Without --tokens these listen on this machine only; --host 0.0.0.0 opens them. Ctrl-C or SIGTERM: finish what
    is being answered, then stop.
    """
    if "delayed" in faces:
        from treadle.cli.delivery_options import redis_url

        target.fall_back(redis_url())
    return run_server(target, {**options, "faces": faces, "api": api or not faces}, lambda *_: Tending(target.app))


class Stopping:
    """What signals have said: to stop, and to be quick about it."""

    def __init__(self) -> None:
        self.asked, self.again = asyncio.Event(), asyncio.Event()

    def __call__(self) -> None:
        """A signal."""
        if self.asked.is_set():
            self.again.set()
        self.asked.set()


class Company(AbstractAsyncContextManager[Any], Protocol):
    """What runs beside a server while it serves, and the exit code it comes to."""

    code: int


Beside = Callable[[Stopping, int], Company]  # called with the port, once there is one


class Tending:
    """Beside a server alone: what is nobody's job. Old rows go, schedules tick, compositions end, also where all
    runners are of another language. Several servers over one storage agree on one of them."""

    code = 0

    def __init__(self, app: App) -> None:
        from treadle.worker import Worker

        self._worker = Worker(app, concurrency=TENDERS, tasks=(), role="auto")

    async def __aenter__(self) -> None:
        await self._worker.start()

    async def __aexit__(self, *_: object) -> None:
        await self._worker.stop()


def run_server(target: Target, options: dict[str, Any], beside: Beside) -> int:
    """Serve until a signal, or until what runs beside the server has ended; the exit code."""
    try:
        import starlette  # noqa: F401  # an extra: said in one line if it is not there
        import uvicorn  # noqa: F401
    except ImportError as error:
        raise Stop(
            USAGE,
            f"the server needs its extra: pip install 'starlette>=0.45' 'uvicorn>=0.34' ({error})",
        ) from None
    faces = options.get("faces", ())
    if "delayed" in faces:
        from treadle.cli.delivery_options import listening

        listening(options)
    has_tokens = options["tokens"] is not None
    options["host"] = options["host"] or ("0.0.0.0" if faces and has_tokens else "127.0.0.1")
    settings = _settings(options)
    is_open = options["open_"] or not options.get("api", True)  # a face is as open as what it speaks for
    if bool(options["tls_cert"]) != bool(options["tls_key"]):
        raise Stop(USAGE, "--tls-cert and --tls-key go together")
    if not settings.tokens and not is_open and not _is_loopback(options["host"]):
        words = "anybody who reaches it could do anything: give --tokens FILE (`treadle token` makes it), or --open"
        raise Stop(USAGE, f"--host {options['host']} is open to other machines; {words}")
    _log(options["quiet"])
    target.check_there(make=True)
    return event_loop.run(_serve(target.app, settings, options, beside))


def _settings(options: dict[str, Any]) -> Settings:
    from treadle.cli.tokens import read_tokens
    from treadle.server import Settings

    numbers = ("rate", "requests", "max_body", "timeout")
    given = {name: options[name] for name in numbers if options[name] is not None}
    tokens = read_tokens(options["tokens"]) if options["tokens"] is not None else ()
    if options["tokens"] is not None and not tokens:
        raise Stop(USAGE, f"{options['tokens']} has no tokens; make one: `treadle token NAME`")
    hosts = tuple(each.lower() for each in options["hosts"])
    if not _is_address(options["host"]):
        hosts += (options["host"].lower(),)  # the name it listens on is one of its own
    return Settings(tokens=tokens, hosts=hosts, origins=options["origins"], docs=not options["no_docs"], **given)


async def _serve(app: App, settings: Settings, options: dict[str, Any], beside: Beside) -> int:
    from treadle.server import Bounds, Serving, make_site
    from treadle.server.settings import PORT, PORTS
    from treadle.worker.os_signals import Signals

    stopping, named, kinds = Stopping(), options.get("faces", ()), kinds_of(options)
    first, tries = PORTS[named[0]] if named else (PORT, 1)
    if options["port"] is not None:
        first, tries = options["port"], 1
    blobs = _blobs(options, "queuey" in named)
    site = make_site(app, settings, _faces(named, options, blobs), options.get("api", True))
    with Signals(asyncio.get_running_loop(), stopping):
        async with app:  # before the socket: a storage that is away is said in one line
            serving = Serving(
                site,
                host=options["host"],
                port=first,
                tries=tries,
                certificate=options["tls_cert"],
                key=options["tls_key"],
                on_stop=site.state.waiting.send_home,
                bounds=Bounds(connections=options["connections"]),
            )
            async with serving, announced(kinds, serving):
                where = place(app.url, "a storage of the app")
                note(f"treadle: {serving.url} ({_who(settings, serving)}); jobs live in {where}")
                if (moved := await move_of(app)) is not None:
                    note(f"treadle: {moved}")
                company = beside(stopping, serving.port)
                async with company:
                    await stopping.asked.wait()
                    note("treadle: stopping")
    if blobs is not None:
        await blobs.close()
    note("treadle: stopped")
    return company.code


def _who(settings: Settings, serving: Serving) -> str:
    """Who may use it, for the greeting."""
    from treadle.server.auth.tokens import in_short

    if settings.tokens:
        return "tokens: " + "; ".join(map(in_short, settings.tokens))
    if _is_loopback(serving.host):
        return "no tokens: open to everybody on this machine"
    return f"no tokens: open to everybody who can reach {serving.host} port {serving.port}"


def _faces(named: Sequence[str], options: dict[str, Any], blobs: Blobs | None) -> list[Face]:
    """What is served beside the API, or instead of it."""
    found: list[Face] = []
    if "queuey" in named:
        from treadle.compat.queuey.app import queue_face
        from treadle.compat.queuey.jobs import Rules

        given = {
            "abandoned_age": options["abandoned_age"],
            "max_attempts": options["max_attempts"],
            "counting": options["abandon_counting"],
        }
        rules = Rules(
            **{word: value for word, value in given.items() if value is not None},
            verify_addresses=options["verify_addresses"],
        )
        found.append(queue_face(rules, blobs))
    if blobs is not None:
        from treadle.compat.queuey.blobs import blob_face

        found.append(blob_face(blobs))
    if "delayed" in named:  # last: it answers every other path in words of its own
        from treadle.compat.delayed.app import delayed_face

        found.append(delayed_face())
    return found


def _blobs(options: dict[str, Any], has_queue: bool) -> Blobs | None:
    """The store for blobs, if one is to be served."""
    place = options.get("blobs") or ("treadle-blobs" if has_queue else None)
    if place is None:
        return None
    from treadle import blobs

    limit = options["max_blob"] or blobs.MOST
    note(f"treadle: blobs live in {shown(place) if '://' in place else place}")
    if not place.startswith("s3:"):
        return blobs.DirectoryBlobs(place, limit, options["sha1"])
    try:
        found: Blobs = blobs.S3Blobs.at(place, limit, options["sha1"])
    except ImportError as error:
        raise Stop(USAGE, f"blobs in a bucket need the extra: pip install 'aiohttp>=3.11' ({error})") from None
    return found


def _is_loopback(host: str) -> bool:
    from treadle.server.origins import is_loopback

    return is_loopback(host)


def _is_address(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True


def _log(quiet: bool) -> None:
    simple("%(asctime)s %(levelname)s %(name)s: %(message)s")
    logging.getLogger("uvicorn").setLevel(logging.WARNING)
    logging.getLogger("treadle.access").setLevel(logging.WARNING if quiet else logging.INFO)
