"""The cost of a job on the Redis or Valkey server by its options: on the bulk path, and on the per-row path.

    python3 dev.py bench roads [--jobs 20000] [--batch 100]

CPU time of the server's main thread per job, in us, for enqueue, claim and settle; and the number of commands that the
scripts run per job, which does not depend on other load on the machine. The figures are in docs/internals/redis.md.
"""

from __future__ import annotations

import argparse
import asyncio
from collections.abc import Callable

from msgspec.structs import replace

from benchmarks.claim_cost import settle
from tests.servers.valkey import Valkey
from treadle.core.limit_model import Limit
from treadle.core.model import Claim, NewJob, Outcome, State
from treadle.storage import connect

Make = Callable[[int], NewJob]


def job(n: int, **options: object) -> NewJob:
    return NewJob(id=f"{n:026}", task="t", **options)  # type: ignore[arg-type]


KINDS: dict[str, Make] = {
    "plain": job,
    "a key": lambda n: job(n, key=f"k{n}"),
    "a delay": lambda n: job(n, delay=0.001),
    "a limit": lambda n: job(n, limits=(("api", 1),)),
    "a limit with partitions": lambda n: job(n, limits=((f"api:{n % 50}", 1),)),
    "a rate": lambda n: job(n, limits=(("pace", 1),)),
    "a lane": lambda n: job(n, lane=f"l{n % 10}"),
    "after one other": lambda n: job(n, after=(f"{n - 1:026}",) if n % 2 else ()),
    "a root": lambda n: job(n, root=f"{n - n % 10:026}"),
}
RULES = (Limit("api", slots=10**6), Limit("pace", rate=10**6, per=60.0))


def commands(server: Valkey) -> int:
    """Commands run so far, except those of this benchmark."""
    said = server.info("commandstats")
    return sum(
        int(line.partition("calls=")[2].partition(",")[0])
        for name, line in said.items()
        if name not in ("cmdstat_info", "cmdstat_evalsha", "cmdstat_eval")
    )


def cpu(server: Valkey) -> float:
    info = server.info("cpu")
    return 1e6 * sum(float(info[f"used_cpu_{kind}_main_thread"]) for kind in ("user", "sys"))


async def measure(server: Valkey, make: Make, jobs: int, batch: int) -> tuple[float, float, float]:
    storage = connect(server.url)
    await storage.open()
    await storage.set_limits(RULES)
    marks = [cpu(server)]
    for at in range(0, jobs, batch):
        await storage.enqueue([make(n) for n in range(at, at + batch)])
    marks.append(cpu(server))
    await asyncio.sleep(0.01)
    claim = settled = 0.0
    done = turn = 0
    while done < jobs:
        turn += 1
        before = cpu(server)
        rows = (await storage.claim(Claim(worker=f"w#{turn}", queues=(("default", batch),), limit=batch))).records
        between = cpu(server)
        await settle(storage, rows)
        claim, settled, done = claim + between - before, settled + cpu(server) - between, done + len(rows)
    await storage.close()
    return (marks[1] - marks[0]) / jobs, claim / jobs, settled / jobs


async def children(server: Valkey, jobs: int, batch: int) -> tuple[float, float, float]:
    """Parents that wait for one child each; figures per job, counting both."""
    storage = connect(server.url)
    await storage.open()
    spent, done, turn = [0.0, 0.0, 0.0], 0, 0

    async def timed(which: int, verb: object) -> object:
        before = cpu(server)
        found = await verb  # type: ignore[misc]
        spent[which] += cpu(server) - before
        return found

    for at in range(0, jobs // 2, batch):
        await timed(0, storage.enqueue([job(n) for n in range(at, at + batch)]))
    while done < jobs:
        turn += 1
        ask = Claim(worker=f"w#{turn}", queues=(("default", batch),), limit=batch)
        claimed = await timed(1, storage.claim(ask))
        outs = []
        for row in claimed.records:  # type: ignore[attr-defined]
            end = Outcome(id=row.id, version=row.version, state=State.SUCCEEDED)
            if row.job.parent is None and not row.function_done:
                child = NewJob(id=f"c{row.id}", task="t", root=row.id, parent=row.id)
                end = replace(end, state=State.WAITING, function_done=True, followups=(child,), after=(child.id,))
            outs.append(end)
        await timed(2, storage.settle(outs))
        done += sum(out.state is State.SUCCEEDED for out in outs)
    await storage.close()
    return spent[0] / jobs, spent[1] / jobs, spent[2] / jobs


def main(words: list[str]) -> None:
    parser = argparse.ArgumentParser(prog="dev.py bench roads", description=__doc__)
    parser.add_argument("--jobs", type=int, default=20_000)
    parser.add_argument("--batch", type=int, default=100)
    args = parser.parse_args(words)
    print("| a job with | enqueue | claim | settle | sum, us | commands |\n|---|---|---|---|---|---|", flush=True)
    for name, make in KINDS.items():
        with Valkey() as server:
            told = asyncio.run(measure(server, make, args.jobs, args.batch))
            each = commands(server) / args.jobs
        print(f"| {name} | {' | '.join(f'{us:.1f}' for us in told)} | {sum(told):.1f} | {each:.1f} |", flush=True)
    with Valkey() as server:
        told = asyncio.run(children(server, args.jobs, args.batch))
        each = commands(server) / args.jobs
    print(f"| a parent, or a child of one | {' | '.join(f'{us:.1f}' for us in told)} | {sum(told):.1f} | {each:.1f} |")
