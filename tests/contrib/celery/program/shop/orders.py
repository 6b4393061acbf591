"""Orders: a chain, a chord, and calls with options."""

from celery import chain, chord, group, shared_task

from shop.celery import app
from shop.journal import record
from shop.mail import send_invoice, send_mail as mail


@app.task
def reserve(order, items):
    record("reserve", order, items)
    return order


@app.task(name="payments.charge", acks_late=True, time_limit=60)
def charge(order, amount):
    record("charge", order, amount)
    return order


@app.task
def ship(order):
    record("ship", order)
    return f"parcel-{order}"


@app.task
def price(item):
    record("price", item)
    return item * 10


@app.task
def total(prices, order):
    record("total", order, sum(prices))
    return sum(prices)


@app.task
def pack(order):
    record("pack", order)
    return order


@app.task
def label(order):
    record("label", order)


@app.task
def audit(order):
    record("audit", order)


@app.task
def refresh_stock(warehouse):
    record("stock", warehouse)


def confirm(order, items, amount):
    """Reserve, charge and ship; the mail does not use their results."""
    chain(
        reserve.s(order, items),  # the order goes from step to step
        charge.s(amount),
        ship.s(),
        mail.si(f"customer-{order}", subject="shipped"),
    ).apply_async()
    send_invoice.apply_async((order,), countdown=1)


def quote(order, items):
    """The sum of all prices, waited for."""
    result = chord((price.s(item) for item in items), total.s(order)).delay()
    return result.get(timeout=30)


def announce(people):
    group(mail.s(person, subject="news") for person in people).apply_async()


def archive(order):
    steps = pack.s(order) | label.s()
    return steps.apply_async()


def check(orders):
    audit.chunks([(order,) for order in orders], 10).apply_async()
