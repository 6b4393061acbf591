"""The site. Serve it: `flask --app web run`, or `gunicorn 'web:create_app()'`."""

from database import Base, Session, User, engine
from flask import Flask, request
from jobs import app, report, welcome

STATES = {
    "PENDING": "ready",
    "STARTED": "running",
    "PROGRESS": "running",
    "SUCCESS": "succeeded",
    "REVOKED": "cancelled",
}


def create_app() -> Flask:
    web = Flask(__name__)
    web.config["SENDER"] = "site@example.org"
    Base.metadata.create_all(engine)

    @web.post("/signup")
    def signup():
        with Session.begin() as session:
            user = User(address=request.form["address"])
            session.add(user)
            session.flush()
            id = user.id
        # A process that dies here leaves a user without a mail. Closing this gap takes an outbox of one's own.
        welcome.delay(id)
        return {"user": id}, 201

    @web.post("/reports")
    def start():
        return {"report": report.delay(int(request.form["rows"])).id}, 202

    @web.get("/reports/<id>")
    def status(id):
        found = app.backend.get_task_meta(id)  # an unknown id is "PENDING", like a job that waits
        state, result = found["status"], found["result"]  # of one read: an AsyncResult reads again for each of them
        done = state == "SUCCESS"
        progress = 1 if done else result["progress"] if state == "PROGRESS" else None
        return {"state": STATES.get(state, "failed"), "progress": progress, "result": result if done else None}

    @web.delete("/reports/<id>")
    def stop(id):
        app.control.revoke(id, terminate=True)  # only workers that run now hear of it
        return "", 204

    return web
