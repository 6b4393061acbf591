"""The tests of the shop: tasks run as they are sent, and retries at once. Schedules and waits are not tested."""

from collections.abc import Iterator

import jobs
import payments
import pytest
from fastapi.testclient import TestClient
from web import web

jobs.app.conf.update(task_always_eager=True, task_store_eager_result=True, result_backend="cache+memory://")


@pytest.fixture
def client() -> Iterator[TestClient]:
    with TestClient(web) as client:
        yield client


def test_an_order_is_paid_packed_and_shipped(client: TestClient, monkeypatch: pytest.MonkeyPatch) -> None:
    failures = [ConnectionError("no answer"), ConnectionError("no answer")]

    def pay(key: str, cents: int) -> None:
        if failures:
            raise failures.pop()
        payments.pay(key, cents)

    monkeypatch.setattr(jobs, "pay", pay)
    url = f"/orders/{client.post('/orders', json={'item': 'boat', 'cents': 500}).json()['order']}"
    assert client.get(url).json() == {"state": "shipped", "progress": 1}
    assert list(payments.charged.values()) == [500]


def test_an_order_that_is_refused_leaves_no_job(client: TestClient) -> None:
    assert client.post("/orders", json={"item": "boat"}).status_code == 422
    assert client.get("/orders/99").status_code == 404
