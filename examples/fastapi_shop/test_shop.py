"""The tests of the shop: no worker runs, and the jobs are in memory."""

from collections.abc import Iterator

import jobs
import payments
import pytest
from fastapi.testclient import TestClient
from web import web


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
    with jobs.app.sync.testing() as t:
        url = f"/orders/{client.post('/orders', json={'item': 'boat', 'cents': 500}).json()['order']}"
        assert client.get(url).json() == {"state": "new", "progress": 0}
        t.drain()  # the first attempt fails
        assert client.get(url).json()["state"] == "new"
        t.advance(60)  # its retries, a second and two seconds later
        assert client.get(url).json() == {"state": "shipped", "progress": 1}
        assert list(payments.charged.values()) == [500]


def test_an_order_that_is_refused_leaves_no_job(client: TestClient) -> None:
    with jobs.app.sync.testing() as t:
        assert client.post("/orders", json={"item": "boat"}).status_code == 422
        assert client.get("/orders/99").status_code == 404
        t.assert_not_enqueued(jobs.charge)
