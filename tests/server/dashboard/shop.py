"""A shop whose jobs are in every state: what the dashboard shows in the tests of the browser.

The server, its worker and the tests share one event loop, so a test changes the storage and looks at it directly.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from tests.waiting import until
from treadle import App, Job, JobSpec, Limit, Record, Retry, Worker, current, gather
from treadle.server import Serving, Settings, make_site
from treadle.server.dashboard import OPEN_PATHS, dashboard_routes

QUEUES = {"mail": 1, "images": 1, "orders": 1, "reports": 1, "video": 1}
REFUSED = "smtp.example.org refused {to}: 421 too many connections ({order})"


class Shop:
    """One shop: a SQLite file, a server on a free port, and one worker for its five queues. The queue `letters` has no
    worker.

    options  of its app
    url      the address of the server
    ids      the ids of some jobs by what they show
    """

    def __init__(self, folder: Path, settings: Settings | None = None, *, works: bool = True, **options: Any) -> None:
        self.app = shop_app(App(f"sqlite:///{folder}/shop.db?synchronous=normal", **options), self)
        self.settings = settings or Settings(app="shop.py:app")
        self.ids: dict[str, str] = {}
        self.released = asyncio.Event()  # ends the jobs that run meanwhile
        self._works, self._port = works, 0
        self._stack = AsyncExitStack()
        self._served = AsyncExitStack()

    async def __aenter__(self) -> Self:
        await self._stack.enter_async_context(self.app)
        await self.serve()
        if self._works:
            await self._stack.enter_async_context(Worker(self.app, concurrency=20, queues=QUEUES, grace=2, name="till"))
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None
    ) -> None:
        self.released.set()
        await self.stop()
        await self._stack.aclose()

    # --- the server

    async def serve(self) -> None:
        """Start the server; after `stop`, on the same port."""
        site = make_site(self.app, self.settings, [dashboard_routes()], open_paths=OPEN_PATHS)
        serving = Serving(site, port=self._port, grace=1, on_stop=site.state.waiting.stop)
        await self._served.enter_async_context(serving)
        self.url, self._port = serving.url, serving.port

    async def stop(self) -> None:
        await self._served.aclose()

    # --- jobs

    def task(self, name: str) -> Any:
        return self.app.tasks[f"shop.{name}"]

    async def send(self, name: str, *args: Any, **options: Any) -> Job[Any, Any]:
        """Store a job of this task."""
        job: Job[Any, Any] = await self.task(name).options(**options).enqueue(*args)
        return job

    async def ended(self, name: str, *args: Any, **options: Any) -> str:
        """Store a job and wait for its end -> its id."""
        job = await self.send(name, *args, **options)
        await job.ended(30)
        return job.id

    async def row(self, id: str) -> Record:
        """The stored row."""
        return await self.app.jobs.get(id)

    async def until(self, id: str, state: str) -> Record:
        """The row once it is in this state."""
        await until(lambda: self._is(id, state), f"{id} is {state}")
        return await self.row(id)

    async def _is(self, id: str, state: str) -> bool:
        return str((await self.row(id)).state) == state

    async def fill(self) -> None:
        """Store jobs of every kind, and wait until they are in their states."""
        await self.app.limits.set(Limit("smtp", slots=5, rate=1000, per=60), Limit("tenant", slots=1))
        await self.app.schedules.upsert(
            "nightly", self.task("report").job("nightly"), cron="0 3 * * *", tz="Europe/Paris"
        )
        await self.app.schedules.upsert("pulse", self.task("report").job("pulse"), every=3600)
        mails: list[JobSpec[Any]] = [self.task("send_mail").job(f"user{n}@example.org", n) for n in range(1, 61)]
        sent = await self.app.enqueue(mails)
        bad = [self.task("thumbnail").job(f"/img/{n}.png", 13) for n in range(8)]
        broken = await self.app.enqueue(bad)
        orders = await self.app.enqueue([self.task("order").job(7, 3)])
        ids = self.ids
        ids["refused"] = (await self.send("send_mail", "late@example.org", 37)).id
        ids["running"] = (await self.send("encode", "film.mp4")).id
        ids["scheduled"] = (await self.send("send_mail", "soon@example.org", 2, delay=3600)).id
        ids["asking"] = (await self.send("approve", 12)).id
        ids["queued"] = (await self.send("print_letter", "Ada", 1, labels=["vip"])).id
        await self.app.enqueue([self.task("print_letter").job("Ada", n) for n in range(2, 41)])
        first = await self.send("encode", "a.mp4", limits=["tenant:7"])
        await self.until(first.id, "running")
        ids["blocked"] = (await self.send("encode", "b.mp4", limits=["tenant:7"])).id
        for job in (*sent, *broken, *orders):
            await job.ended(60)
        await self.until(ids["refused"], "failed")
        await self.until(ids["running"], "running")
        await self.until(ids["asking"], "waiting")
        ids["failed"], ids["succeeded"], ids["workflow"] = broken[0].id, sent[0].id, orders[0].id


def _asking(app: App) -> None:
    """The tasks that wait for a person."""

    @app.task(name="shop.refund", queue="orders")
    async def refund(order: int, amount: int) -> list[Any]:
        shown = {"order": order, "amount": amount, "customer": "Ada"}
        answer = await current().approve("refund", by="group:finance", until=86_400, show=shown)
        return [answer.approved, answer.reason]


def shop_app(app: App, shop: Shop) -> App:
    """The app with the tasks of the shop."""
    _asking(app)

    @app.task(name="shop.send_mail", queue="mail", limits=["smtp"], retry=Retry(attempts=2, base=0.01))
    async def send_mail(to: str, order: int) -> str:
        """Send the confirmation of an order."""
        if order == 37:
            raise ConnectionError(REFUSED.format(to=to, order=order))
        return f"sent {order}"

    @app.task(name="shop.thumbnail", queue="images", retry=Retry(attempts=1))
    async def thumbnail(path: str, size: int = 256) -> int:
        """Make a small picture."""
        if size == 13:
            raise ValueError(f"cannot make a thumbnail of {path}: size {size}")
        return size

    @app.task(name="shop.pack", queue="orders")
    async def pack(order: int, item: int) -> int:
        return item

    @app.task(name="shop.ship", queue="orders")
    async def ship(items: Sequence[int]) -> str:
        return f"shipped {len(items)}"

    @app.task(name="shop.order", queue="orders")
    async def order(number: int, items: int) -> Any:
        """Pack all items, then ship them."""
        return gather(pack.job(number, item) for item in range(items)).into(ship)

    @app.task(name="shop.report", queue="reports")
    async def report(name: str) -> str:
        return f"report {name}"

    @app.task(name="shop.approve", queue="orders")
    async def approve(number: int) -> Any:
        """Reserve the goods, then wait for a signal."""
        here = current()
        await here.step("reserve", lambda: 100 + number)
        return await here.wait_for("approved")

    @app.task(name="shop.encode", queue="video", keep=60)
    async def encode(file: str) -> str:
        await current().progress(0.5, "half of the film")
        await shop.released.wait()
        return file

    @app.task(name="shop.print_letter", queue="letters")
    async def print_letter(to: str, page: int) -> None:
        """No worker serves its queue."""

    return app
