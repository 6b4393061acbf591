"""One process of the soak: `python -m tests.soak.process ROLE URL HISTORY ACTOR SEED PATIENCE [DATABASE] [PLANT]`."""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import os
import random
import signal
import sys
import threading
from typing import Any

import treadle
from tests.soak.planted import plant
from tests.soak.producer import Producer
from tests.soak.tasks import LEASE, PLACE, SOON, make, record_calls
from treadle import Worker
from treadle.storage import connect
from treadle.storage.postgres import PostgresStorage

WAITS = (
    "treadle.storage.redis.pool.TIMEOUT",
    "treadle.storage.redis.topology.CONNECT",
    "treadle.storage.postgres.address.TIMEOUT",
    "treadle.storage.postgres.pool.CONNECT",
    "treadle.storage.sqlite.lockfile.WAIT",
    "treadle.storage.sqlite.shared_transaction.WAIT",
)


def be_patient(seconds: float) -> None:
    """Limit how long calls of this process wait for an answer. Otherwise one silent connection outlasts a short
    trial."""
    for name in WAITS:
        module, _, constant = name.rpartition(".")
        setattr(importlib.import_module(module), constant, seconds)


async def work(storage: Any, actor: str, path: str) -> None:
    if isinstance(storage, str) and storage.startswith("postgresql"):
        storage = connect(storage)
    app, history = make(storage, actor, path)
    if isinstance(storage, PostgresStorage):
        record_calls(storage, history)
    history.add("note", text="up", name=treadle.__file__)
    history.add("worker", facts=PLACE)
    worker = Worker(app, concurrency=8, lease=LEASE, poll=0.2, grace=5, recovery=SOON, **PLACE)
    try:
        await worker.run()  # opens the app, retrying
    finally:
        await app.close()


async def produce(storage: Any, actor: str, path: str, seed: str, database: str | None, url: str) -> None:
    app, history = make(storage, actor, path)
    plain, unused = make(url, actor, "/dev/null")
    plain._core.layers.clear()
    producer = Producer(app, history, random.Random(seed), database, plain)
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, producer.stopping.set)
    history.add("note", text="up", name=treadle.__file__)
    try:
        await producer.run()
    finally:
        await app.close()
        await plain.close()
        unused.close()


def end_with_parent() -> None:
    """End with the parent: its end of the pipe is closed however it ends, even if no process was left to kill this
    one."""
    with contextlib.suppress(OSError):
        while os.read(0, 1024):
            pass
    os._exit(1)


def main(role: str, url: str, path: str, actor: str, seed: str, patience: str, database: str, name: str) -> None:
    threading.Thread(target=end_with_parent, daemon=True).start()
    be_patient(float(patience))
    storage = plant(connect(url), name) if name else url
    if role == "worker":
        asyncio.run(work(storage, actor, path))
    else:
        asyncio.run(produce(storage, actor, path, seed, database or None, url))


if __name__ == "__main__":
    main(*sys.argv[1:9])
