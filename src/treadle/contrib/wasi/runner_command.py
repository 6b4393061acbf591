"""`treadle wasi runner`: runs the jobs of a queue of sandboxed modules."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import click

from treadle.cli.options import number
from treadle.cli.output import UNREACHABLE, USAGE, Stop, note, plural, seconds
from treadle.contrib.wasi.command import FIND, Queue, needs_client, to_server
from treadle.core.redaction import shown
from treadle.worker.logs import simple

if TYPE_CHECKING:
    from treadle.contrib.discovery import Whereabouts


@click.command(name="runner")
@to_server
@number("--slots", default=1, show_default=True, help="Number of modules that run at the same time.")
@click.option("--wall", type=seconds, default="60", show_default=True, help="Seconds that one run may take.")
@click.option(
    "--memory",
    type=click.IntRange(65_536),
    default=256 * 2**20,
    show_default=True,
    help="Bytes of memory for each run.",
)
@number("--output", default=128 * 2**20, show_default=True, help="Bytes that one run may write.")
@number("--module", default=64 * 2**20, show_default=True, help="Bytes of the largest module.")
@number("--input", default=256 * 2**20, show_default=True, help="Bytes of the largest input.")
@number(
    "--compiler",
    default=512 * 2**20,
    show_default=True,
    help="Bytes of memory for compiling a module, in addition to --memory; only on Linux.",
)
@click.option(
    "--tickle",
    type=seconds,
    default="60",
    show_default=True,
    help="Seconds between heartbeats; fewer if the queue counts a runner as gone before it misses four of them.",
)
@click.option(
    "--grace",
    type=seconds,
    default="30",
    show_default=True,
    help="Seconds that runs get to finish when the runner stops.",
)
def wasi_runner(queue: Queue, slots: int, tickle: float, grace: float, **bounds: Any) -> None:
    """Claim jobs of the queue and run their modules, each in its own process without files or network.

    Without --server it uses the first queue that is announced on the local network, and finds it again when it moves.
    After SIGTERM or Ctrl-C it claims no more jobs, waits up to --grace for runs to end, then kills them and releases
    their jobs.
    """
    needs_wasmtime()
    from treadle.contrib.wasi import Bounds
    from treadle.contrib.wasi.client import Client
    from treadle.contrib.wasi.runner import Runner
    from treadle.worker import Signals

    simple("%(asctime)s %(levelname)s %(message)s")

    async def look() -> tuple[str, str] | None:
        whereabouts = await _look()
        return None if whereabouts is None else (whereabouts.queue, queue.store or whereabouts.store)

    async def work() -> None:
        place = (queue.server, queue.store) if queue.server is not None else await _first(queue.store)
        find = None if queue.server is not None else look
        queue.note_withheld(place[0])
        token, store_token = queue.tokens()
        async with Client(place[0], token, place[1], find=find, store_token=store_token) as client:
            runner = Runner(client, Bounds(**bounds), slots, tickle, grace)
            with Signals(asyncio.get_running_loop(), runner.stop):
                note(f"treadle: runner {runner.id} with {plural(slots, 'slot')}, for {shown(place[0])}")
                await runner.run()
        note("treadle: stopped")

    asyncio.run(work())


def needs_wasmtime() -> None:
    """Raise Stop if a package for running modules is missing."""
    needs_client()
    try:
        import wasmtime  # noqa: F401
    except ImportError as error:
        raise Stop(USAGE, f"this command needs: pip install 'wasmtime>=30' 'aiohttp>=3.11' ({error})") from None


async def _look() -> Whereabouts | None:
    from treadle.contrib.discovery import NoMulticast, find, place

    try:
        return await find(FIND, place())
    except NoMulticast as error:
        raise Stop(UNREACHABLE, f"name the queue with --server URL or TREADLE_SERVER: {error}") from None


async def _first(store: str | None) -> tuple[str, str]:
    """Wait for the first announced queue, without a time limit: queues may start after their runners."""
    is_noted = False
    while True:
        whereabouts = await _look()
        if whereabouts is not None:
            return whereabouts.queue, store or whereabouts.store
        if not is_noted:
            note("treadle: waiting until a queue is announced on the local network; --server URL names one")
        is_noted = True
