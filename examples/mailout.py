"""A newsletter to many addresses: retried after errors, no faster than the server allows, once for each address.

    treadle worker examples/mailout.py:app          # in one terminal
    python examples/mailout.py 200                  # in another

The mail server here is made up: it refuses one mail in ten and does not know some addresses.
"""

from __future__ import annotations

import asyncio
import random
import sys

from treadle import Abort, App, Limit, Retry, Worker, all_done, current

app = App()


class ServerBusy(Exception):
    """The server is busy: code 421 of a real server."""


async def smtp_send(address: str, message_id: str) -> None:
    await asyncio.sleep(0.01)
    if random.random() < 0.1:
        raise ServerBusy("try again later")
    if address.startswith("nobody"):
        raise LookupError(f"no mailbox {address}")


def classify(error: BaseException, info: object) -> Abort | None:
    """Do not retry an address that does not exist."""
    return Abort() if isinstance(error, LookupError) else None


@app.task(
    queue="mail",
    limits=["smtp"],
    retry=Retry(attempts=8, base=0.2, max=60),
    on_error=classify,
    timeout=30,
    options=lambda issue, address: {"id": f"mail:{issue}:{address}", "labels": [f"issue-{issue}"]},
)
async def send(issue: int, address: str) -> str:
    # The job's id is the same in every attempt, so the server can drop a mail that it has accepted before.
    await smtp_send(address, message_id=f"<{current().id}>")
    return address


@app.task(queue="mail")
async def report(issue: int) -> dict[str, int]:
    """Runs when every mail has ended, whether sent or failed."""
    found = {}
    for state in ("succeeded", "failed"):
        found[state] = (await app.jobs.list(label=f"issue-{issue}", state=state, limit=0, count=True)).total or 0
    return found


async def main(count: int, with_worker: bool) -> None:
    async with app:
        await app.limits.set(Limit("smtp", slots=20, rate=500, per=1))
        addresses = [f"reader{number}@example.org" for number in range(count - 1)] + ["nobody@example.org"]
        mails = await app.enqueue(send.job(7, address) for address in addresses)
        again = await send.enqueue(7, addresses[0])  # enqueued twice, sent once: the id is known
        assert again == mails[0]
        last = await report.options(after=mails, when=all_done()).enqueue(7)
        if with_worker:
            async with Worker(app, concurrency=50):
                print(await last.result(timeout=60))
        else:
            print(await last.result(timeout=60))


if __name__ == "__main__":
    asyncio.run(main(int(sys.argv[1]) if len(sys.argv) > 1 else 50, with_worker="--worker" in sys.argv))
