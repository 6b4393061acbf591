"""A crawl: each page is a job that is stored once, at most so many start in a second, and a budget of bytes ends it.

treadle worker examples/crawl.py:app
python examples/crawl.py 10000
"""

from __future__ import annotations

import asyncio
import os
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import httpx2

from treadle import App, Limit, Worker, current

app = App()
PORT = int(os.environ.get("SITE_PORT", "8766"))
ESTIMATE = 2_000  # bytes that a page reserves of the budget
LEDGER = Path("ledger.txt")  # the pages that were read
SITE = f"http://127.0.0.1:{PORT}"


def options(number: int, pages: int) -> dict[str, object]:
    return {"id": f"page-{number}", "keep": 86_400, "limits": {"site": 1, "bytes": ESTIMATE}}


@app.task(name="visit", options=options)  # one name, whether this file is run or imported
async def visit(number: int, pages: int) -> int:
    """Read a page and enqueue those that it links. A page that another one has linked too is the same job."""
    async with httpx2.AsyncClient(timeout=30) as client:
        body = (await client.get(f"{SITE}/{number}")).raise_for_status().content
    current().spent(bytes=len(body))
    linked = [int(word) for word in body.split() if word.isdigit() and int(word) < pages]
    await app.enqueue([visit.job(each, pages) for each in linked])
    return len(body)


class Site(BaseHTTPRequestHandler):
    """A stand-in for a site: page n links to pages 2 n + 1 and 2 n + 2, and to the front page."""

    def do_GET(self) -> None:
        number = int(self.path[1:])
        with LEDGER.open("a", encoding="utf-8") as ledger:
            ledger.write(f"page {number}\n")
        body = f"0 {2 * number + 1} {2 * number + 2} {'x' * (number % 1_000)}".encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        """The ledger has the requests."""


async def crawl(pages: int) -> None:
    await app.limits.set(
        Limit("site", rate=max(50, pages // 10), per=1.0),  # pages started in a second, by all workers
        Limit("bytes", rate=1_000 * pages, per=86_400),  # in a day
    )
    await visit.enqueue(0, pages)
    while (done := await count()) < pages:  # noqa: ASYNC110  # the jobs run in other processes
        await asyncio.sleep(0.1)
    [budget] = [use for use in await app.limits.list() if use.key == "bytes"]
    print(f"{done} pages, {budget.starts} bytes of {budget.rule.rate}")


async def count() -> int:
    """The pages that were read."""
    stats = await app.queues.stats()
    return sum(each.jobs for each in stats.counts if each.task == visit.name and each.state == "succeeded")


async def main(pages: int, with_worker: bool) -> None:
    server = ThreadingHTTPServer(("127.0.0.1", PORT), Site)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    async with app:
        if with_worker:
            async with Worker(app):
                await crawl(pages)
        else:
            await crawl(pages)
    server.shutdown()
    server.server_close()


if __name__ == "__main__":
    numbers = [int(word) for word in sys.argv[1:] if word.isdigit()]
    asyncio.run(main(*(numbers or [200]), with_worker="--worker" in sys.argv))
