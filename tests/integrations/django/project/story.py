"""One story of the shop, from the first table to the last job: what a worker does with Django tasks.

It prints one line for each step; tests/integrations/django/test_project.py compares them.
"""

import os
import signal
import subprocess
import sys
import threading
import time
from collections import Counter

import django

django.setup()

from django.conf import settings  # noqa: E402
from django.core.management import call_command  # noqa: E402
from django.db import connection, transaction  # noqa: E402

call_command("migrate", verbosity=0)

from shop import tasks  # noqa: E402
from shop.models import Order  # noqa: E402

from treadle import Retry  # noqa: E402
from treadle.integrations.django import app, app_of  # noqa: E402

PATIENCE = 150.0  # s
LOG = settings.FOLDER / "worker.log"


def worker(*words):
    """A worker with short leases."""
    command = [sys.executable, "-u", "manage.py", "treadle", "worker", "--lease", "2", "--poll", "0.2", *words]
    with LOG.open("w") as log:
        return subprocess.Popen(command, stdout=log, stderr=log)


def ended(*results):
    """Wait until these have ended -> their states."""
    until = time.monotonic() + PATIENCE
    for result in results:
        while not result.is_finished:
            assert time.monotonic() < until, f"{result.task.module_path} is {result.status}"
            time.sleep(0.05)
            result.refresh()
    return [str(result.status) for result in results]


assert app is app_of("default")
order = Order.objects.create(what="a boat")

try:
    with transaction.atomic():
        lost = tasks.send.enqueue(order.pk, to="nobody")
        raise ZeroDivisionError
except ZeroDivisionError:
    print("rolled back:", len(app.sync.jobs.list().records), "jobs")

with transaction.atomic():
    kept = tasks.send.enqueue(order.pk, to="ada")
    seen = []
    other = threading.Thread(target=lambda: (seen.append(len(app.sync.jobs.list().records)), connection.close()))
    other.start()
    other.join()
print("before the commit, others see", seen, "jobs; after it", len(app.sync.jobs.list().records))

together = [tasks.meets.enqueue() for _ in range(20)]
asynchronous = [tasks.apay.enqueue(order.pk) for _ in range(30)]
failing = tasks.fails.using(retry=Retry(attempts=2, base=0)).enqueue()
gone = tasks.pay.enqueue(order.pk)
connection.close()

# a task that the code of the worker does not have: it was renamed since
with transaction.atomic():
    app.sync.enqueue(app.stub("shop.tasks.renamed", queue="default").job(1), within=connection)
    app.sync.enqueue(app.stub("os.system", queue="default").job("true"), within=connection)

first = worker("--concurrency", "40")
try:
    print("sent:", ended(kept)[0], kept.return_value)
    print("async tasks side by side:", Counter(ended(*together)))
    print("async tasks:", Counter(ended(*asynchronous)))
    print("failed:", *ended(failing), failing.attempts, failing.errors[0].exception_class.__name__)
    while "claiming jobs" not in LOG.read_text():  # before it says so, the supervisor restarts no process
        time.sleep(0.05)
    killed = tasks.dies_once.enqueue(order.pk)
    print("killed in the middle:", *ended(killed), killed.return_value, killed.attempts)
    ended(gone)
    order.refresh_from_db()
    print("paid:", order.paid)
    for row in app.sync.jobs.list(state="ready").records:
        if row.job.task in ("shop.tasks.renamed", "os.system"):
            print(row.job.task, "stays:", f"the task {row.job.task!r}." in app.sync.jobs.explain(row.job.id))
    print("schedules:", [(each.name, each.task) for each in app.sync.schedules.list()])
    print("receivers raised:", (settings.FOLDER / "receivers").read_text().count("raised") >= 50)
finally:
    os.kill(first.pid, signal.SIGTERM)
    first.wait(timeout=60)
said = LOG.read_text()
print("worker:", first.returncode, "no such task" in said)
if first.returncode:
    print(said)
app.sync.close()
