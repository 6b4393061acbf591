"""The jobs of the site. Run them: `treadle worker jobs:app`."""

from datetime import UTC, datetime, timedelta

import mails
from database import FILE, Session, User
from flask import Flask, current_app, render_template_string
from sqlalchemy import delete, select

from treadle import App, Retry, current
from treadle.integrations.flask import app_context

app = App(f"sqlite:///{FILE}?shared=true", retry=Retry(attempts=5))


def site() -> Flask:
    from web import create_app

    return create_app()


@app.task(queue="mail", timeout=30)
@app_context(site)
def welcome(user: int) -> None:
    with Session() as session:
        to = session.get_one(User, user).address
    mails.send(
        to, render_template_string("Welcome, {{ to }}! {{ sender }}", to=to, sender=current_app.config["SENDER"])
    )


@app.task(queue="reports")
def report(rows: int) -> str:
    for row in range(rows):
        if current().cancelled:
            break
        current().report(row / rows, f"row {row} of {rows}")
    return f"{rows} rows"


@app.every(3600)
def remove_unconfirmed() -> int:
    before = datetime.now(UTC) - timedelta(days=3)
    with Session.begin() as session:
        old = session.scalars(select(User.id).where(~User.confirmed, User.since < before)).all()
        session.execute(delete(User).where(User.id.in_(old)))
    return len(old)
