"""`treadle demo --dashboard`: a busy shop in this process, with its dashboard, until Ctrl-C."""

from __future__ import annotations

import asyncio
import itertools
import logging
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING, Any, Final

from treadle.cli.dashboard import UNUSED, Page
from treadle.cli.output import note
from treadle.cli.protocols import ServerWorkers
from treadle.cli.server import run_server
from treadle.cli.target import Target
from treadle.contrib.demo import shop
from treadle.worker import Worker

if TYPE_CHECKING:
    from treadle.server import Serving

APP: Final = "treadle.contrib.demo.shop:app"
TRIES: Final = 100  # ports to try from 7373
PAUSE: Final = 0.2  # s between groups of new jobs: about 20 jobs a second, a few percent of a core
SLOTS: Final = 24  # slots of each of the two workers


def run(port: int | None, open_browser: bool) -> int:
    """Serve the shop on the storage of TREADLE_URL -> the exit code."""
    options = {
        **UNUSED,
        "host": "127.0.0.1",
        "port": port,
        "tokens": None,
        "quiet": True,
        "dashboard": True,
        "tries": TRIES,
        "app": APP,
    }
    return run_server(Target(None, APP), options, lambda _, serving: Live(serving, open_browser))


class Live(ServerWorkers):
    """The workers of the shop, and its customers."""

    def __init__(self, serving: Serving, open_browser: bool) -> None:
        self._page, self._stack = Page(serving, None, open_browser), AsyncExitStack()

    async def __aenter__(self) -> None:
        for handler in logging.getLogger().handlers:
            handler.addFilter(_for_terminal)
        await self._prepare()
        for number in (1, 2):
            worker = Worker(
                shop.app, concurrency=SLOTS, queues=shop.QUEUES, grace=1, name=f"shop-{number}", capture_logs="info"
            )
            await self._stack.enter_async_context(worker)
        self._customers = asyncio.create_task(self._buy())
        await self._stack.enter_async_context(self._page)
        note("treadle: a shop with about 20 new jobs a second; Ctrl-C ends it")

    async def __aexit__(self, *_: object) -> None:
        self._customers.cancel()
        await asyncio.gather(self._customers, return_exceptions=True)
        await self._stack.aclose()

    async def _prepare(self) -> None:
        """Limits, a paused queue, and jobs that nothing runs."""
        await shop.app.limits.set(*shop.limits())
        await shop.app.queues.pause("imports")
        await shop.app.enqueue([shop.import_prices.job(f"supplier {n}") for n in range(12)])
        await shop.app.enqueue([shop.print_letter.job(f"{name}@example.org") for name in shop.CUSTOMERS])
        await shop.app.enqueue([shop.send_mail.options(delay=600 * n).job("ada@example.org", n) for n in range(1, 7)])

    async def _buy(self) -> None:
        for number in itertools.count(1):
            await shop.app.enqueue(list(self._orders(number)))
            await asyncio.sleep(PAUSE)

    def _orders(self, number: int) -> Any:
        """The jobs of one group: mostly mail, now and then something larger."""
        rng = shop.rng
        for _ in range(rng.randrange(1, 4)):
            to = f"{rng.choice(shop.CUSTOMERS)}@example.org"
            yield shop.send_mail.options(labels=["shop"]).job(to, number)
        if number % 3 == 0:
            yield shop.thumbnail.job(f"/img/{number}.png", 8 if number % 60 == 0 else 256)
        if number % 10 == 0:
            yield shop.checkout.job(number, rng.randrange(10, 1_000))
        if number % 25 == 0:
            yield shop.fulfil.job(number, shop.COUNTER if number % 100 == 0 else rng.randrange(2, 7))
        if number % 50 == 0:
            yield shop.encode.job(f"film-{number}.mov", rng.randrange(shop.TENANTS))
        if number % 450 == 0:
            yield shop.release.job(f"film-{number}")


def _for_terminal(record: logging.LogRecord) -> bool:
    """Errors of Treadle itself: the lines and failures of the shop's jobs are for the dashboard."""
    return record.levelno >= logging.ERROR and record.name not in ("shop", "treadle.jobs")
