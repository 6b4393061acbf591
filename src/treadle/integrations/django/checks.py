"""System checks: `manage.py check`, and `check --database default` for the tables."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final

from django.apps import apps
from django.conf import settings
from django.core import checks
from django.core.exceptions import ImproperlyConfigured
from django.db import connections
from django.utils.connection import ConnectionDoesNotExist

from treadle.core.errors import StorageError, TreadleError
from treadle.integrations.django import database, schedules
from treadle.integrations.django.database_app import stores
from treadle.integrations.django.options import BackendOptions
from treadle.integrations.django.reading import in_outbox, read
from treadle.storage import connect

APP: Final = "treadle.integrations.django"
IMMEDIATE: Final = '"OPTIONS": {"transaction_mode": "IMMEDIATE"}'


def register_all() -> None:
    checks.register(of_schedules, "treadle")
    checks.register(of_tables, checks.Tags.database)


def of_backend(alias: str, options: BackendOptions) -> Iterator[Any]:
    """The checks of one backend; Django asks it for them."""
    if not apps.is_installed(APP):
        yield checks.Error(
            f"TASKS[{alias!r}] is a Treadle backend, and {APP!r} is not installed.",
            hint="Add it to INSTALLED_APPS: it makes the tables of the jobs, and has the command and the admin pages.",
            id="treadle.E001",
        )
    yield from _of_texts(alias, options)
    if options.url is not None:
        if options.commit == "same":
            yield checks.Error(
                f"TASKS[{alias!r}]: commit='same' needs the jobs in a Django database, and they are at the url.",
                hint="Leave out 'url', or use commit='after', which stores a job when your transaction has committed.",
                id="treadle.E003",
            )
        if options.commit == "outbox":
            yield from _of_outbox(alias, options)
        if options.commit == "after" and options.database not in settings.DATABASES:
            yield _no_database(alias, options)
        try:
            connect(options.url)
        except (TreadleError, ImportError) as error:
            yield checks.Error(f"TASKS[{alias!r}]['OPTIONS']['url']: {error}", id="treadle.E006")
        return
    if options.commit == "outbox":
        yield checks.Error(
            f"TASKS[{alias!r}]: commit='outbox' is for jobs at another url, and there is none.",
            hint="Leave out 'commit': the jobs are stored in your transaction.",
            id="treadle.E003",
        )
    if options.database not in settings.DATABASES:
        yield _no_database(alias, options)
        return
    connection = connections[options.database]
    if connection.vendor not in database.KNOWN:
        yield checks.Error(
            f"TASKS[{alias!r}]: jobs cannot be stored in {connection.display_name}.",
            hint="Use PostgreSQL or SQLite, or give OPTIONS['url'], such as 'redis://localhost:6379/0'.",
            id="treadle.E002",
        )
        return
    url = database.url_of(options.database, options.schema)
    try:
        if not url.startswith(database.MEMORY):
            connect(url)
    except (TreadleError, ImportError) as error:
        yield checks.Error(f"TASKS[{alias!r}]: jobs cannot be stored there: {error}", id="treadle.E002")
        return
    yield from _of_database(options.database, connection)


def _of_texts(alias: str, options: BackendOptions) -> Iterator[Any]:
    try:
        options.check_texts()
    except TreadleError as error:
        yield checks.Error(f"TASKS[{alias!r}]['OPTIONS']: {error}", id="treadle.E007")


def _no_database(alias: str, options: BackendOptions) -> Any:
    return checks.Error(
        f"TASKS[{alias!r}]: there is no DATABASES[{options.database!r}].",
        hint="Give OPTIONS['database'] an alias of DATABASES.",
        id="treadle.E002",
    )


def _of_outbox(alias: str, options: BackendOptions) -> Iterator[Any]:
    try:
        database.outbox_url(options.database)
    except (ImproperlyConfigured, ConnectionDoesNotExist) as error:
        yield checks.Error(
            f"TASKS[{alias!r}]: {error}", hint="Use commit='after', or another database.", id="treadle.E002"
        )


def _of_database(alias: str, connection: Any) -> Iterator[Any]:
    options = connection.settings_dict.get("OPTIONS") or {}
    if connection.vendor == "sqlite":
        mode = str(options.get("transaction_mode") or "").upper()
        if mode not in ("IMMEDIATE", "EXCLUSIVE") and not database.is_in_memory(connection):
            yield checks.Warning(
                f"DATABASES[{alias!r}] begins its transactions deferred: one that reads before it enqueues fails as "
                "soon as another process has committed in between.",
                hint=f"Add {IMMEDIATE}.",
                id="treadle.W001",
            )
        return
    level = options.get("isolation_level")
    if level is not None and getattr(level, "name", str(level)) not in ("READ_COMMITTED", "1"):
        yield checks.Warning(
            f"DATABASES[{alias!r}] uses another isolation level than read committed: a key or a limit may be decided "
            "on rows that have changed since the transaction began.",
            hint="Leave out 'isolation_level', or set it for single transactions.",
            id="treadle.W002",
        )


def of_schedules(app_configs: Sequence[Any] | None = None, **kwargs: Any) -> Iterable[Any]:
    """Each entry of TREADLE_SCHEDULES with which no worker would start."""
    return [checks.Error(problem, id="treadle.E005") for problem in schedules.problems()]


def of_tables(app_configs: Sequence[Any] | None = None, databases: Sequence[str] | None = None, **kwargs: Any) -> Any:
    """Whether the databases have Treadle's tables; `manage.py check --database default` and `migrate` run it."""
    for store in stores():
        alias = store.database or store.outbox
        if alias is None or alias not in (databases or ()) or store.migrates:
            continue
        look, what = (read, "store jobs") if store.outbox is None else (in_outbox, "have an outbox")
        try:
            look(store, "treadle-check")
        except (TreadleError, StorageError, ImproperlyConfigured) as error:
            yield checks.Error(
                f"the database {alias!r} cannot {what}: {error}",
                hint="Run `manage.py treadle storage migrate`.",
                id="treadle.E004",
            )
