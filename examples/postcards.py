"""A batch task: addresses looked up many at a time, each a job with its own retries, grouped by country.

treadle worker examples/postcards.py:app
python examples/postcards.py
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Sequence

from treadle import App, JobFailed, Retry, Worker, current_batch

app = App()
CODES = {"Paris": "75001", "Lyon": "69001", "Roma": "00118", "Milano": "20121"}


@app.batch(size=20, max_wait=0.2, by=lambda address: address[0], retry=Retry(attempts=2, base=0.05))
async def find_code(addresses: Sequence[tuple[str, str]]) -> Sequence[str | Exception]:
    """Look up all addresses of a country in one call; an unknown town fails alone."""
    print(f"looking up {len(addresses)} of {addresses[0][0]} for {len(current_batch())} jobs", flush=True)
    return [CODES.get(town) or LookupError(f"no town {town}") for _, town in addresses]


async def main(with_worker: bool) -> None:
    wanted = [("FR", "Paris"), ("IT", "Roma"), ("FR", "Lyon"), ("IT", "Milano"), ("IT", "Atlantis")]
    async with app:
        jobs = await app.enqueue([find_code.job(address) for address in wanted])
        if with_worker:
            async with Worker(app):
                await show(wanted, jobs)
        else:
            await show(wanted, jobs)


async def show(wanted, jobs) -> None:
    for (country, town), job in zip(wanted, jobs, strict=True):
        try:
            print(f"{country}-{await job.result(timeout=60)} {town}")
        except JobFailed as error:
            print(f"{country} {town}: {error.error.splitlines()[-1]}")


if __name__ == "__main__":
    asyncio.run(main(with_worker="--worker" in sys.argv))
