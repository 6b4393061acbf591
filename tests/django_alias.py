"""A Django database for tests on a SQLite file of their own."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import django
from django.conf import settings
from django.db import connections


@contextmanager
def django_alias(path: Path) -> Iterator[str]:
    """The alias of a Django database on that file. The process has one Django, so its settings are made once."""
    if not settings.configured:
        settings.configure(DATABASES={"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": ":memory:"}})
        django.setup()
    alias = f"at {path}"
    connections.settings[alias] = connections.configure_settings(
        {"default": {}, alias: {"ENGINE": "django.db.backends.sqlite3", "NAME": str(path)}}
    )[alias]
    yield alias
    connections[alias].close()
    del connections.settings[alias]
