"""`treadle up`: runs a server and its workers with one command.

One worker shares the process of the server; with --roles, each worker is a process.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import AsyncExitStack
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

import click

from treadle.cli.app_loader import find_any
from treadle.cli.options import duration, number, optional_app, placed, recording
from treadle.cli.options import roles as listed_roles
from treadle.cli.output import FAILED, USAGE, Stop, note, plural
from treadle.cli.protocols import ServerWorkers, Stopping, protocol, worker_options
from treadle.cli.reload.options import again
from treadle.cli.server import run_server, server
from treadle.cli.target import Target
from treadle.worker.fleet import Hello, Orders
from treadle.worker.probes import Verdict, first_problem

if TYPE_CHECKING:
    from treadle.app import App
    from treadle.server import Serving
    from treadle.worker import Worker


@click.command()
@optional_app
@number(
    "--concurrency", "-c", help="Number of jobs that run at the same time in each worker. [default: 20; delayed: 1]"
)
@click.option("--roles", metavar="ROLES", help="Roles of separate worker processes, such as leader,follower,follower.")
@placed
@recording
@duration("--grace", help="Seconds that running jobs get to finish when it stops. [default: 30; with --reload: 2]")
@worker_options
@again
def up(
    app: str | None,
    concurrency: int | None,
    roles: str | None,
    labels: dict[str, str],
    resources: dict[str, int],
    capture_logs: str | None,
    no_metrics: bool,
    grace: float | None,
    protocols: tuple[str, ...],
    url: str | None,
    **options: Any,
) -> int:
    """Run the server and workers for MODULE:APP on one machine; without MODULE:APP, for the only app in this directory.

    With --protocol delayed or queuey no app is needed. Delayed jobs go to the app's @app.delayed_handler, to --webhook,
    to --command, or to stdout, one line each. A WASI runner runs the modules of queuey jobs. With --roles each worker
    is a separate process; otherwise one worker shares the process of the server. Ctrl-C stops everything; running jobs
    get --grace seconds to end.
    """
    is_delayed, named = "delayed" in protocols, listed_roles(roles) if roles is not None else ()
    delivery = protocol("delayed").handling(options)
    is_found = app is None and url is None and not protocols
    if is_found:
        app = find_any()[1].named
    _check(app, protocols, bool(named), delivery is not None)
    target = Target(url, app)
    if is_delayed:
        target.fall_back(protocol("delayed").storage_url())
        protocol("delayed").prepare(target.app, app, delivery)
    if named and (target.app.url or "memory:").startswith("memory:"):
        raise Stop(USAGE, "--roles starts processes, which cannot share a memory:// storage: give another --url")
    orders = Orders(
        app="" if is_found else app or "",
        search=is_found,  # a process of --roles searches again, because the app may be in `src`
        url=None if app else target.app.url,
        delivery=delivery,
        delayed=is_delayed,
        concurrency=concurrency or (1 if is_delayed else 20),
        ordered=is_delayed,
        metrics=not no_metrics,
        capture_logs=capture_logs,
        labels=labels,
        resources=resources,
        grace=grace,
    )
    options |= {"protocols": protocols, "api": options["api"] or not protocols}

    def make_workers(stopping: Stopping, serving: Serving) -> ServerWorkers:
        running: list[ServerWorkers] = []
        if named:
            running.append(WorkerProcesses(orders, named, stopping))
        elif app is not None or is_delayed:
            running.append(InProcessWorker(target.app, orders, stopping))
        for name in protocols:
            running += protocol(name).workers(options, serving.port, concurrency or 1, stopping)
        return Several(running)

    return run_server(target, options, make_workers)


def _check(app: str | None, protocols: Sequence[str], has_roles: bool, delivers: bool) -> None:
    """Raise Stop for options that do not go together."""
    if app is None and not protocols:
        raise Stop(USAGE, "name an app (`treadle up shop.py:app`), or give --protocol")
    if has_roles and app is None and "delayed" not in protocols:
        raise Stop(USAGE, "--roles needs workers: name an app, or give --protocol delayed")
    if delivers and "delayed" not in protocols:
        raise Stop(USAGE, "--webhook and --command are for delayed jobs: give --protocol delayed")
    for name in protocols:
        protocol(name).check_workers()


# All options of the server except --app, which is the argument here, with its --factory.
up.params.extend(param for param in server.params if param.name not in ("app", "factory"))


class Several(ServerWorkers):
    """The workers of several kinds as one: entered in order, left in reverse. `code` is the first that is not 0."""

    def __init__(self, several: Sequence[ServerWorkers]) -> None:
        self._several, self._stack = several, AsyncExitStack()

    @property
    def verdict(self) -> Verdict:
        """The first problem that one of these groups of workers has."""
        return first_problem([workers.verdict for workers in self._several])

    async def __aenter__(self) -> Self:
        for workers in self._several:
            await self._stack.enter_async_context(workers)
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._stack.aclose()
        self.code = next((workers.code for workers in self._several if workers.code), 0)


class InProcessWorker(ServerWorkers):
    """A worker in the process of the server. The server stops when its lifespan ends early."""

    def __init__(self, app: App, orders: Orders, stopping: Stopping) -> None:
        from treadle.worker import Worker

        self._worker: Worker = Worker(app, **orders.worker_options())
        self._stopping = stopping

    @property
    def verdict(self) -> Verdict:
        """Of the worker."""
        return self._worker.health().verdict

    async def __aenter__(self) -> Self:
        await self._worker._core.start(self._fail)
        slots, queues = plural(self._worker.concurrency, "slot"), ", ".join(self._worker._core.queues())
        note(f"treadle: a worker with {slots} for {queues}")
        return self

    def _fail(self) -> None:
        self.code = FAILED
        self._stopping.asked.set()

    async def __aexit__(self, *_: object) -> None:
        await self._worker.stop()


class WorkerProcesses(ServerWorkers):
    """One worker process per role. They stop with the server, and the server stops when their supervisor ends."""

    def __init__(self, orders: Orders, roles: Any, stopping: Stopping) -> None:
        from treadle.cli.supervise import fleet_of

        self._stopping, self._roles = stopping, roles
        self._fleet = fleet_of(orders, len(roles), roles=roles, greeted=self._greeted)

    @property
    def verdict(self) -> Verdict:
        """Of the processes."""
        return self._fleet.verdict

    async def __aenter__(self) -> Self:
        self._running = asyncio.create_task(self._fleet.run())
        self._running.add_done_callback(lambda _: self._stopping.asked.set())
        self._hurrying = asyncio.create_task(self._hurry())
        return self

    def _greeted(self, hello: Hello, number: int) -> None:
        note(f"treadle: worker {hello.worker}: {self._roles[number - 1]}, {plural(hello.slots, 'slot')}")

    async def _hurry(self) -> None:
        await self._stopping.again.wait()
        self._fleet.stop()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None
    ) -> None:
        ended = self._running.done()
        if not ended:
            self._fleet.stop()
        self.code = await self._running
        if ended:
            self.code = self.code or FAILED
        self._hurrying.cancel()
        await asyncio.gather(self._hurrying, return_exceptions=True)
