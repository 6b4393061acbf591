"""The web site: it sends jobs from views, sync and async."""

import asyncio
from datetime import UTC, datetime, timedelta

from celery.result import AsyncResult

from shop import mail, orders, reports
from shop.celery import app


def sign_up(name):
    mail.send_mail.delay(name)
    mail.send_newsletter.apply_async(args=[name], queue="bulk")
    return mail.send_mail.delay(f"{name}-again", subject="flaky").id


async def view(request):
    mail.send_mail.delay(request["name"], subject="async")
    await asyncio.to_thread(orders.confirm, request["order"], ["book"], 12)


def remind(name, seconds):
    mail.send_mail.apply_async(
        (
            name,  # who gets it
        ),
        {"subject": "reminder"},
        eta=datetime.now(UTC) + timedelta(seconds=seconds),
        expires=86400,
    )
    mail.remind.apply_async((name,), priority=3)


def status(task_id):
    return AsyncResult(task_id).state


def legacy(order):
    app.send_task("shop.orders.audit", args=[order])


def download(path, player):
    player.delay(3)  # a video player, no task
    reports.export.delay(path)
    mail.track.delay("x")
