"""Tests of a Flask application that enqueues in its database's transaction.

    python examples/testing_flask.py

The class at the end is what the tests of a real application look like.
"""

from __future__ import annotations

import unittest

from flask import Flask, request
from sqlalchemy import create_engine, select
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column
from sqlalchemy.pool import StaticPool

from treadle import App

app = App()
web = Flask(__name__)
engine = create_engine("sqlite://", poolclass=StaticPool, connect_args={"check_same_thread": False})


class Base(DeclarativeBase): ...


class Order(Base):
    __tablename__ = "orders"
    id: Mapped[int] = mapped_column(primary_key=True)
    address: Mapped[str]
    confirmed: Mapped[bool] = mapped_column(default=False)


@app.task(queue="orders")
def confirm(order: int) -> None:
    with Session(engine) as session, session.begin():
        session.get_one(Order, order).confirmed = True


@web.post("/orders")
def place_order() -> dict[str, int]:
    """The order and its job are stored together, or not at all."""
    with Session(engine) as session, session.begin():
        order = Order(address=request.form["address"])
        session.add(order)
        session.flush()
        confirm.options(delay=60, within=session).enqueue_sync(order.id)
        if "@" not in order.address:
            raise ValueError(f"{order.address!r} is no address")
        return {"order": order.id}


class Orders(unittest.TestCase):
    def setUp(self) -> None:
        Base.metadata.drop_all(engine)
        Base.metadata.create_all(engine)
        self.client = web.test_client()

    def orders(self) -> list[bool]:
        with Session(engine) as session:
            return list(session.scalars(select(Order.confirmed)))

    def test_an_order_is_confirmed_a_minute_later(self) -> None:
        with app.sync.testing() as t:
            placed = self.client.post("/orders", data={"address": "ada@example.org"}).get_json()
            t.assert_enqueued(confirm.options(delay=60).job(placed["order"]))
            assert (t.drain(), self.orders()) == (0, [False])
            assert (t.advance(60), self.orders()) == (1, [True])

    def test_an_order_that_is_rolled_back_enqueues_nothing(self) -> None:
        with app.sync.testing() as t:
            assert self.client.post("/orders", data={"address": "nowhere"}).status_code == 500
            t.assert_not_enqueued(confirm)
            assert self.orders() == []


if __name__ == "__main__":
    unittest.main()
