"""A refund waits for a person of a group, for days if need be and without a slot. A reminder goes out meanwhile.

treadle worker examples/refund.py:app
python examples/refund.py
"""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

from treadle import App, Worker, current

app = App()
LEDGER = Path("ledger.txt")
REMIND_AFTER = 0.3  # s; in production: a day


def write_down(line: str) -> None:
    with LEDGER.open("a", encoding="utf-8") as ledger:
        ledger.write(line + "\n")


@app.task
async def refund(order: int, amount: int) -> str:
    here, asked = current(), {"order": order, "amount": amount}
    winner, answer = await here.first(
        answer=here.approve("refund", by="group:finance", show=asked), late=here.sleep(REMIND_AFTER), keep=True
    )
    if winner == "late":
        await here.step("remind", write_down, f"reminded finance of order {order}")
        await here.publish("reminded", True)
        answer = await here.approve("refund", by="group:finance", show=asked)
    if not answer:
        return f"order {order}: rejected by {answer.by}, {answer.reason}"
    await here.step("pay", write_down, f"paid {amount} for order {order}, approved by {answer.by}")
    return f"order {order}: approved by {answer.by}"


async def decide(order: int, approved: bool, reason: str) -> None:
    """What the dashboard, `treadle jobs approve`, the link in a mail and your own page do."""
    while True:
        page = await app.jobs.approvals(by="group:finance")
        for request in page.requests:
            if request.show["order"] == order:
                await app.jobs.decide(request, approved=approved, reason=reason, by="ann", groups=("finance",))
                return
        await asyncio.sleep(0.05)


async def show() -> None:
    small = await refund.options(id="refund-7").enqueue(7, 30)
    await decide(7, True, "the parcel was lost")
    print(await small.result(timeout=60))
    large = await refund.options(id="refund-8").enqueue(8, 9_000)
    await app.jobs.value(large, "reminded", wait=60)
    await decide(8, False, "too late")
    print(await large.result(timeout=60))


async def main(with_worker: bool) -> None:
    async with app:
        if with_worker:
            async with Worker(app):
                await show()
        else:
            await show()


if __name__ == "__main__":
    LEDGER.touch()
    asyncio.run(main(with_worker="--worker" in sys.argv))
    print(*(line for line in LEDGER.read_text(encoding="utf-8").splitlines() if line.startswith("paid")), sep="\n")
