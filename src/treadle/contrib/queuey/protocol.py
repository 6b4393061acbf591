"""The queue protocol, as the commands serve it: its options, its blobs, and a runner in the process of the server."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from typing import TYPE_CHECKING, Any, Final, Self

import click

from treadle.cli.options import Command, added
from treadle.cli.output import USAGE, Stop, note, plural, seconds
from treadle.cli.protocols import GuestProtocol, ServerWorkers, Stopping
from treadle.core.redaction import shown

if TYPE_CHECKING:
    from treadle.blobs import Blobs
    from treadle.server import ProtocolRoutes, Serving

OPTIONS: Final = added(
    click.option(
        "--abandoned-age",
        type=seconds,
        metavar="SECONDS",
        help="queuey: seconds of silence after which a runner counts as gone. [default: 300]",
    ),
    click.option("--max-attempts", type=click.IntRange(1), help="queuey: attempts before a job fails. [default: 3]"),
    click.option(
        "--abandon-counting",
        type=click.Choice(("literal", "claims")),
        help="queuey: 'literal' counts claims and abandonments as attempts, 'claims' only claims. [default: literal]",
    ),
    click.option("--verify-addresses", is_flag=True, help="queuey: refuse a job whose blobs are missing."),
    click.option(
        "--blobs",
        metavar="PLACE",
        help="Serve content-addressed blobs from a folder, or s3://bucket/prefix?endpoint=URL. [default: treadle-blobs "
        "with --protocol queuey]",
    ),
    click.option("--max-blob", type=click.IntRange(1), help="Bytes of the largest blob. [default: 268435456]"),
    click.option("--sha1", is_flag=True, help="Index new blobs by their SHA-1 as well."),
    click.option(
        "--discovery/--no-discovery",
        default=None,
        help="Announce queue and blobs by multicast DNS. [default: only with --protocol queuey]",
    ),
)


class Queuey(GuestProtocol):
    ports = (1717, 100)

    def server_options(self, command: Command) -> Command:
        return OPTIONS(command)

    @asynccontextmanager
    async def served(self, options: Mapping[str, Any]) -> AsyncIterator[Sequence[ProtocolRoutes]]:
        _kinds_of(options)  # raises Stop for --discovery without a service
        has_queue = "queuey" in options.get("protocols", ())
        blobs = _blobs(options, has_queue)
        try:
            yield _routes(options, has_queue, blobs)
        finally:
            if blobs is not None:
                await blobs.close()

    def announced(self, options: Mapping[str, Any], serving: Serving) -> AbstractAsyncContextManager[None]:
        return _announced(_kinds_of(options), serving)

    def check_workers(self) -> None:
        from treadle.contrib.wasi.runner_command import needs_wasmtime

        needs_wasmtime()

    def workers(self, options: Mapping[str, Any], port: int, slots: int, stopping: Stopping) -> list[ServerWorkers]:
        return [Modules(options, port, slots, stopping)]


def _kinds_of(options: Mapping[str, Any]) -> tuple[str, ...]:
    """The kinds of service to announce. Raises Stop for --discovery on a server that has none."""
    has_queue = "queuey" in options.get("protocols", ())
    wanted = options.get("discovery")
    if not (has_queue if wanted is None else wanted):
        return ()
    from treadle.contrib.discovery import BLOBS, QUEUES

    kinds = (*(QUEUES if has_queue else ()), *(BLOBS if has_queue or options.get("blobs") else ()))
    if not kinds:
        raise Stop(USAGE, "--discovery needs a queue or blobs to announce: give --protocol queuey, or --blobs")
    return kinds


@asynccontextmanager
async def _announced(kinds: tuple[str, ...], serving: Serving) -> AsyncIterator[None]:
    """Announce the services until the block ends. Without multicast, print a note and go on."""
    async with AsyncExitStack() as stack:
        if kinds:
            import treadle
            from treadle.contrib.discovery import Announcement, NoMulticast, place

            properties = {"http_port": str(serving.port), "version": treadle.__version__}
            if serving.scheme == "https":
                properties["scheme"] = "https"
            try:
                announcement = Announcement(kinds, serving.host, serving.port, properties, place())
                await stack.enter_async_context(announcement)
                note(f"treadle: announced on the local network as {announcement.instance}")
            except NoMulticast as error:
                note(f"treadle: not announced on the local network: {error}")
        yield


def _routes(options: Mapping[str, Any], has_queue: bool, blobs: Blobs | None) -> list[ProtocolRoutes]:
    routes: list[ProtocolRoutes] = []
    if has_queue:
        from treadle.contrib.queuey.app import queue_routes
        from treadle.contrib.queuey.jobs import Rules

        settings = {
            "abandoned_age": options["abandoned_age"],
            "max_attempts": options["max_attempts"],
            "counting": options["abandon_counting"],
        }
        rules = Rules(
            **{word: value for word, value in settings.items() if value is not None},
            verify_addresses=options["verify_addresses"],
        )
        routes.append(queue_routes(rules, blobs))
    if blobs is not None:
        from treadle.contrib.queuey.blobs import blob_routes

        routes.append(blob_routes(blobs))
    return routes


def _blobs(options: Mapping[str, Any], has_queue: bool) -> Blobs | None:
    """The blob store to serve, or None."""
    place = options.get("blobs") or ("treadle-blobs" if has_queue else None)
    if place is None:
        return None
    from treadle import blobs

    limit = options["max_blob"] or blobs.MOST
    note(f"treadle: blobs live in {shown(place) if '://' in place else place}")
    if not place.startswith("s3:"):
        return blobs.DirectoryBlobs(place, limit, options["sha1"])
    try:
        store: Blobs = blobs.S3Blobs.at(place, limit, options["sha1"])
    except ImportError as error:
        raise Stop(USAGE, f"blobs in a bucket need the extra: pip install 'aiohttp>=3.11' ({error})") from None
    return store


class Modules(ServerWorkers):
    """A WASI runner for the queue of this server."""

    def __init__(self, options: Mapping[str, Any], port: int, slots: int, stopping: Stopping) -> None:
        host = "127.0.0.1" if options["host"] in ("0.0.0.0", "::") else options["host"]
        scheme = "https" if options["tls_cert"] else "http"
        self._url = f"{scheme}://{f'[{host}]' if ':' in host else host}:{port}"
        self._slots, self._stopping = slots, stopping

    async def __aenter__(self) -> Self:
        from treadle.contrib.wasi import Bounds
        from treadle.contrib.wasi.client import Client
        from treadle.contrib.wasi.runner import Runner
        from treadle.core import config

        self._client = await Client(self._url, config.token(), None, patient=True).__aenter__()
        self._runner = Runner(self._client, Bounds(), self._slots)
        self._running = asyncio.create_task(self._runner.run())
        self._running.add_done_callback(lambda _: self._stopping.asked.set())
        note(f"treadle: runner {self._runner.id} with {plural(self._slots, 'slot')}")
        return self

    async def __aexit__(self, *_: object) -> None:
        self._runner.stop()
        try:
            await self._running
        finally:
            await self._client.__aexit__(None, None, None)


PROTOCOL: Final = Queuey()
