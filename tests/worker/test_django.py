"""Django's connections are closed at the end of a task, as they are at the end of a request."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import django
import pytest
from django.conf import settings
from django.db import connections, transaction

from tests.worker import django_tasks
from treadle import App, JobFailed, Retry, Worker
from treadle.cli.app_loader import find_app


@pytest.fixture
def alias(tmp_path: Path) -> Iterator[str]:
    """The alias of a Django database. The process has one Django, so its settings are made once."""
    if not settings.configured:
        settings.configure(DATABASES={"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": ":memory:"}})
        django.setup()
    alias = f"at {tmp_path}"
    connections.settings[alias] = connections.configure_settings(
        {"default": {}, alias: {"ENGINE": "django.db.backends.sqlite3", "NAME": str(tmp_path / "shop.db")}}
    )[alias]
    yield alias
    while OPENED:  # threads that have ended leave their connections open, as Django's settings say
        OPENED.pop().close()
    del connections.settings[alias]


OPENED: list[Any] = []


def read(alias: str) -> bool:
    """Run one query. Return whether the connection of this thread was open before."""
    connections[alias].inc_thread_sharing()
    OPENED.append(connections[alias])
    kept = connections[alias].connection is not None
    with connections[alias].cursor() as cursor:
        cursor.execute("SELECT 1")
    return kept


@pytest.mark.parametrize(("max_age", "kept"), [(0, False), (None, True), (3600, True)])
@pytest.mark.parametrize("fails", [False, True])
async def test_a_connection_is_kept_for_djangos_max_age(
    alias: str, max_age: int | None, kept: bool, fails: bool
) -> None:
    connections.settings[alias]["CONN_MAX_AGE"] = max_age
    app = App("memory://")

    @app.task(retry=Retry(attempts=1))
    def ask() -> bool:
        found = read(alias)
        if fails:
            raise LookupError(f"kept: {found}")
        return found

    async def said() -> bool:
        try:
            return await (await ask.enqueue()).result(timeout=30)
        except JobFailed as failed:
            return "kept: True" in str(failed)

    async with app, Worker(app, concurrency=1):
        assert not await said()
        assert await said() is kept


async def test_a_batch_in_a_thread_returns_its_connection(alias: str) -> None:
    app = App("memory://")

    @app.batch(size=1, max_wait=0)
    def ask(items: list[int]) -> list[bool]:
        return [read(alias) for _ in items]

    async with app, Worker(app, concurrency=1):
        for _ in range(2):
            assert await (await ask.enqueue(1)).result(timeout=30) is False


async def test_a_thread_of_the_program_keeps_its_connection(alias: str) -> None:
    app = App("memory://")

    @app.task
    def ask() -> bool:
        return read(alias)

    def view() -> bool:
        with transaction.atomic(using=alias):
            read(alias)
            assert app.sync.result(app.sync.enqueue(ask.job()), timeout=30) is False
            return read(alias)

    async with app, Worker(app, concurrency=1):
        assert await asyncio.to_thread(view) is True


@pytest.mark.parametrize(("max_age", "kept"), [(0, False), (3600, True)])
async def test_a_process_returns_its_connection(tmp_path: Path, max_age: int, kept: bool) -> None:
    app, path = App("memory://"), str(tmp_path / "shop.db")
    task: Any = app.task(kind="process")(django_tasks.in_process)
    async with app, Worker(app, concurrency=1):
        assert await (await task.enqueue(path, max_age)).result(timeout=60) == (False, path)
        assert await (await task.enqueue(path, max_age)).result(timeout=60) == (kept, path)


def test_an_app_is_found_in_a_module_with_lazy_settings_of_django(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "shop_jobs.py").write_text(
        "from django.conf import LazySettings\nfrom treadle import App\n\nsettings = LazySettings()\napp = App('memory://')\n"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    assert isinstance(find_app("shop_jobs"), App)
