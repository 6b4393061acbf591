"""The cost of a large backlog on a Redis or Valkey server: memory, ZADD, reading the head, deleting. The figures are in
docs/internals/decisions/backlog.md.

    python3 dev.py bench backlog [--sizes 10000 100000 1000000 ...] [--jobs 1000000]

The plain commands are timed inside the server (commandstats), with 100 members each, on a sorted set of ids of 26
characters; the figure is the best of 40 rounds, to exclude other load on the machine.
"""

from __future__ import annotations

import argparse
import asyncio
import random

from benchmarks.claim_cost import fill, settle
from tests.servers.valkey import Valkey
from treadle.core.model import Claim
from treadle.storage import connect

ROUNDS = 40
WIDTH = 100  # members of one ZADD


def main(words: list[str]) -> None:
    parser = argparse.ArgumentParser(prog="dev.py bench backlog", description=__doc__)
    parser.add_argument("--sizes", nargs="+", type=int, default=[10_000, 100_000, 1_000_000, 10_000_000])
    parser.add_argument("--jobs", type=int, default=1_000_000)
    args = parser.parse_args(words)
    print("| members | ZADD, us each | ZRANGE of the first 100, us | ZREM, us each | memory each, B |")
    print("|---|---|---|---|---|", flush=True)
    for size in args.sizes:
        with Valkey() as server:
            print(one_set(server, size), flush=True)
    print("\n| members | DEL, ms | UNLINK, ms |\n|---|---|---|", flush=True)
    for size in args.sizes:
        with Valkey() as server:
            print(deleting(server, size), flush=True)
    print("\n| jobs | B a job, queued | B a job, ended and kept |\n|---|---|---|", flush=True)
    for payload in ("[]", "[" + "1," * 100 + "1]"):
        with Valkey() as server:
            line, kept = asyncio.run(a_job(server, args.jobs, payload))
            print(f"| {args.jobs:,}, arguments of {len(payload)} B | {line:.0f} | {kept:.0f} |", flush=True)


def one_set(server: Valkey, size: int) -> str:
    empty = used(server)
    make(server, "z", size)
    each = (used(server) - empty) / size
    best = {"zadd": float("inf"), "zrange": float("inf"), "zrem": float("inf")}
    for turn in range(ROUNDS):
        names = [f"new{turn:05}{n:017}" for n in range(4 * WIDTH)]
        parts = [names[n : n + WIDTH] for n in range(0, len(names), WIDTH)]
        server.do("CONFIG", "RESETSTAT")
        with_pipeline(server, [("ZADD", "z", *_members(part, size)) for part in parts])
        with_pipeline(server, [("ZRANGE", "z", "0", "99") for _ in parts])
        with_pipeline(server, [("ZREM", "z", *part) for part in parts])
        took = server.info("commandstats")
        for name, least in best.items():
            best[name] = min(least, float(_field(took[f"cmdstat_{name}"], "usec_per_call")))
    add, head, rem = best["zadd"] / WIDTH, best["zrange"], best["zrem"] / WIDTH
    return f"| {size:,} | {add:.2f} | {head:.1f} | {rem:.2f} | {each:.0f} |"


def deleting(server: Valkey, size: int) -> str:
    """Time inside the server. DEL blocks, as is the default on Redis and on Valkey before 8."""
    server.do("CONFIG", "SET", "lazyfree-lazy-user-del", "no")
    for verb in ("DEL", "UNLINK"):
        make(server, verb, size)
        server.do(verb, verb)
    said = server.info("commandstats")
    took = [float(_field(said[f"cmdstat_{verb}"], "usec_per_call")) / 1e3 for verb in ("del", "unlink")]
    return f"| {size:,} | {took[0]:.1f} | {took[1]:.3f} |"


async def a_job(server: Valkey, count: int, payload: str) -> tuple[float, float]:
    """Bytes of server memory for a queued job, and for a job that has ended and is kept."""
    storage = connect(server.url)
    await storage.open()
    empty = used(server)
    await fill(storage, "m", count, payload=payload)
    line = (used(server) - empty) / count
    for turn in range(-(-count // 1_000)):
        ask = Claim(worker=f"w#{turn}", queues=(("default", 1_000),), limit=1_000)
        await settle(storage, (await storage.claim(ask)).records)
    kept = (used(server) - empty) / count
    await storage.close()
    return line, kept


def used(server: Valkey) -> int:
    return int(server.info("memory")["used_memory"])


def make(server: Valkey, key: str, size: int) -> None:
    """Create a set of this size inside the server: scores rise like times, and every tenth is out of order."""
    text = (
        "local at, to = tonumber(ARGV[1]), tonumber(ARGV[2]) for n = at, to - 1 do "
        "redis.call('ZADD', KEYS[1], n % 10 == 0 and n - 5000 or n, string.format('%026d', n)) end"
    )
    for at in range(0, size, 10_000):
        server.do("EVAL", text, 1, key, at, min(at + 10_000, size))


def with_pipeline(server: Valkey, commands: list[tuple[str, ...]]) -> None:
    import redis

    client = redis.Redis(port=server.port)
    for at in range(0, len(commands), 50):
        pipe = client.pipeline(transaction=False)
        for command in commands[at : at + 50]:
            pipe.execute_command(*command)
        pipe.execute()
    client.close()


def _members(names: list[str], size: int) -> list[str]:
    """Members with random scores in the range of the existing ones."""
    words = []
    for name in names:
        words += [str(random.randrange(size)), name]
    return words


def _field(line: str, name: str) -> str:
    return dict(part.split("=") for part in line.split(","))[name]
