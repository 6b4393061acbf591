"""The Celery app, with its routes and its beat schedule."""

import os
from datetime import timedelta

from celery import Celery
from celery.schedules import crontab
from celery.signals import task_failure

app = Celery("shop", include=["shop.mail", "shop.orders", "shop.reports"])
app.set_default()  # in all threads
app.conf.update(
    broker_url=os.environ.get("SHOP_BROKER", "redis://localhost:6379/0"),
    result_backend=os.environ.get("SHOP_BROKER", "redis://localhost:6379/0"),
    timezone="Europe/Paris",
    task_routes={"shop.mail.*": {"queue": "mail"}, "shop.reports.*": {"queue": "reports"}},
    worker_max_tasks_per_child=1000,
)
app.conf.beat_schedule = {
    "nightly-report": {
        "task": "shop.reports.nightly",
        "schedule": crontab(hour=3, minute=30, day_of_week="mon-fri"),
    },
    "refresh-stock": {  # every ten minutes
        "task": "shop.orders.refresh_stock",
        "schedule": timedelta(minutes=10),
        "args": ("main",),
    },
    "first-monday": {
        "task": "shop.reports.monthly",
        "schedule": crontab(hour=4, minute=0, day_of_month="1-7", day_of_week="mon"),
    },
}


@task_failure.connect
def tell_operator(sender=None, exception=None, **kwargs):
    print(f"{sender.name} failed: {exception}")
