"""How far estimates are off: `app.jobs.eta` in simulated fleets, against the moment at which the job really starts.

    python3 dev.py bench eta [--seeds 200] [--first 0] [--each]

Every seed is a fleet of its own in virtual time, with real workers: 1 to 4 of them with 1 to 8 slots each, three tasks
whose run times differ by a factor of up to a hundred and vary by seed, in one or two queues, with priorities, lanes,
ageing, delays, keys, slots and rates of limits and of the queue, partitions, failures, and in about every third fleet
jobs that go on arriving. In every third fleet the jobs use resources of their workers, and there is one more worker:
the only one with the label that one task requires in half of them. The workers have measured 150 jobs before. Then more
jobs come, and at a random moment the start of a random job is estimated.

An estimate is right if it is off by at most `PART` of the real wait or by `SECONDS`. `in range` is the share of fleets
whose job started within the range of the estimate, or at most half a second outside it.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import statistics
import sys
import time
from collections.abc import Callable
from typing import Any, NamedTuple

from treadle import App, Limit, Record, Retry, Worker, current
from treadle.admin import Estimate
from treadle.testing import Simulation, simulate

PART, SECONDS = 1 / 2, 2.0  # the stated error
LONGEST = 3_600.0  # s for which jobs go on arriving
MEASURED = 150  # jobs of the three tasks that have run before
GOAL = 0.9  # share of fleets whose estimate is right
FEW = 5.0  # s: of a shorter wait the relative error says little
EVERY = 3  # in each third fleet the jobs use resources


class Found(NamedTuple):
    """One fleet: what was said and what happened, in seconds after the estimate. None: it did not start."""

    seed: int
    said: float | None
    low: float
    high: float
    real: float | None
    ahead: int
    cpu: float
    words: str

    @property
    def error(self) -> float:
        if self.said is None or self.real is None:
            return 0.0 if self.said == self.real else float("inf")
        return abs(self.said - self.real)

    @property
    def is_right(self) -> bool:
        return self.error <= max(SECONDS, PART * (self.real or 0.0))

    @property
    def is_in_range(self) -> bool:
        return self.real is not None and self.low - 0.5 <= self.real <= self.high + 0.5


class Place:
    """The labels and resources of one fleet, of every third one."""

    def __init__(self, seed: int, slots: int) -> None:
        rng = random.Random(f"{seed} place")
        self.has = {"memory": rng.choice((4, 8, 16))}
        self.uses: dict[str, dict[str, int]] = {
            "middle": {"memory": rng.choice((1, 1, 2))},
            "long": {"memory": rng.choice((1, 2, self.has["memory"]))},
        }
        self.requires: dict[str, list[str]] = {"long": ["site=far"]} if rng.random() < 0.5 else {}
        self.slots = rng.choice((slots, 2 * slots))

    async def one_more_worker(self, app: App, queues: list[str]) -> None:
        worker = Worker(
            app,
            concurrency=self.slots,
            name="far",
            queues=queues,
            labels={"site": "far"},
            resources={"memory": 2 * self.has["memory"]},
        )
        async with worker:  # until the simulation ends
            await asyncio.Event().wait()


class Fleet:
    """The random choices of one seed."""

    def __init__(self, seed: int) -> None:
        rng = self.rng = random.Random(f"{seed} fleet")
        self.seed, self.workers, self.slots = seed, rng.choice((1, 1, 2, 3, 4)), rng.choice((1, 2, 4, 8))
        self.means = {
            "short": rng.uniform(0.05, 0.5),
            "middle": rng.uniform(0.5, 3),
            "long": rng.uniform(2, 8),
        }
        self.spread = rng.choice((0.05, 0.5, 1.0))
        self.shares = [rng.uniform(0.2, 1) for _ in self.means]
        self.jobs = rng.randint(20, 400)
        self.arrives = rng.random() < 1 / 3
        self.fails = rng.choice((0.0, 0.0, 0.1))
        self.queues = ("default", "other") if rng.random() < 0.3 else ("default",)
        self.place = Place(seed, self.slots) if seed % EVERY == 0 else None
        self.rules = self.limits()
        self.begun: dict[str, float] = {}  # job -> its first start
        self.now: Callable[[], float] = float
        self.found: Found | None = None

    def app(self) -> App:
        app = App("memory://", retry=Retry(base=1, attempts=4))
        for name in self.means:
            self._define(app, name)
        return app

    def _define(self, app: App, name: str) -> None:
        rng = random.Random(f"{self.seed} {name}")
        uses = self.place.uses.get(name) if self.place is not None else None
        requires = self.place.requires.get(name, ()) if self.place is not None else ()

        @app.task(name=name, uses=uses, requires=requires)
        async def run() -> None:
            self.begun.setdefault(current().id, self.now())
            await asyncio.sleep(self.means[name] * rng.lognormvariate(-(self.spread**2) / 2, self.spread))
            if rng.random() < self.fails:
                raise ValueError("as in real life")

    def options(self) -> dict[str, Any]:
        """The options of one job."""
        rng, found = self.rng, dict[str, Any]()
        found["queue"] = rng.choice(self.queues)
        if rng.random() < 0.3:
            found["priority"] = rng.choice((-5, 0, 5))
        if rng.random() < 0.2:
            found["lane"] = rng.choice("abc")
        if rng.random() < 0.1:
            found["aging"] = 30
        if rng.random() < 0.1:
            found["delay"] = rng.uniform(1, 30)
        if rng.random() < 0.3:
            found["limits"] = [rng.choice(("api", f"tenant:{rng.choice('xyz')}", "pace"))]
        if rng.random() < 0.05:
            found["key"] = f"key {rng.randrange(20)}"
        return found

    def limits(self) -> list[Limit]:
        rng, found = self.rng, list[Limit]()
        if rng.random() < 0.5:
            found.append(Limit("api", slots=rng.choice((1, 2, 4))))
        if rng.random() < 0.5:
            found.append(Limit("tenant", slots=rng.choice((1, 2))))
        if rng.random() < 0.5:
            how = rng.choice(("window", "bucket"))
            found.append(Limit("pace", rate=rng.choice((5, 20)), per=10, how=how))
        if rng.random() < 0.2:
            found.append(Limit("queue:default", slots=rng.choice((1, 3))))
        return found

    def specs(self, app: App, number: int) -> list[Any]:
        names = self.rng.choices(list(self.means), self.shares, k=number)
        return [app.tasks[name].options(**self.options()).job() for name in names]

    # --- one run

    async def live(self, sim: Simulation) -> None:
        app, self.now = sim.app, sim.now
        for rule in self.rules:
            await app.limits.set(rule)
        if self.place is not None:
            sim.spawn("far", self.place.one_more_worker(app, list(self.queues)))
        first = await app.enqueue(self.specs(app, MEASURED))
        for job in first:
            await job.ended()
        await asyncio.sleep(self.rng.uniform(11, 30))  # the workers have stored what they measured
        stop = asyncio.Event()
        if self.arrives:
            sim.spawn("producer", self._produce(app, self._pace(sim.case.workers), stop))
            await asyncio.sleep(self.rng.uniform(300, 400))
        jobs = await app.enqueue(self.specs(app, self.jobs))
        await asyncio.sleep(self.rng.uniform(0.1, 5))
        rows = [await app.jobs.get(job.id) for job in self.rng.sample(list(jobs), min(len(jobs), 12))]
        await self._ask(app, [row for row in rows if row.started_at is None and not row.state.final])
        stop.set()

    def _pace(self, workers: int) -> float:
        """Seconds between two arrivals, so that they take 20 to 60 % of the slots."""
        of_queue = [rule.slots for rule in self.rules if rule.slots and rule.name == "queue:default"]
        slots = min([workers * self.slots, *of_queue])
        mean = sum(map(float.__mul__, self.means.values(), self.shares)) / sum(self.shares)
        return mean / (slots * self.rng.uniform(0.2, 0.6))

    async def _produce(self, app: App, pace: float, stop: asyncio.Event) -> None:
        last = self.now() + LONGEST
        while not stop.is_set():
            await app.enqueue(self.specs(app, 1))
            await asyncio.sleep(self.rng.expovariate(1 / pace))
            if self.now() > last:
                return

    async def _ask(self, app: App, waiting: list[Record]) -> None:
        if not waiting:
            return
        row = waiting[0]
        began = time.thread_time()
        said: Estimate = await app.jobs.eta(row.job.id)
        cpu = time.thread_time() - began
        await (await app.jobs.handle(row.job.id)).ended()
        begun = self.begun.get(row.job.id)
        real = None if begun is None else begun - said.at
        if real is not None and real <= 0:
            return  # it started while the call was under way
        start = said.start
        self.found = Found(
            self.seed,
            None if start is None else start.median - said.at,
            0.0 if start is None else start.low - said.at,
            0.0 if start is None else start.high - said.at,
            real,
            said.ahead,
            cpu,
            said.explanation,
        )


def measure(seed: int) -> Found | None:
    """One fleet; None if no job was left to ask about."""
    fleet = Fleet(seed)
    options: dict[str, Any] = {"queues": list(fleet.queues)}
    if fleet.place is not None:
        options["resources"] = fleet.place.has
    simulate(
        fleet.app,
        fleet.live,
        seeds=[seed],
        faults=(),
        workers=fleet.workers,
        concurrency=fleet.slots,
        patience=86_400,
        shrink=False,
        options=options,
    )
    return fleet.found


def main(words: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="dev.py bench eta")
    parser.add_argument("--seeds", type=int, default=200)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--each", action="store_true", help="print every fleet")
    asked = parser.parse_args(words)
    found = list[Found]()
    for seed in range(asked.first, asked.first + asked.seeds):
        one = measure(seed)
        if one is None:
            continue
        found.append(one)
        if asked.each or not one.is_right:
            print(_line(one), flush=True)
    print(summary(found))
    return 0 if share(found) >= GOAL else 1


def _line(one: Found) -> str:
    said, real = ("never" if it is None else f"{it:8.1f} s" for it in (one.said, one.real))
    mark = "     " if one.is_right else "wrong"
    spread = f"{one.low:7.1f} to {one.high:7.1f}"
    return f"{mark} seed {one.seed:4}: said {said} ({spread}), real {real}, {one.ahead:4} ahead  {one.words}"


def share(found: list[Found]) -> float:
    return sum(each.is_right for each in found) / max(1, len(found))


def summary(found: list[Found]) -> str:
    placed = [each for each in found if each.seed % EVERY == 0]
    lines = [
        _line_of("all", found),
        _line_of("without resources", [each for each in found if each not in placed]),
        _line_of("with resources", placed),
        f"CPU of an estimate: {statistics.median(each.cpu for each in found):.2f} s, "
        f"{max(each.cpu for each in found):.2f} s at most",
    ]
    return "\n".join(lines)


def _line_of(name: str, found: list[Found]) -> str:
    """The figures of some fleets, in one line."""
    waits = [each for each in found if each.real is not None and each.said is not None]
    parts = sorted(each.error / each.real for each in waits if each.real and each.real >= FEW)
    third = sum(each.error <= max(SECONDS, (each.real or 0.0) / 3) for each in found) / max(1, len(found))
    text = (
        f"{len(found)} fleets {name}: {share(found):.1%} within half or {SECONDS:g} s, {third:.1%} within a third, "
        f"{sum(each.is_in_range for each in waits) / max(1, len(waits)):.1%} in range"
    )
    if parts:
        ninth = parts[int(0.9 * (len(parts) - 1))]
        text += f"; of waits of {FEW:g} s and more: {statistics.median(parts):.1%} in half, {ninth:.1%} in nine tenths"
    return text


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
