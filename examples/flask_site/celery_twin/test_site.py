"""The tests of the site: tasks run as they are sent. What waits in a queue, and a cancellation, are not tested."""

import jobs
import mails
import pytest
from web import create_app

jobs.app.conf.update(task_always_eager=True, task_store_eager_result=True, result_backend="cache+memory://")


@pytest.fixture
def client():
    return create_app().test_client()


def test_a_new_user_gets_a_mail(client):
    assert client.post("/signup", data={"address": "ada@example.org"}).status_code == 201
    assert mails.sent == [("ada@example.org", "Welcome, ada@example.org! site@example.org")]


def test_a_refused_sign_up_sends_nothing(client):
    mails.sent.clear()
    assert client.post("/signup", data={}).status_code == 400
    assert mails.sent == []


def test_a_report_is_made_in_the_background(client):
    url = f"/reports/{client.post('/reports', data={'rows': 5}).json['report']}"
    assert client.get(url).json == {"state": "succeeded", "progress": 1, "result": "5 rows"}
