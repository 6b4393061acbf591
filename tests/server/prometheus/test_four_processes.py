"""A real run: four worker processes, one of which is killed, and an exporter, on one database.

Every metric and label that the dashboard and the alerts name is in what they show, and no counter goes back.
"""

from __future__ import annotations

import asyncio
import re
import runpy
import signal
import urllib.request
from pathlib import Path
from typing import Any, Final, NamedTuple

import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families

from tests.cli.tools import Command
from tests.server.prometheus.promql import Named, of_alerts, of_dashboard
from tests.waiting import until_blocking
from treadle.core.clock import wall
from treadle.server.prometheus import HAPPENED, STORED

SHOP: Final = """
import asyncio, os, signal, sqlite3, time
from pathlib import Path
from treadle import App, Limit, Outbox, Retry

outbox = Outbox("sqlite:///shop.db")
app = App("sqlite:///jobs.db", outbox=outbox)
app.limits.declare(Limit("tenant", slots=1), Limit("queue:unserved", max_waiting=1))


@app.task(name="good", queue="mail")
async def good(n: int) -> None:
    await asyncio.sleep(0.01)


@app.task(name="parent", queue="mail")
async def parent() -> None:
    await good.enqueue(0)


@app.task(name="flaky", queue="mail", retry=Retry(attempts=2, base=0))
async def flaky() -> None:
    raise ValueError


@app.task(name="blocks", queue="mail")
async def blocks() -> None:
    time.sleep(0.7)


@app.task(name="deadly", queue="mail", max_lost=2)
async def deadly() -> None:
    try:
        Path("died").touch(exist_ok=False)
    except FileExistsError:
        return
    os.kill(os.getpid(), signal.SIGKILL)


@app.task(name="slow", queue="mail", limits=["tenant:7"])
async def slow() -> None:
    while not Path("stop").exists():
        await asyncio.sleep(0.05)


@app.task(name="unserved", queue="unserved")
async def unserved() -> None: ...


@app.cron("0 3 1 1 *", name="yearly")
@app.task(name="yearly", queue="mail")
async def yearly() -> None: ...


async def first() -> None:
    Path("shop.db").touch()
    await outbox.create()
    async with app:
        await app.enqueue([good.job(n) for n in range(10)])


async def death() -> None:
    async with app:
        await deadly.enqueue()


async def rest() -> None:
    async with app:
        await app.enqueue([good.job(n) for n in range(40)])
        await app.enqueue([parent.job(), flaky.job(), blocks.job(), slow.job(), slow.job(), unserved.job()])
        await app.queues.pause("mail2")
        await app.limits.pause("api")
        database = sqlite3.connect("shop.db")
        with database:
            await app.enqueue(good.job(99), within=database)
        database.close()
"""

Series = dict[tuple[str, frozenset[tuple[str, str]]], float]
WORKER: Final = ("worker", "shop.py:app", "-p", "4", "--lease", "1", "--health", "0", "--queues", "mail,mail2")


class Scraped(NamedTuple):
    """The series of one scrape, and the names that their families have."""

    series: Series
    families: set[str]

    def value(self, name: str, **labels: str) -> float:
        return self.series[name, frozenset(labels.items())]

    def labels(self) -> dict[str, set[str]]:
        """Of each metric, the names of its labels."""
        found: dict[str, set[str]] = {}
        for name, labels in self.series:
            found.setdefault(name, set()).update(dict(labels))
        return found


def scraped(url: str) -> Scraped:
    """Ask as Prometheus does."""
    request = urllib.request.Request(url, headers={"Accept": "application/openmetrics-text; version=1.0.0"})
    with urllib.request.urlopen(request, timeout=30) as response:
        text = response.read().decode()
    families = list(text_string_to_metric_families(text))
    series = {(s.name, frozenset(s.labels.items())): s.value for family in families for s in family.samples}
    assert len(series) == sum(len(family.samples) for family in families), "a series occurs twice"
    return Scraped(series, {family.name for family in families})


def is_counter(name: str) -> bool:
    return name.endswith(("_total", "_bucket", "_count", "_sum"))


class Follower:
    """Scrapes the supervisor again and again; no counter may go back or disappear."""

    def __init__(self, url: str) -> None:
        self._url, self.last = url, Scraped({}, set())

    def scrape(self) -> Scraped:
        new = scraped(self._url)
        for key, value in self.last.series.items():
            if is_counter(key[0]):
                assert new.series.get(key, -1.0) >= value - 1e-9, key
        self.last = new
        return new


def check(names: list[Named], shown: dict[str, set[str]]) -> None:
    """Each metric and each label that an expression names is shown."""
    for each in names:
        known = set[str]()
        for metric, labels in each.metrics.items():
            assert metric in shown, (each.where, metric)
            assert labels <= shown[metric], (each.where, metric)
            known |= shown[metric]
        assert each.groups <= known | {"job"}, each.where


def phase_done(found: Scraped, **runs: float) -> Scraped | None:
    """The scrape, once so many runs of each task have succeeded."""
    for task, count in runs.items():
        key = "treadle_runs_total", frozenset({"queue": "mail", "task": task, "outcome": "succeeded"}.items())
        if found.series.get(key, 0.0) < count:
            return None
    return found


@pytest.mark.slow
def test_all_that_the_dashboard_and_the_alerts_name_is_shown_by_a_real_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "shop.py").write_text(SHOP)
    shop = runpy.run_path("shop.py")
    asyncio.run(shop["first"]())
    with (
        Command(*WORKER, cwd=tmp_path) as workers,
        Command("storage", "metrics", "--app", "shop.py:app", "--port", "0", cwd=tmp_path) as exporter,
    ):
        follower = Follower(page_of(workers))
        happened = run_all(shop, follower)
        stored = scraped(page_of(exporter))
        (tmp_path / "stop").touch()
        for each in (exporter, workers):
            each.signal(signal.SIGTERM)
        assert (exporter.ended(), workers.ended()) == (0, 0)
    check([*of_alerts(), *of_dashboard()], happened.labels() | stored.labels())
    for found, catalogue in ((happened, HAPPENED), (stored, STORED)):
        assert found.families == {metric.name for metric in catalogue}
        for name, labels in found.labels().items():
            metric = next(each for each in catalogue if name.startswith(each.name) and set(each.labels) <= labels)
            assert labels - {"le"} == set(metric.labels), name
    what_happened(happened)
    what_is_stored(stored)


def page_of(command: Command) -> str:
    """The URL of its metrics, which it prints."""
    found = re.search(r"http://[\d.:]+", command.wait_for("metrics at"))
    assert found is not None
    return f"{found[0]}/metrics"


def run_all(shop: dict[str, Any], follower: Follower) -> Scraped:
    """Run all jobs, with a process that is killed in between; the last scrape."""
    until_blocking(lambda: phase_done(follower.scrape(), good=10), "the first ten runs")
    asyncio.run(shop["death"]())
    before = until_blocking(lambda: phase_done(follower.scrape(), deadly=1), "the end of the deadly job")
    assert before.value("treadle_runs_total", queue="mail", task="good", outcome="succeeded") == 10
    asyncio.run(shop["rest"]())
    ending = {"good": 52, "parent": 1, "blocks": 1}
    found: Scraped = until_blocking(lambda: _all_ended(follower.scrape(), ending), "the end of all jobs")
    return found


def _all_ended(found: Scraped, ending: dict[str, float]) -> Scraped | None:
    failed = "treadle_runs_total", frozenset({"queue": "mail", "task": "flaky", "outcome": "failed"}.items())
    return phase_done(found, **ending) if found.series.get(failed) else None


def what_happened(found: Scraped) -> None:
    """Exact counts, and the values that the alerts of workers compare."""

    def runs(task: str, outcome: str) -> float:
        return found.value("treadle_runs_total", queue="mail", task=task, outcome=outcome)

    assert (runs("good", "succeeded"), runs("flaky", "failed"), runs("flaky", "retried")) == (52, 1, 1)
    assert runs("flaky", "failed") / (runs("flaky", "succeeded") + runs("flaky", "failed")) > 0.05, "TreadleFailing"
    assert found.value("treadle_lost_total", queue="mail", task="deadly") == 1, "TreadleLosing"
    assert found.value("treadle_worker_restarts_total") == 1, "TreadleRestarting"
    assert found.value("treadle_worker_processes") == 4
    assert found.value("treadle_enqueued_total", queue="mail", task="good") >= 1
    late = found.value("treadle_loop_lag_seconds_count") - found.value("treadle_loop_lag_seconds_bucket", le="0.131072")
    assert late >= 1, "TreadleLoopBlocked"
    assert found.value("treadle_run_seconds_count", queue="mail", task="good") >= 10
    assert found.value("treadle_wait_seconds_count", queue="mail") >= 10
    assert found.value("treadle_storage_seconds_count", verb="settle_claim") > 0


def what_is_stored(found: Scraped) -> None:
    """Exact counts, and the values that the alerts on stored jobs compare."""
    assert found.value("treadle_jobs", queue="mail", task="flaky", state="failed") == 1
    assert found.value("treadle_jobs_queued", queue="unserved", task="unserved") == 1, "TreadleNoWorkers"
    assert found.value("treadle_queue_workers", queue="unserved") == 0, "TreadleNoWorkers"
    assert found.value("treadle_queue_oldest_seconds", queue="unserved") > 0, "TreadleQueueOld"
    waiting = found.value("treadle_jobs", queue="unserved", task="unserved", state="ready")
    assert waiting == found.value("treadle_queue_max_waiting", queue="unserved") == 1, "TreadleQueueFull"
    assert found.value("treadle_queue_workers", queue="mail") >= 4
    assert found.value("treadle_queue_paused", queue="mail2") == 1, "TreadleQueuePaused"
    assert found.value("treadle_queue_paused", queue="mail") == 0
    assert found.value("treadle_limit_paused", limit="api") == 1, "TreadleLimitPaused"
    assert found.value("treadle_limit_slots", limit="tenant") == 1
    assert found.value("treadle_schedule_next_timestamp_seconds", schedule="yearly") > wall(), "TreadleScheduleLate"
    assert found.value("treadle_schedule_failing", schedule="yearly") == 0
    assert (found.value("treadle_outbox_up"), found.value("treadle_outbox_relayed")) == (1, 1)
    assert (found.value("treadle_outbox_rows"), found.value("treadle_outbox_oldest_seconds")) == (0, 0)
    assert (found.value("treadle_storage_up"), found.value("treadle_worker_slots")) == (1, 80)
    assert not {"7", "tenant:7"} & {value for _, labels in found.series for _, value in labels}
