"""dramatiq on Redis: one process, 32 threads (its default, 8, is slower), its default middleware, results off.

It has no bulk call: a group sends one message after the other.
"""

from __future__ import annotations

import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import dramatiq
from dramatiq.brokers.redis import RedisBroker
from dramatiq.rate_limits import ConcurrentRateLimiter
from dramatiq.rate_limits.backends import RedisBackend as LimitBackend
from dramatiq.results import Results
from dramatiq.results.backends import RedisBackend as ResultBackend

from benchmarks.adapters.frame import ASK, BALLAST, CRASH, VALUE, About, Producer, body_plain, main

ABOUT = About(
    packages=("dramatiq", "redis", "hiredis"),
    settled=(["HLEN", "dramatiq:default.msgs"],),
    worker="loses nothing: jobs of a silent worker are delivered again after about a minute",
    server=CRASH.get(ASK.storage, ""),
    notes="32 threads unless concurrency is set; no bulk call; limits by ConcurrentRateLimiter inside the job",
    can=("results", "limits", "processes", "fanin"),
)
broker = RedisBroker(url=ASK.url or "redis://localhost")
if ASK.results:
    broker.add_middleware(Results(backend=ResultBackend(url=ASK.url)))
if ASK.feature == "fanin":
    from dramatiq.middleware import GroupCallbacks

    broker.add_middleware(GroupCallbacks(LimitBackend(url=ASK.url)))
dramatiq.set_broker(broker)
LIMIT = ConcurrentRateLimiter(LimitBackend(url=ASK.url), "api", limit=1_000_000) if ASK.feature == "limits" else None


def noop(sent: float, ballast: str = "") -> int | None:
    if LIMIT is None:
        body_plain(sent)
    else:
        with LIMIT.acquire():
            body_plain(sent)
    return VALUE


actor: Any = dramatiq.actor(noop, store_results=True) if ASK.results else dramatiq.actor(noop)


@dramatiq.actor
def fold() -> None:
    body_plain(0.0)


@asynccontextmanager
async def producer() -> AsyncIterator[Producer]:
    def one(sent: float) -> None:
        if BALLAST:
            actor.send(sent, BALLAST)
        else:
            actor.send(sent)

    def result() -> None:
        actor.send(0.0).get_result(block=True, timeout=30_000)

    def fan(n: int) -> None:
        group = dramatiq.group([actor.message(0.0) for _ in range(n)])
        group.add_completion_callback(fold.message())
        group.run()

    yield Producer(one, result=result, fan=fan)


def worker() -> None:
    running = dramatiq.Worker(broker, worker_threads=ASK.concurrency or 32)
    running.start()
    signal.sigwait({signal.SIGTERM})
    running.stop(1_000)


if __name__ == "__main__":
    if sys.argv[1] == "worker":
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})  # in all threads, for sigwait
    main(sys.modules[__name__])
