"""The jobs of the shop. Run them: `celery -A jobs worker -Q celery,payments`, and one `celery -A jobs beat`."""

import os

from celery import Celery
from celery.schedules import crontab
from database import Order, SyncSession
from payments import pay
from sqlalchemy import func, select, update

REDIS = os.environ.get("REDIS_URL", "redis://localhost")
app = Celery("shop", broker=REDIS, backend=REDIS)
app.conf.update(
    timezone="Europe/Paris",
    task_acks_late=True,  # without these two, the jobs of a worker that dies are lost
    task_reject_on_worker_lost=True,
    broker_connection_retry_on_startup=True,
    task_routes={"jobs.charge": {"queue": "payments"}},
    beat_schedule={"count_shipped": {"task": "jobs.count_shipped", "schedule": crontab(hour="3", minute="0")}},
)
RETRIES = {"autoretry_for": (Exception,), "retry_backoff": 1, "max_retries": 4}


@app.task(bind=True, time_limit=30, **{**RETRIES, "retry_backoff_max": 300, "max_retries": 7})
def charge(self, order: int) -> int:
    with SyncSession() as session:
        cents = session.get_one(Order, order).cents
    pay(self.request.id, cents)
    mark(order, "paid")
    return order


@app.task(**RETRIES)
def pack(order: int) -> int:
    mark(order, "packed")
    return order


@app.task(**RETRIES)
def ship(order: int) -> str:
    mark(order, "shipped")
    return f"order {order} is on its way"


@app.task(**RETRIES)
def count_shipped() -> int:
    with SyncSession() as session:
        return session.scalar(select(func.count()).where(Order.state == "shipped")) or 0


def mark(order: int, state: str) -> None:
    with SyncSession.begin() as session:
        session.execute(update(Order).where(Order.id == order).values(state=state))
