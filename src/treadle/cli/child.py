"""One worker process of `treadle worker`: reads its orders, imports the app, sends Hello, runs a worker until stopped.

The orders arrive over a socket. When the supervisor dies the socket closes, and the process stops within its grace.
The event loop of the worker answers the requests of the supervisor, so that no answer means a stuck loop.
"""

from __future__ import annotations

import atexit
import faulthandler
import os
import signal
import socket
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any

import msgspec

from treadle.app import App
from treadle.cli import event_loop
from treadle.cli.app_loader import app_at, find_any, find_app, serve_main_names
from treadle.cli.output import USAGE, Stop, note, place, plural
from treadle.cli.protocols import protocol
from treadle.cli.reload.reports import reported
from treadle.cli.root import guarded
from treadle.cli.supervise import greet
from treadle.core import file_urls
from treadle.core.errors import StorageError
from treadle.storage import file_system, kind_of
from treadle.worker import Worker, logs
from treadle.worker.fleet import Hello, Orders
from treadle.worker.probes import Probes
from treadle.workflow.plan import FLOW

if TYPE_CHECKING:
    from treadle.worker.fleet import SupervisorLink


def main() -> int:
    """Run `python -m treadle.cli.child FD APP` -> one of the exit codes of the command line."""
    show_stacks(sys.argv[3:4])
    atexit.register(_ignore_stops)
    if signal.getsignal(signal.SIGHUP) is signal.SIG_DFL:
        # It is for the supervisor, but `systemctl kill -s HUP` sends it to all processes. Not SIG_IGN: programs that
        # jobs start would inherit that.
        signal.signal(signal.SIGHUP, lambda *_: None)
    channel = socket.socket(fileno=int(sys.argv[1]))
    orders = msgspec.json.decode(_line(channel), type=Orders)
    code = guarded(lambda: _reporting(orders, channel))
    _leave(code)
    return code


def _spare_one(number: int, _: FrameType | None) -> None:
    """Ignore one stop signal after the worker has stopped: a service manager may signal every process, and this one
    must not look killed while it exits. The next signal kills it, because its exit may hang."""
    signal.signal(number, signal.SIG_DFL)


def _ignore_stops() -> None:
    """Runs last in this process. The interpreter needs about 50 ms more to exit, and resets all handlers except
    SIG_IGN to the default."""
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, signal.SIG_IGN)


def show_stacks(descriptor: Sequence[str] = ()) -> None:
    """Print the stacks of all threads to stderr before the process dies of a crash or of SIGABRT. At SIGURG, which
    nothing else uses, write them to this descriptor, a file of the supervisor. An older supervisor passes none: then
    print only the stack of the main thread."""
    faulthandler.enable()
    if hasattr(signal, "SIGURG"):
        if descriptor:
            faulthandler.register(signal.SIGURG, file=int(descriptor[0]))
        else:
            faulthandler.register(signal.SIGURG, all_threads=False)


def _reporting(orders: Orders, channel: socket.socket) -> None:
    with reported():
        serve(orders, channel)


def serve(orders: Orders, channel: socket.socket | None, probes: Probes | None = None) -> None:
    """Run one worker until a signal stops it. `probes`: without a supervisor, which reports its health otherwise.
    Raises Stop and the library's errors."""
    app, orders = _app_of(orders)
    if orders.delayed:
        protocol("delayed").prepare(app, orders.app or None, orders.delivery)
    known = sorted(app.tasks)
    if not known:
        raise Stop(USAGE, f"{orders.app!r} has no tasks: decorate a function with @app.task in the module you name")
    if orders.app:
        serve_main_names(app, orders.app)
    if orders.count:
        app._core.count()
    options = orders.worker_options()
    if orders.trial:
        options["queues"] = {}

    async def run() -> None:
        # A claim is retried under the worker's name. A new name at each start keeps the retry apart from a claim of
        # the process that died.
        worker = Worker(
            app, name=orders.name and f"{orders.name}-{orders.number or 'trial'}:{os.urandom(3).hex()}", **options
        )
        worker._core.exits = True
        logs.set_up(worker.name, orders.log_level, orders.log_json)
        supervisor = None if channel is None else await _link(channel, worker)
        if supervisor is not None and orders.helps:
            app.on("worker.stopping")(lambda _: supervisor.stopping())
            if not orders.trial:
                worker._core.offer_suspects = supervisor.offer
        app.on("worker.started")(lambda _: _greet(app, worker, known, orders, supervisor))
        if orders.number == 1:
            app.on("worker.started")(lambda _: _note_strangers(app, worker))
        try:
            await worker._core.run(probes, None if channel is None else _spare_one)
        finally:
            if supervisor is not None:
                supervisor.close()

    event_loop.run(run(), orders.loop)


async def _link(channel: socket.socket, worker: Worker) -> SupervisorLink:
    from treadle.worker.fleet import SupervisorLink  # it needs what Windows does not have

    return await SupervisorLink.over(channel, worker._core)


def _app_of(orders: Orders) -> tuple[App, Orders]:
    """The app to serve, and the orders with its name."""
    if not orders.search:
        return (find_app(orders.app, prints=True) if orders.app else app_at(orders.url)), orders
    app, project = find_any(prints=True)
    return app, msgspec.structs.replace(orders, app=project.named, found=", ".join((project.named, *project.modules)))


def _greet(app: App, worker: Worker, known: list[str], orders: Orders, supervisor: SupervisorLink | None) -> None:
    """Report the worker before it claims its first job: that job may kill the process."""
    hello = Hello(
        worker=worker.name,
        url=place(app.url, kind_of(app.storage)),
        queues=worker._core.queues(),
        tasks=known,
        slots=worker.concurrency,
        labels=worker._core.config.labels or {},
        resources=worker._core.config.resources or {},
        misplaced=[name for name in known if not worker._core.config.runs(app._core.tasks[name].needs)],
        notes=list(_notes_on_files(app)),
        grace=worker._core.config.grace,
        found=orders.found,
        helps=supervisor is not None,
    )
    if supervisor is not None:
        supervisor.send(hello)
    else:
        greet(hello, 1)


def _notes_on_files(app: App) -> Iterator[str]:
    """Why producers may use another SQLite file than this worker, as far as that can be seen from here."""
    if (file := file_urls.read(app.url)) is None:
        return
    path = Path(file.path).absolute()
    if file_system(path.parent) == "overlay":
        yield f"{path} is inside this container, where no other one sees it; put it on a volume"
    modules = (sys.modules.get(task.function.__module__) for task in app.tasks.values())
    for folder in sorted({Path(name).parent for module in modules if (name := getattr(module, "__file__", None))}):
        other = folder / file.path
        if other.is_file() and not other.samefile(path):
            yield f"a program started in {folder} uses {other}, not {path}: give an absolute path in the URL"


async def _note_strangers(app: App, worker: Worker) -> None:
    """Print how many jobs of the worker's queues wait for a task that the app does not have. Any worker ends flows."""
    try:
        stats = await app.queues.stats()
    except StorageError:
        return  # the worker logs that the storage is unreachable
    queues, strangers = worker._core.queues(), Counter[str]()
    for count in stats.counts:
        if count.queue in queues and not count.state.final and count.task not in ("", FLOW, *app.tasks):
            strangers[count.task] += count.jobs
    for task, jobs in strangers.items():
        wait = "waits" if jobs == 1 else "wait"
        of = f"{plural(jobs, 'job')} of task {task!r}"
        note(f"treadle: {of} {wait} for another worker: this app does not have the task")


def _line(channel: socket.socket) -> bytes:
    """Read one line and nothing after it: requests may follow."""
    line = bytearray()
    while not line.endswith(b"\n"):
        piece = channel.recv(65_536, socket.MSG_PEEK)
        if not piece:
            os._exit(USAGE)
        end = piece.find(b"\n")
        line += channel.recv(len(piece) if end < 0 else end + 1)
    return bytes(line)


def _leave(code: int, joined: Callable[[Any], None] = lambda thread: thread.join(0.5)) -> None:
    """Exit without waiting for task functions in threads, which cannot be stopped: their leases expire."""
    for thread in threading.enumerate():
        if thread.name.startswith("treadle-") and not thread.daemon:
            joined(thread)
            if thread.is_alive():
                sys.stdout.flush()
                sys.stderr.flush()
                os._exit(code)


if __name__ == "__main__":
    sys.exit(main())
