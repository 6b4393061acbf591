"""The app of `treadle demo --dashboard`, `treadle.contrib.demo.shop:app`: a busy shop, in which some jobs fail.

Every page of the dashboard has something to show: several queues, retries, failures, workflows, durable steps that wait
for a signal, limits that block jobs, schedules, a paused queue, and a queue that no worker serves.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Sequence
from typing import Any, Final

from treadle import App, Limit, Retry, current, gather

QUEUES: Final = {"mail": 3, "orders": 3, "images": 2, "reports": 1, "video": 1}  # with weights, of the demo's workers
CUSTOMERS: Final = ("ada", "grace", "edsger", "barbara", "donald", "radia")
TENANTS: Final = 3
SIZES: Final = ("small", "medium", "large")  # sizes of a film, one for each tenant
COUNTER: Final = 40  # items of a large order, enough for the graph to fold them

app = App()
log = logging.getLogger("shop")
rng = random.Random()


def limits() -> tuple[Limit, ...]:
    """The limits of the shop."""
    return Limit("smtp", slots=8, rate=900, per=60), Limit("tenant", slots=1), Limit("queue:video", slots=4)


@app.task(name="shop.send_mail", queue="mail", limits=["smtp"], retry=Retry(attempts=3, base=1))
async def send_mail(to: str, order: int, smtp_password: str = "demo") -> str:
    """Send the confirmation of an order."""
    log.info("mail server smtp.example.org, order %d", order)
    await asyncio.sleep(rng.uniform(0.01, 0.25))
    if rng.random() < 0.04:
        raise ConnectionError(f"smtp.example.org refused {to}: 421 too many connections ({order})")
    if order % 97 == 0:
        raise ValueError(f"no such mailbox: {to}")
    log.info("sent the confirmation of order %d", order)
    return f"sent {order}"


@app.task(name="shop.thumbnail", queue="images", retry=Retry(attempts=1))
async def thumbnail(path: str, size: int = 256) -> dict[str, int]:
    """Make a small picture of a product."""
    await asyncio.sleep(rng.uniform(0.05, 0.4))
    if size < 16:
        raise ValueError(f"cannot make a thumbnail of {path}: size {size}")
    return {"width": size, "height": size * 3 // 4}


@app.task(name="shop.reserve", queue="orders")
async def reserve(order: int) -> int:
    """Reserve the goods of an order."""
    await asyncio.sleep(rng.uniform(0.05, 0.3))
    return order


@app.task(name="shop.pack", queue="orders", retry=Retry(attempts=2, base=0.5))
async def pack(order: int, item: int) -> int:
    """Pack one item."""
    await asyncio.sleep(rng.uniform(0.1, 1.2))
    if rng.random() < 0.02:
        raise TimeoutError(f"the scale did not answer for item {item} of order {order}")
    return item


@app.task(name="shop.ship", queue="orders")
async def ship(items: Sequence[int], order: int) -> str:
    """Ship all items in one parcel."""
    await asyncio.sleep(0.4)
    return f"order {order}: {len(items)} items"


@app.task(name="shop.fulfil", queue="orders")
async def fulfil(order: int, items: int) -> Any:
    """Pack all items at once, ship them together, then write to the customer."""
    parcel = gather(pack.job(order, item) for item in range(items)).into(ship, order=order)
    return parcel.then(send_mail.job(f"{rng.choice(CUSTOMERS)}@example.org", order))


@app.task(name="shop.checkout", queue="orders")
async def checkout(order: int, amount: int) -> str:
    """Charge an order in durable steps. A large amount waits until somebody gives the signal `approved`."""
    here = current()
    receipt = await here.step("charge", _charge, order, amount)
    if amount > 900:
        answer = await here.wait_for("approved", timeout=600)
        log.info("order %d: %s", order, answer)
    await here.sleep(rng.uniform(1, 5))
    return str(receipt)


async def _charge(order: int, amount: int) -> str:
    await asyncio.sleep(0.2)
    return f"receipt {order * 7 % 1000:03d} over {amount}"


@app.task(name="shop.encode", queue="video", options=lambda file, tenant: {"limits": [f"tenant:{tenant}"]})
async def encode(file: str, tenant: int) -> str:
    """Encode a film, which takes a while. Each tenant has one at a time."""
    for part in range(20):
        await current().progress(part / 20, f"part {part} of 20 of {file}")
        await asyncio.sleep(rng.uniform(0.3, 1.5))
    return file.replace(".mov", ".mp4")


@app.task(name="shop.publish", queue="orders")
async def publish(parts: Sequence[Any], film: str) -> str:
    """Put all versions of a film and its picture on the page of the shop."""
    await asyncio.sleep(0.4)
    return f"{film}: {len(parts)} files"


@app.task(name="shop.release", queue="orders")
async def release(film: str) -> Any:
    """Encode a film in several sizes and make its picture, all at once; then publish it and tell a customer."""
    versions = [encode.job(f"{film}-{size}.mov", tenant) for tenant, size in enumerate(SIZES)]
    published = gather([*versions, thumbnail.job(f"/img/{film}.png")]).into(publish, film=film)
    return published.then(send_mail.job(f"{rng.choice(CUSTOMERS)}@example.org", 1))


@app.every(15, name="stock", catch_up="skip")
@app.task(name="shop.count_stock", queue="reports")
async def count_stock() -> int:
    """Count what is in stock."""
    await asyncio.sleep(rng.uniform(0.5, 2))
    return rng.randrange(1_000, 2_000)


@app.cron("0 3 * * *", tz="Europe/Paris", name="nightly")
@app.task(name="shop.nightly_report", queue="reports")
async def nightly_report() -> str:
    """Sum up the day."""
    return "done"


@app.task(name="shop.print_letter", queue="letters")
async def print_letter(to: str) -> None:
    """Print a letter. No worker of the demo serves its queue."""


@app.task(name="shop.import_prices", queue="imports")
async def import_prices(supplier: str) -> None:
    """Import a price list. Its queue is paused."""
