"""`treadle wasi`: sends sandboxed modules to a queuey server, and manages their jobs and blobs."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import os
import sys
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

import click

from treadle.cli.group import Group, Lazy
from treadle.cli.output import FAILED, UNREACHABLE, USAGE, Stop, as_json, data, document, facts, note, seconds, table
from treadle.core.redaction import shown

if TYPE_CHECKING:
    from treadle.contrib.wasi.client import Client, QueueJob

T = TypeVar("T")

RUNNER: Lazy = {"runner": ("treadle.contrib.wasi.runner_command:wasi_runner", "Run the sandboxed modules of a queue.")}
FIND: Final = 5.0  # s to search the local network for a queue


class Queue:
    """The queue and the blob store that the user named. Discovered servers get no token without --trust-discovered."""

    def __init__(self, server: str | None, store: str | None, trusted: bool) -> None:
        self.server, self.store, self._trusted = server, store, trusted

    def tokens(self) -> tuple[str | None, str | None]:
        """The tokens for the queue, and for a store of another origin."""
        from treadle.core import config

        trusts_queue = self.server is not None or self._trusted
        trusts_store = trusts_queue or self.store is not None
        return config.token() if trusts_queue else None, config.store_token() if trusts_store else None

    def note_withheld(self, url: str) -> None:
        """Print a note if there is a token that a discovered queue does not get."""
        from treadle.core import config

        if config.token() is not None and self.tokens()[0] is None:
            note(
                f"treadle: {shown(url)} was found by discovery, which any machine can answer, so it does not get "
                "TREADLE_TOKEN. Name the queue with --server URL, or give --trust-discovered"
            )


def to_server(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add --server, --store and --trust-discovered to a command, which receives a Queue as `queue`."""

    @click.option(
        "--server",
        envvar=["TREADLE_SERVER", "SERVAL_NODE_URL"],
        metavar="URL",
        help="URL of the queue. [default: the first one that answers on the local network]",
    )
    @click.option(
        "--store",
        envvar="TREADLE_STORE",
        metavar="URL",
        help="URL of the blob store. A store of another origin gets only TREADLE_STORE_TOKEN. [default: the queue's]",
    )
    @click.option(
        "--trust-discovered",
        "trusted",
        is_flag=True,
        envvar="TREADLE_TRUST_DISCOVERED",
        help="Send the token also to a queue that discovery found, which may be any machine of the network.",
    )
    @functools.wraps(command)
    def with_queue(server: str | None, store: str | None, trusted: bool, **rest: Any) -> Any:
        return command(queue=Queue(server, store, trusted), **rest)

    return with_queue


def _with(queue: Queue, act: Callable[[Client], Awaitable[T]]) -> T:
    """Call `act` with a client of the queue."""
    needs_client()

    async def work() -> T:
        async with _client(queue) as client:
            return await act(client)

    return asyncio.run(work())


@contextlib.asynccontextmanager
async def _client(queue: Queue) -> AsyncIterator[Client]:
    """A client of the named server, else of the first one that discovery finds. Raises Stop if there is none."""
    from treadle.contrib.discovery import NoMulticast, find, place
    from treadle.contrib.wasi.client import Client

    server, store = queue.server, queue.store
    if server is None:
        try:
            whereabouts = await find(FIND, place())
        except NoMulticast as error:
            raise Stop(UNREACHABLE, f"name the queue with --server URL or TREADLE_SERVER: {error}") from None
        if whereabouts is None:
            problem = f"no queue answered on the local network within {FIND:g} s"
            raise Stop(UNREACHABLE, f"{problem}; name one with --server URL or TREADLE_SERVER")
        server, store = whereabouts.queue, store or whereabouts.store
        queue.note_withheld(server)
    token, store_token = queue.tokens()
    async with Client(server, token, store, patient=False, store_token=store_token) as client:
        yield client


def needs_client() -> None:
    try:
        import aiohttp  # noqa: F401
    except ImportError as error:
        raise Stop(
            USAGE, f"this command needs the extra: pip install 'wasmtime>=30' 'aiohttp>=3.11' ({error})"
        ) from None


@click.group(cls=Group, lazy=RUNNER)
def wasi() -> None:
    """Send sandboxed modules to a queue (`treadle server --protocol queuey`), and fetch their output."""


@wasi.command()
@as_json
@click.option(
    "--timeout", type=seconds, default="2", show_default=True, metavar="SECONDS", help="Seconds to search for."
)
def discover(json_: bool, timeout: float) -> int:
    """List the queues and blob stores that are announced on the local network. Exit code 1 if there are none."""
    from treadle.contrib.discovery import BLOBS, QUEUES, Browser, NoMulticast, place

    async def look() -> list[tuple[str, str, str, str]]:
        async with Browser((*QUEUES, *BLOBS), place()) as browser:
            services = await browser.until(lambda all: False, timeout)
        return [
            (service.type, service.url, service.instance, service.properties.get("version", "")) for service in services
        ]

    try:
        rows = asyncio.run(look())
    except NoMulticast as error:
        raise Stop(UNREACHABLE, str(error)) from None
    names = ("type", "url", "instance", "version")
    if json_:
        document([dict(zip(names, row, strict=True)) for row in rows])
    else:
        table(names, rows, "nothing is announced on the local network")
    return 0 if rows else FAILED


@wasi.command()
@to_server
def ping(queue: Queue) -> None:
    """Check that the queue answers, and print its reply."""
    data(_with(queue, lambda client: client.ping()))


@wasi.command()
@to_server
@click.argument("file", type=click.Path(exists=True, dir_okay=False, allow_dash=True))
def put(queue: Queue, file: str) -> None:
    """Store FILE (- for stdin) as a blob and print its address."""
    data(_with(queue, lambda client: _put(client, file)))


@wasi.command()
@to_server
@click.argument("address")
@click.argument("out", default="-")
def get(queue: Queue, address: str, out: str) -> None:
    """Write the blob at ADDRESS to OUT, or to stdout."""
    _with(queue, lambda client: _bring(client, address, out))


@wasi.command()
@to_server
@click.argument("binary")
@click.argument("input", metavar="[INPUT]", required=False)
def enqueue(queue: Queue, binary: str, input: str | None) -> None:
    """Enqueue a job that runs BINARY on INPUT, each a file or an address, and print its id."""

    async def send(client: Client) -> str:
        return (await _create(client, binary, input)).job_id

    data(_with(queue, send))


@wasi.command()
@to_server
@click.option("--timeout", type=seconds, metavar="SECONDS", help="Seconds to wait at most. [default: no limit]")
@click.argument("binary")
@click.argument("input", metavar="[INPUT]", required=False)
@click.argument("out", metavar="[OUTPUT]", default="-")
def run(queue: Queue, timeout: float | None, binary: str, input: str | None, out: str) -> int:
    """Run BINARY on INPUT as a job and write its output to OUTPUT, or to stdout. Exit code 1 if the job fails."""

    async def work(client: Client) -> int:
        job = await _create(client, binary, input)
        note(job.job_id)
        try:
            async with asyncio.timeout(timeout):
                while job.status in ("pending", "active"):
                    await asyncio.sleep(0.2)
                    job = await client.get(job.job_id)
        except TimeoutError:
            raise Stop(FAILED, f"{job.job_id} is {job.status} after {timeout:g} s, and continues") from None
        return await _result(client, job, out)

    return _with(queue, work)


@wasi.command()
@to_server
@as_json
@click.argument("id")
def status(queue: Queue, json_: bool, id: str) -> None:
    """Show a job."""
    job = _with(queue, lambda client: client.get(id))
    if json_:
        document(job)
    else:
        facts([(name, getattr(job, name)) for name in job.__struct_fields__])


@wasi.command()
@to_server
@click.argument("id")
@click.argument("out", default="-")
def result(queue: Queue, id: str, out: str) -> int:
    """Write the output of an ended job to OUT, or to stdout."""

    async def work(client: Client) -> int:
        return await _result(client, await client.get(id), out)

    return _with(queue, work)


@wasi.command(name="list")
@to_server
@as_json
@click.option("--status", type=click.Choice(("pending", "active", "completed", "failed")))
def list_(queue: Queue, json_: bool, status: str | None) -> None:
    """List the jobs of the queue, oldest first."""
    jobs = _with(queue, lambda client: client.list(status))
    if json_:
        document(jobs)
    else:
        rows = [(job.job_id, job.status, job.run_attempts, job.binary_addr[:12]) for job in jobs]
        table(("id", "status", "attempts", "binary"), rows, "no jobs")


async def _create(client: Client, binary: str, input: str | None) -> QueueJob:
    module = await _address(client, binary)
    return await client.create(module, None if input is None else await _address(client, input))


async def _address(client: Client, text: str) -> str:
    """The address of a blob. A file is stored first; any other text must be an address."""
    from treadle.blobs import BadAddress, address_of

    if text == "-" or os.path.isfile(text):  # noqa: ASYNC240  # nothing else runs on the loop yet
        return await _put(client, text)
    try:
        return address_of(text)
    except BadAddress:
        raise Stop(USAGE, f"expected a file or the address of a blob, found {text!r}") from None


async def _put(client: Client, text: str) -> str:
    if text != "-":
        return await client.put(Path(text))
    with tempfile.NamedTemporaryFile() as file:
        file.write(sys.stdin.buffer.read())
        file.flush()
        return await client.put(Path(file.name))


async def _result(client: Client, job: QueueJob, out: str) -> int:
    if job.status in ("pending", "active"):
        raise Stop(FAILED, f"{job.job_id} has no output yet: it is {job.status}")
    if job.output_addr is None:
        raise Stop(FAILED, f"{job.job_id} has no output: it {job.status} after {job.run_attempts} attempts")
    if job.status == "failed":
        note(f"treadle: {job.job_id} failed; its report:")
    await _bring(client, job.output_addr, out if job.status == "completed" else "-")
    return 0 if job.status == "completed" else FAILED


async def _bring(client: Client, address: str, out: str) -> None:
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "blob")
        await client.fetch(address, file)
        _deliver(file, out)


def _deliver(file: Path, out: str) -> None:
    """Write the output to a file, renamed into place, or to stdout. Raises Stop for binary output on a terminal."""
    content = file.read_bytes()
    if out != "-":
        part = Path(f"{out}.part")
        part.write_bytes(content)
        part.replace(out)
        return
    if sys.stdout.isatty() and b"\0" in content:
        raise Stop(USAGE, "the output is binary: give a file as OUTPUT")
    sys.stdout.buffer.write(content)
    sys.stdout.buffer.flush()
