"""The program that a child process of test_django runs, with a Django of its own."""

from __future__ import annotations

import django
from django.conf import settings
from django.db import connection


def in_process(path: str, max_age: int) -> tuple[bool, str]:
    """Whether a connection of the job before was still open, and which file this one reads."""
    if not settings.configured:
        engine = "django.db.backends.sqlite3"
        settings.configure(DATABASES={"default": {"ENGINE": engine, "NAME": path, "CONN_MAX_AGE": max_age}})
        django.setup()
    kept = connection.connection is not None
    with connection.cursor() as cursor:
        return kept, cursor.execute("PRAGMA database_list").fetchone()[2]
