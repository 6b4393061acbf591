"""`treadle up`: the whole system with one command: a server, and workers in its process, or one for each role.

Without it one would start a server and its workers in as many terminals, and stop each of them.
"""

from __future__ import annotations

import asyncio
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

import click

from treadle.cli import delayed
from treadle.cli.orders import Hello, Orders
from treadle.cli.say import FAILED, USAGE, Stop, note
from treadle.cli.server import Stopping, run_server, server
from treadle.cli.target import Target

if TYPE_CHECKING:
    from treadle.app import App
    from treadle.cli.fleet import Fleet
    from treadle.worker import Worker


@click.command()
@click.argument("app", metavar="[MODULE:APP]", required=False)
@click.option("--concurrency", "-c", type=click.IntRange(1), help="Jobs at once in each worker [20; delayed: 1].")
@click.option("--roles", metavar="ROLES", help="Workers as processes of their own, such as leader,follower,follower.")
@delayed.delivering
def up(app: str | None, concurrency: int | None, roles: str | None, faces: tuple[str, ...], url: str | None,
       **options: Any) -> int:  # fmt: skip
    """The server and workers for MODULE:APP: the whole system on one machine.

    With --face delayed no app is needed: jobs go to its @app.delayed_handler, to --webhook, to --command, or to stdout
    as a line each. With --roles each worker is a process; else one worker shares that of the server. Ctrl-C stops it
    all, running jobs get 30 s to end.
    """
    is_delayed, named = "delayed" in faces, delayed.roles(roles) if roles is not None else ()
    delivery = delayed.delivery_of(options)
    if app is None and not is_delayed:
        raise Stop(USAGE, "name an app (`treadle up shop.py:app`), or give --face delayed")
    if delivery is not None and not is_delayed:
        raise Stop(USAGE, "--webhook and --command are for delayed jobs: give --face delayed")
    target = Target(url, app)
    if is_delayed:
        target.fall_back(delayed.redis_url())
        delayed.prepare(target.app, app, delivery)
    slots = concurrency or (1 if is_delayed else 20)
    options |= {"faces": faces, "api": options["api"] or not faces}
    if not named:
        return run_server(target, options, lambda stopping: Inside(target.app, slots, is_delayed))
    if (target.app.url or "memory:").startswith("memory:"):
        raise Stop(USAGE, "--roles starts processes, and what is in the memory of one the others do not see")
    orders = Orders(
        app=app or "", url=None if app else target.app.url, delivery=delivery, delayed=is_delayed, concurrency=slots,
        name=None, ordered=is_delayed,
    )  # fmt: skip
    return run_server(target, options, lambda stopping: Beside(orders, named, stopping))


# Whatever the server takes, but --app: here that is the argument.
up.params.extend(param for param in server.params if param.name != "app")


class Inside:
    """One worker in the process of the server."""

    code = 0

    def __init__(self, app: App, slots: int, ordered: bool) -> None:
        from treadle.worker import Worker

        self._worker: Worker = Worker(app, concurrency=slots, ordered=ordered)

    async def __aenter__(self) -> Self:
        await self._worker.start()
        note(f"treadle: a worker of {self._worker.concurrency} slots for {', '.join(self._worker.queues())}")
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._worker.stop()


class Beside:
    """Workers as processes, one for each role. They end with the server; if none of them can work, so does it."""

    def __init__(self, orders: Orders, roles: Any, stopping: Stopping) -> None:
        from treadle.cli.fleet import Fleet

        self._stopping, self.code = stopping, 0
        self._roles = roles
        self._fleet: Fleet = Fleet(orders, len(roles), roles=roles, greeted=self._greeted)

    async def __aenter__(self) -> Self:
        self._running = asyncio.create_task(self._fleet.run())
        self._running.add_done_callback(lambda _: self._stopping.asked.set())
        self._hurrying = asyncio.create_task(self._hurry())
        return self

    def _greeted(self, hello: Hello, number: int) -> None:
        note(f"treadle: worker {hello.worker}: {self._roles[number - 1]}, {hello.slots} at once")

    async def _hurry(self) -> None:
        await self._stopping.again.wait()
        self._fleet.stop()

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None
                        ) -> None:  # fmt: skip
        ended = self._running.done()
        if not ended:
            self._fleet.stop()
        self.code = await self._running
        if ended:
            self.code = self.code or FAILED
        self._hurrying.cancel()
        await asyncio.gather(self._hurrying, return_exceptions=True)
