"""A Celery program is moved while it runs: real Celery workers empty the old release, Treadle runs the new one."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.cli.tools import Command
from tests.servers.valkey import Valkey
from tests.waiting import until_blocking
from treadle import App
from treadle.cli.root import run
from treadle_testkit.shows import shows

pytestmark = pytest.mark.slow

PROGRAM = Path(__file__).with_name("program")
QUEUES = ("celery", "mail", "reports", "bulk")
PRODUCE = """
import asyncio, sys
from shop import web, orders, reports
who, order, wait = sys.argv[1], int(sys.argv[2]), float(sys.argv[3])
web.sign_up(who)
asyncio.run(web.view({"name": f"{who}-view", "order": order}))
web.remind(f"{who}-later", wait)
orders.announce([f"{who}-a", f"{who}-b"])
print(orders.quote(order, [1, 2, 3]))
reports.export.delay(f"{who}.csv")
"""


def expected(who: str, order: int) -> list[str]:
    """One line for each run of a producer's jobs."""
    return [
        f"mail {who} hello",
        f"newsletter {who}",
        f"mail-refused {who}-again",
        f"mail {who}-again flaky",
        f"mail {who}-view async",
        f"reserve {order} ['book']",
        f"charge {order} 12",
        f"ship {order}",
        f"mail customer-{order} shipped",
        f"invoice {order} 1",
        f"mail {who}-later reminder",
        f"remind {who}-later",
        f"mail {who}-a news",
        f"mail {who}-b news",
        *[f"price {item}" for item in (1, 2, 3)],
        f"total {order} 60",
        f"export {who}.csv",
    ]


@contextmanager
def celery_worker(folder: Path, environment: dict[str, str]) -> Iterator[subprocess.Popen[bytes]]:
    """A worker of the program in `folder`, which gets SIGTERM at the end."""
    words = ["-A", "shop", "worker", "-P", "threads", "-c", "4", "-Q", ",".join(QUEUES), "--without-gossip"]
    process = subprocess.Popen(
        [sys.executable, "-m", "celery", *words, "-l", "error"],
        cwd=folder,
        env=environment,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    try:
        yield process
        process.send_signal(signal.SIGTERM)
        process.wait(60)
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def produce(folder: Path, environment: dict[str, str], *words: str) -> str:
    """Run the producer of a release, and return what it prints."""
    done = subprocess.run(
        [sys.executable, "-c", PRODUCE, *words],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def is_empty(server: Valkey) -> bool:
    """The recipe of the guide: no message waits in a queue, and no worker holds one, not even for its eta."""
    return not any(server.do("LLEN", queue) for queue in QUEUES) and not server.do("HLEN", "unacked")


@shows("a Celery program is moved while it runs: each job of the old and of the new release runs once")
async def test_every_job_of_both_releases_runs_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    journal = tmp_path / "journal"
    journal.touch()
    old, new = tmp_path / "old", tmp_path / "new"
    shutil.copytree(PROGRAM, old)
    shutil.copytree(PROGRAM, new)
    monkeypatch.chdir(new)
    assert run(["from", "celery", "shop", "--write", "--force", "--report", "report.txt"]) == 0
    with Valkey() as server:
        environment = {
            **os.environ,
            "SHOP_BROKER": server.url,
            "SHOP_JOURNAL": str(journal),
            "TREADLE_URL": f"{server.url}?ns=shop",
        }
        with celery_worker(old, environment):
            assert produce(old, environment, "old", "1", "4") == "60"  # its reminder is due in 4 s
            worker = Command(
                "worker", "shop.treadle_app:app", "-q", "default,mail,reports,bulk", cwd=new, **environment
            )
            with worker:
                assert produce(new, environment, "new", "2", "1") == "60"
                lines = Counter(expected("old", 1) + expected("new", 2))
                until_blocking(lambda: sum(lines.values()) <= len(journal.read_text().splitlines()), "every job runs")
                until_blocking(lambda: is_empty(server), "the old broker is empty")
                async with App(environment["TREADLE_URL"]) as app:
                    schedules = {each.name: str(each.timing) for each in await app.schedules.list()}
        assert Counter(journal.read_text().splitlines()) == lines
    assert schedules == {
        "nightly-report": "30 3 * * mon-fri (Europe/Paris)",
        "refresh-stock": "every 600 s",
    }
