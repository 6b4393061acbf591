"""The jobs of the shop. Run them: `treadle worker jobs:app`."""

from database import FILE, Order, Session
from payments import pay
from sqlalchemy import func, select, update

from treadle import App, Retry, current

app = App(f"sqlite:///{FILE}?shared=true", retry=Retry(attempts=5))


@app.task(queue="payments", timeout=30, retry=Retry(attempts=8, base=1, max=300))
async def charge(order: int) -> int:
    async with Session() as session:
        cents = (await session.get_one(Order, order)).cents
    pay(current().id, cents)
    await mark(order, "paid")
    return order


@app.task
async def pack(order: int) -> int:
    await mark(order, "packed")
    return order


@app.task
async def ship(order: int) -> str:
    await mark(order, "shipped")
    return f"order {order} is on its way"


@app.cron("0 3 * * *", tz="Europe/Paris")
async def count_shipped() -> int:
    async with Session() as session:
        return await session.scalar(select(func.count()).where(Order.state == "shipped")) or 0


async def mark(order: int, state: str) -> None:
    async with Session.begin() as session:
        await session.execute(update(Order).where(Order.id == order).values(state=state))
