"""A program of the user with prometheus-client: what its app and its worker do, in the registry of the program."""

from __future__ import annotations

import asyncio
import threading

import pytest
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from treadle import App, BadOption, Retry, Worker
from treadle.errors import StorageUnavailable
from treadle.integrations.prometheus import TreadleCollector
from treadle.storage.memory import MemoryStorage
from treadle_testkit.faults import Fault, Faulty


def values(registry: CollectorRegistry) -> dict[str, float]:
    return {
        " ".join((sample.name.removeprefix("treadle_"), *(sample.labels[name] for name in sorted(sample.labels)))): (
            sample.value
        )
        for family in text_string_to_metric_families(generate_latest(registry).decode())
        for sample in family.samples
        if not sample.name.endswith("_bucket")
    }


async def test_runs_enqueues_and_storage_calls_of_this_process() -> None:
    app = App(storage=MemoryStorage())

    @app.task(name="leaf", queue="mail")
    async def leaf() -> None: ...

    @app.task(name="parent", queue="mail")
    async def parent() -> object:
        await leaf.enqueue()
        return leaf.job()

    @app.task(name="bad", queue="mail", retry=Retry(attempts=2, base=0))
    async def bad() -> None:
        raise ValueError

    registry = CollectorRegistry()
    registry.register(TreadleCollector(app))
    async with app:
        for metrics in (True, False):  # a worker that stores no metrics counts too, and counts survive its stop
            async with Worker(app, metrics=metrics):
                jobs = [await parent.enqueue(), await bad.enqueue()]
                await asyncio.gather(*(job.ended(timeout=30) for job in jobs), return_exceptions=True)
    found = values(registry)
    runs = {name: value for name, value in found.items() if name.startswith("runs_total") and value}
    assert runs == {
        "runs_total other mail parent": 2,
        "runs_total succeeded mail parent": 2,
        "runs_total succeeded mail leaf": 4,
        "runs_total retried mail bad": 2,
        "runs_total failed mail bad": 2,
    }
    assert {name: value for name, value in found.items() if name.startswith("enqueued")} == {
        "enqueued_total mail parent": 2,
        "enqueued_total mail bad": 2,
        "enqueued_total mail leaf": 4,
    }
    assert found["run_seconds_count mail leaf"] == 4
    assert found["wait_seconds_count mail"] >= 6
    assert found["storage_seconds_count enqueue"] >= 4
    assert found["storage_errors_total enqueue"] == 0
    assert not [name for name in found if "watch" in name or "treadle" in name]


async def test_storage_errors_are_counted_by_verb() -> None:
    storage = Faulty(MemoryStorage(), [Fault("before", "enqueue", 1)])
    app = App(storage=storage)

    @app.task(name="t", key="one")
    async def t() -> None: ...

    registry = CollectorRegistry()
    registry.register(TreadleCollector(app))
    async with app:
        with pytest.raises(StorageUnavailable):
            await t.enqueue()
        for _ in range(2):  # the second one returns the job of the first
            await t.enqueue()
    found = values(registry)
    assert (found["storage_errors_total enqueue"], found["storage_seconds_count enqueue"]) == (1, 3)
    assert found["enqueued_total default t"] == 1


async def test_a_series_begins_at_0() -> None:
    """In PromQL a series that begins at 1 has no increase, so the first failure of a task would alert nobody."""
    app = App("memory://")

    @app.task(name="rare", queue="mail")
    async def rare() -> None: ...

    registry = CollectorRegistry()
    registry.register(TreadleCollector(app))
    async with app, Worker(app):
        found = values(registry)
    assert [found[f"runs_total {outcome} mail rare"] for outcome in ("failed", "retried", "succeeded")] == [0, 0, 0]
    assert found["lost_total mail rare"] == 0


async def test_a_collector_of_an_open_app_is_refused() -> None:
    app = App(storage=MemoryStorage())
    async with app:
        with pytest.raises(BadOption, match="before it is opened"):
            TreadleCollector(app)
    collector = TreadleCollector(App(storage=MemoryStorage()))
    assert not any(sample.value for family in collector.collect() for sample in family.samples)


async def test_a_scraper_may_read_in_another_thread() -> None:
    app = App(storage=MemoryStorage())

    @app.task(name="t")
    async def t(n: int) -> None: ...

    registry = CollectorRegistry()
    registry.register(TreadleCollector(app))
    stop, errors = threading.Event(), list[Exception]()

    def scrape() -> None:
        while not stop.is_set():
            try:
                generate_latest(registry)
            except Exception as error:
                errors.append(error)
                return

    scraper = threading.Thread(target=scrape)
    scraper.start()
    try:
        async with app, Worker(app):
            jobs = await app.enqueue([t.job(n) for n in range(500)])
            await asyncio.gather(*(job.ended(timeout=30) for job in jobs), return_exceptions=True)
    finally:
        stop.set()
        await asyncio.to_thread(scraper.join)
    assert not errors
    assert values(registry)["runs_total succeeded default t"] == 500
