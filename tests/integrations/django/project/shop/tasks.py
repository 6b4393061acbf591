"""The tasks of the shop."""

import os
import signal
import threading

import django
from asgiref.sync import sync_to_async
from django.conf import settings
from django.db import connection
from django.db.models import F

from shop.models import Order
from treadle import Retry
from treadle.integrations.django import app

if django.VERSION >= (6, 0):
    from django.tasks import task
else:
    from django_tasks import task


class OutOfStock(Exception):
    pass


@task(queue_name="mail")
def send(order, to):
    return f"{Order.objects.get(pk=order).what} for {to}"


@task
def pay(order):
    Order.objects.filter(pk=order).update(paid=F("paid") + 1)


@task
async def apay(order):
    await Order.objects.filter(pk=order).aupdate(paid=F("paid") + 1)
    return connection.alias


@app.task
def note(order: int) -> None:
    Order.objects.filter(pk=order).update(paid=F("paid") + 1)


@task(takes_context=True)
def whoami(context, *args):
    return [context.task_result.id, context.attempt, context.task_result.status, list(args)]


@task
def fails():
    raise OutOfStock("no boats")


@task
def interrupted():
    raise KeyboardInterrupt


@task
def chained(left):
    """Pay as often as `left` says, one job after the other."""
    if left:
        pay.enqueue(Order.objects.get().pk)
        chained.enqueue(left - 1)


@task
def dies_once(order):
    """The worker is killed in the middle of its first try."""
    flag = settings.FOLDER / "died"
    if not flag.exists():
        flag.touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return Order.objects.get(pk=order).what


_all = threading.Barrier(20)


@task
async def meets():
    """Ends when 20 of these run at the same time, each in a thread of the ORM."""
    await sync_to_async(_all.wait)(120)
    return await Order.objects.acount()


@task
def report():
    return "done"


flaky = fails.using(retry=Retry(attempts=2, base=0))
