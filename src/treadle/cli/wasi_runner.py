"""`treadle wasi-runner`: works for a queue of sandboxed modules.

Without it whoever wants to run modules would write a program around the library first.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import click

from treadle.cli.logs import simple
from treadle.cli.output import UNREACHABLE, USAGE, Stop, note, seconds
from treadle.cli.wasi import FIND, Queue, needs_client, to_server
from treadle.core.redaction import shown

if TYPE_CHECKING:
    from treadle.discovery import Whereabouts


@click.command(name="wasi-runner")
@to_server
@click.option("--slots", type=click.IntRange(1), default=1, show_default=True, help="Modules at once.")
@click.option("--wall", type=seconds, default="60", show_default=True, help="Seconds one run may take.")
@click.option("--memory", type=click.IntRange(65_536), default=256 * 2**20, show_default=True, help="Bytes of memory.")
@click.option("--output", type=click.IntRange(1), default=128 * 2**20, show_default=True, help="Bytes it may write.")
@click.option("--module", type=click.IntRange(1), default=64 * 2**20, show_default=True, help="Bytes of a module.")
@click.option("--input", type=click.IntRange(1), default=256 * 2**20, show_default=True, help="Bytes of an input.")
@click.option(
    "--compiler",
    type=click.IntRange(1),
    default=512 * 2**20,
    show_default=True,
    help="Bytes of memory for compiling a module, beside --memory; on Linux.",
)
@click.option(
    "--tickle",
    type=seconds,
    default="60",
    show_default=True,
    help="Seconds between signs of life; less if the queue counts a runner as gone sooner than after four of them.",
)
@click.option(
    "--grace", type=seconds, default="30", show_default=True, help="Seconds that runs get to end when it is stopped."
)
def wasi_runner(queue: Queue, slots: int, tickle: float, grace: float, **bounds: Any) -> int:
    """Claim jobs of the queue and run their modules, each in a process of its own: no files, no network.

    Without --server it works for the first queue that is announced on the local network, and follows it when it
    moves. SIGTERM or Ctrl-C: claim no more, let runs end within --grace, then kill them and hand their jobs back.
    """
    needs_wasmtime()
    from treadle.wasi import Bounds
    from treadle.wasi.client import Client
    from treadle.wasi.runner import Runner
    from treadle.worker.os_signals import Signals

    simple("%(asctime)s %(levelname)s %(message)s")

    async def look() -> tuple[str, str] | None:
        found = await _look()
        return None if found is None else (found.queue, queue.store or found.store)

    async def work() -> None:
        place = (queue.server, queue.store) if queue.server is not None else await _first(queue.store)
        find = None if queue.server is not None else look
        queue.note_withheld(place[0])
        token, store_token = queue.tokens()
        async with Client(place[0], token, place[1], find=find, store_token=store_token) as client:
            runner = Runner(client, Bounds(**bounds), slots, tickle, grace)
            with Signals(asyncio.get_running_loop(), runner.stop):
                note(f"treadle: runner {runner.id}, {slots} at once, for {shown(place[0])}")
                await runner.run()
        note("treadle: stopped")

    asyncio.run(work())
    return 0


def needs_wasmtime() -> None:
    """Raise Stop if no module could be run here."""
    needs_client()
    try:
        import wasmtime  # noqa: F401
    except ImportError as error:
        raise Stop(USAGE, f"this needs: pip install 'wasmtime>=30' 'aiohttp>=3.11' ({error})") from None


async def _look() -> Whereabouts | None:
    from treadle.discovery import NoMulticast, find, place

    try:
        return await find(FIND, place())
    except NoMulticast as error:
        raise Stop(UNREACHABLE, f"name the queue, --server URL or TREADLE_SERVER: {error}") from None


async def _first(store: str | None) -> tuple[str, str]:
    """The first queue that is announced, however long that takes: queues may start after their runners."""
    said = False
    while True:
        found = await _look()
        if found is not None:
            return found.queue, store or found.store
        if not said:
            note("treadle: waiting for a queue to be announced on the local network (or name one: --server URL)")
        said = True
