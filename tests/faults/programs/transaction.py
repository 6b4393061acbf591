"""Enqueue in a transaction: an order and the job that ships it are stored in one commit, or neither of them is."""

from tests.faults.outside import database, effect
from treadle import App, current

app = App()


@app.task
async def ship(order: int) -> None:
    here = current()
    await here.step("ship", effect, f"ship {order}")


async def submit(order: int) -> None:
    with database() as db:  # a connection of psycopg, or of sqlite3
        db.execute(f"INSERT INTO orders VALUES ({order})")
        await app.enqueue(ship.options(id=f"ship:{order}").job(order), within=db)
        effect(f"store {order}")
        db.commit()
    effect(f"confirm {order}")


# --- in the tests
KINDS = ["async"]
STORAGES = ["sqlite", "postgres"]
LINES = ["store 7", "confirm 7", "ship 7"]


def orders() -> int:
    with database() as db:
        return db.execute("SELECT count(*) FROM orders").fetchone()[0]


async def scenario() -> list[int]:
    if not orders():
        await submit(7)
    await (await app.jobs.handle("ship:7")).result(timeout=60)
    return [orders(), len((await app.jobs.list()).records)]


def right(effects: list[str], result: list[int], line: int) -> None:
    """Before the commit both are lost, and the caller tries again. After it the job runs."""
    assert result == [1, 1]
    last = effects[line - 1] if line else ""
    assert effects.count("store 7") == 1 + (last == "store 7")
    assert effects.count("ship 7") == 1 + (last == "ship 7")
    assert effects.count("confirm 7") <= 1
