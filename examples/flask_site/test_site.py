"""The tests of the site: no worker runs, and the jobs are in memory."""

import jobs
import mails
import pytest
from web import create_app


@pytest.fixture
def client():
    return create_app().test_client()


def test_a_new_user_gets_a_mail(client):
    with jobs.app.sync.testing() as t:
        assert client.post("/signup", data={"address": "ada@example.org"}).status_code == 201
        t.drain()
        assert mails.sent == [("ada@example.org", "Welcome, ada@example.org! site@example.org")]


def test_a_refused_sign_up_sends_nothing(client):
    with jobs.app.sync.testing() as t:
        assert client.post("/signup", data={}).status_code == 400
        t.assert_not_enqueued(jobs.welcome)


def test_a_report_is_made_in_the_background(client):
    with jobs.app.sync.testing() as t:
        url = f"/reports/{client.post('/reports', data={'rows': 5}).json['report']}"
        assert client.get(url).json == {"state": "ready", "progress": None, "result": None}
        t.drain()
        assert client.get(url).json == {"state": "succeeded", "progress": 1, "result": "5 rows"}
        assert client.get("/reports/nobody").status_code == 404
