"""The site. Serve it: `flask --app web run`, or `gunicorn 'web:create_app()'`."""

from database import Base, Session, User, engine
from flask import Flask, request
from jobs import app, report, welcome

from treadle import UnknownJob


def create_app() -> Flask:
    web = Flask(__name__)
    web.config["SENDER"] = "site@example.org"
    Base.metadata.create_all(engine)

    @web.post("/signup")
    def signup():
        with Session.begin() as session:
            user = User(address=request.form["address"])
            session.add(user)
            session.flush()  # gives it its id
            welcome.options(within=session).enqueue_sync(user.id)
            return {"user": user.id}, 201

    @web.post("/reports")
    def start():
        return {"report": report.enqueue_sync(int(request.form["rows"])).id}, 202

    @web.get("/reports/<id>")
    def status(id):
        row = app.sync.jobs.get(id)
        done = row.state == "succeeded"
        result = app.sync.jobs.handle(id).result_sync(timeout=0) if done else None
        return {"state": row.state, "progress": 1 if done else row.progress, "result": result}

    @web.delete("/reports/<id>")
    def stop(id):
        app.sync.jobs.cancel(id)
        return "", 204

    @web.errorhandler(UnknownJob)
    def unknown(error):
        return {"error": str(error)}, 404

    return web
