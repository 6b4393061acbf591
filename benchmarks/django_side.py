"""One side of `bench django`: times enqueues of one backend of `django.tasks` and prints them as JSON.

    python benchmarks/django_side.py treadle|django-tasks-db URL ROUNDS

It runs in the environment of its backend, so it imports nothing of this repository.
"""

from __future__ import annotations

import json
import statistics
import sys
import time
import types
from urllib.parse import urlsplit

side, url, rounds = sys.argv[1], urlsplit(sys.argv[2]), int(sys.argv[3])

import django  # noqa: E402
from django.conf import settings  # noqa: E402

treadle = side == "treadle"
backend = "treadle.integrations.django.TreadleBackend" if treadle else "django_tasks_db.DatabaseBackend"
settings.configure(
    DATABASES={
        "default": {
            "ENGINE": "django.db.backends.postgresql",
            "NAME": url.path[1:],
            "USER": url.username,
            "HOST": url.hostname,
            "PORT": url.port,
        }
    },
    INSTALLED_APPS=[
        "django.contrib.contenttypes",
        "django.contrib.auth",
        "treadle.integrations.django" if treadle else "django_tasks_db",
    ],
    TASKS={"default": {"BACKEND": backend}},
    USE_TZ=True,
)
django.setup()

from django.core.management import call_command  # noqa: E402
from django.db import connection, transaction  # noqa: E402

if django.VERSION >= (6, 0):
    from django.tasks import task
else:
    from django_tasks import task

call_command("migrate", verbosity=0)
with connection.cursor() as cursor:
    cursor.execute("CREATE TABLE IF NOT EXISTS orders (id bigserial PRIMARY KEY, what text NOT NULL)")

module = sys.modules["shop"] = types.ModuleType("shop")
exec("def send(order, to): ...", module.__dict__)
module.send = task(module.send)  # type: ignore[attr-defined]
send = module.send  # type: ignore[attr-defined]


def order() -> None:
    with connection.cursor() as cursor:
        cursor.execute("INSERT INTO orders (what) VALUES ('a boat')")


def alone() -> None:
    """A view: its own row and one task, in one transaction."""
    with transaction.atomic():
        order()
        send.enqueue(1, to="ada@example.org")


def without() -> None:
    with transaction.atomic():
        order()


def per(act: object, count: int) -> float:
    """The median of `count` calls, in microseconds."""
    found = []
    for _ in range(count):
        begun = time.perf_counter()
        act()  # type: ignore[operator]
        found.append(time.perf_counter() - begun)
    return statistics.median(found) * 1e6


def many() -> None:
    with transaction.atomic():
        for number in range(100):
            send.enqueue(number, to="ada@example.org")


alone()
print(
    json.dumps(
        {
            "transaction": per(alone, rounds),
            "without": per(without, rounds),
            "of 100": per(many, max(3, rounds // 50)) / 100,
        }
    )
)
