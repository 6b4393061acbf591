"""Rounds of one job that kills its worker and 19 healthy ones, in real processes.

`python -m tests.soak.poison --url postgres --rounds 200 --processes 4 --seed 1`, with `--fleet` under `treadle worker`
instead of workers inside programs. After each round: no healthy job has failed, none has used an attempt for it, the
poison job has failed after `max_lost` deaths alone, and the healthy ones have ended within three leases of the last
death.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import random
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from tests.fixtures import LASTING, a_url
from tests.waiting import NotSeen, until
from treadle import App, Record, Retry, State, Worker
from treadle.policy.guilt import guilt_of

LEASE = 3.0
HEALTHY = 19
MAX_LOST = 3
ROUND = 300.0  # s until a round fails

app = App(os.environ.get("SOAK_URL", "memory://"), retry=Retry(attempts=1))


@app.task(name="poison", max_lost=MAX_LOST)
async def poison(delay: float) -> None:
    await asyncio.sleep(delay)
    os.abort()


@app.task(name="waits", max_lost=MAX_LOST)
async def waits(delay: float) -> None:
    await asyncio.sleep(delay)


@app.task(name="blocks", max_lost=MAX_LOST)
def blocks(delay: float) -> None:
    time.sleep(delay)


class Processes:
    """Programs with a worker that are started again when they die, or one `treadle worker`. Counts the deaths."""

    def __init__(self, url: str, count: int, fleet: bool, folder: Path) -> None:
        self._env = {**os.environ, "SOAK_URL": url}
        self._folder, self.deaths, self._over = folder, list[float](), False
        words = ["-m", "tests.soak.poison", "--child"]
        if fleet:
            words = ["-m", "treadle", "worker", "tests.soak.poison:app", f"--lease={LEASE:g}", f"--processes={count}"]
        self._loops = [asyncio.create_task(self._run(words, n)) for n in range(1 if fleet else count)]

    async def _run(self, words: Sequence[str], number: int) -> None:
        with (self._folder / f"{number}.log").open("wb") as log:
            while not self._over:
                process = await asyncio.create_subprocess_exec(
                    sys.executable, *words, env=self._env, stdout=log, stderr=log
                )
                try:
                    await process.wait()
                    self.deaths.append(time.time())
                except asyncio.CancelledError:
                    process.terminate()
                    await process.wait()
                    raise

    async def stop(self) -> None:
        self._over = True
        for loop in self._loops:
            loop.cancel()
        await asyncio.gather(*self._loops, return_exceptions=True)


async def a_round(url: str, processes: int, fleet: bool, rng: random.Random, folder: Path) -> str:
    """Run one round, and return what it shows. Raises AssertionError."""
    async with App(url) as here:
        jobs = [here.stub(rng.choice(("waits", "blocks"))).job(rng.random() / 4) for _ in range(HEALTHY)]
        jobs.insert(rng.randrange(len(jobs) + 1), here.stub("poison").job(rng.random() / 8))
        stored = await here.enqueue(jobs)
        running = Processes(url, processes, fleet, folder)
        try:

            async def ended() -> list[Record] | None:
                rows = [row for row in await here.storage.get([job.id for job in stored]) if row is not None]
                return rows if all(row.state.final for row in rows) else None

            rows = await until(ended, "the end of all jobs", ROUND)
        finally:
            await running.stop()
    assert not (fleet and running.deaths), "the supervisor ended"
    return verdict(rows, running.deaths)


def verdict(rows: Sequence[Record], deaths: Sequence[float]) -> str:
    [bad] = [row for row in rows if row.job.task == "poison"]
    good = [row for row in rows if row is not bad]
    failed = [f"{row.id} {row.state} {row.reason} {row.error}" for row in good if row.state is not State.SUCCEEDED]
    assert not failed, failed
    assert all(row.attempt == 1 for row in good), [row.attempt for row in good]
    assert (bad.state, bad.reason, bad.attempt, guilt_of(bad).alone) == (State.FAILED, "lost", 0, MAX_LOST), bad
    dead = max(deaths, default=(bad.ended_at or 0.0) - LEASE)  # in a fleet the supervisor sees them
    last = max(row.ended_at or 0.0 for row in good) - dead
    assert last <= 3 * LEASE, f"a healthy job has ended {last:.1f} s after the last death"
    lost = [row.lost for row in good]
    return f"poison lost {bad.lost}, the others {min(lost)}-{max(lost)}; {len(deaths)} deaths"


def show_logs(folder: Path) -> None:
    for log in sorted(folder.glob("*.log")):
        print(log.read_text(errors="replace")[-4_000:])


async def rounds(asked: argparse.Namespace) -> int:
    seed = asked.seed if asked.seed is not None else random.SystemRandom().randrange(10**6)
    for number in range(seed, seed + asked.rounds):
        with tempfile.TemporaryDirectory() as folder, a_url(asked.url, Path(folder)) as url:
            try:
                text = await a_round(url, asked.processes, asked.fleet, random.Random(number), Path(folder))
            except (AssertionError, NotSeen) as error:
                print(f"seed {number}: {error}")
                show_logs(Path(folder))
                return 1
        print(f"seed {number}: {text}", flush=True)
    return 0


def main() -> int:
    made = argparse.ArgumentParser(prog="python -m tests.soak.poison", description=__doc__)
    made.add_argument("--url", choices=LASTING, default="sqlite", help="The storage. [default: sqlite]")
    made.add_argument("--rounds", type=int, default=20, help="[default: 20]")
    made.add_argument("--processes", type=int, default=1, help="Processes with a worker. [default: 1]")
    made.add_argument("--fleet", action="store_true", help="Run them under `treadle worker`.")
    made.add_argument("--seed", type=int, help="Seed of the first round. [default: random]")
    made.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    asked = made.parse_args()
    if asked.child:
        from tests.soak.poison import app as here  # not `__main__`

        asyncio.run(Worker(here, lease=LEASE).run())
        return 0
    return asyncio.run(rounds(asked))


if __name__ == "__main__":
    raise SystemExit(main())
