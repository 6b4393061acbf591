"""An order in durable code: it is charged once, sleeps, and waits for a person. Both waits occupy no worker.

treadle worker examples/approval.py:app
python examples/approval.py
"""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

from treadle import App, Retry, Worker, current

app = App()
LEDGER = Path("ledger.txt")


def write_down(line: str) -> None:
    with LEDGER.open("a", encoding="utf-8") as ledger:
        ledger.write(line + "\n")


def charge(order: int) -> str:
    write_down(f"charged order {order} under key {current().step_key()}")
    return f"receipt-{order}"


def pack(order: int) -> None:
    write_down(f"packed order {order}")
    if LEDGER.read_text(encoding="utf-8").count("packed") == 1:
        raise OSError("no box left")  # the attempt fails; its charge is not repeated


@app.task(retry=Retry(attempts=5, base=0.05))
async def order(number: int) -> str:
    here = current()
    receipt = await here.step("charge", charge, number)
    await here.sleep(0.2)  # in production: three days
    await here.step("pack", pack, number)
    approved_by = await here.wait_for("approved", timeout=3600)
    async with here.once(f"mail:{number}") as first:
        if first:
            await here.step("mail", write_down, f"mailed {receipt}, approved by {approved_by}")
    return receipt


async def main(with_worker: bool) -> None:
    async with app:
        job = await order.options(id="order-7").enqueue(7)
        await app.jobs.signal(job, "approved", "Ada")  # it may arrive before the job waits for it
        if with_worker:
            async with Worker(app):
                receipt = await job.result(timeout=60)
        else:
            receipt = await job.result(timeout=60)
    print(receipt)


if __name__ == "__main__":
    asyncio.run(main(with_worker="--worker" in sys.argv))
    print(LEDGER.read_text(encoding="utf-8"), end="")
