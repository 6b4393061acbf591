"""The jobs of the site.

Run them: `PYTHONPATH=. celery -A jobs worker -Q celery,mail,reports`, and one `celery -A jobs beat`.
"""

import os
from datetime import UTC, datetime, timedelta

import mails
from celery import Celery, Task
from database import Session, User
from flask import current_app, render_template_string
from sqlalchemy import delete, select

REDIS = os.environ.get("REDIS_URL", "redis://localhost")


class FlaskTask(Task):
    """A task that runs in the context of the application, as Flask's documentation has it."""

    def __call__(self, *args, **kwargs):
        from web import create_app

        with create_app().app_context():
            return self.run(*args, **kwargs)


app = Celery("site", broker=REDIS, backend=REDIS)
app.conf.update(
    task_acks_late=True,  # without these two, the jobs of a worker that dies are lost
    task_reject_on_worker_lost=True,
    task_track_started=True,
    broker_connection_retry_on_startup=True,
    task_routes={"jobs.welcome": {"queue": "mail"}, "jobs.report": {"queue": "reports"}},
    beat_schedule={"remove": {"task": "jobs.remove_unconfirmed", "schedule": 3600}},
)
RETRIES = {"autoretry_for": (Exception,), "retry_backoff": True, "max_retries": 4}


@app.task(base=FlaskTask, time_limit=30, **RETRIES)
def welcome(user):
    with Session() as session:
        to = session.get_one(User, user).address
    mails.send(
        to, render_template_string("Welcome, {{ to }}! {{ sender }}", to=to, sender=current_app.config["SENDER"])
    )


@app.task(bind=True, **RETRIES)
def report(self, rows):
    for row in range(rows):
        self.update_state(state="PROGRESS", meta={"progress": row / rows, "text": f"row {row} of {rows}"})
    return f"{rows} rows"


@app.task(**RETRIES)
def remove_unconfirmed():
    before = datetime.now(UTC) - timedelta(days=3)
    with Session.begin() as session:
        old = session.scalars(select(User.id).where(~User.confirmed, User.since < before)).all()
        session.execute(delete(User).where(User.id.in_(old)))
    return len(old)
