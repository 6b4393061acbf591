"""The floor: the speed of the servers and event loops without any job library.

It shows whether a library is slow or its server. Plain loops run the statements that every library needs: insert many
rows, claim a batch, settle it and keep the rows; commit one row; a script that takes a hundred.
"""

from __future__ import annotations

import asyncio
import json
import os
import sqlite3
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from benchmarks.harness.places import Places

PAYLOAD: Final = "x" * 120
BATCH: Final = 256  # jobs per claim
CALL: Final = 1_000  # rows per insert
COUNTS: Final = {"tiny": 512, "quick": 20_000, "goals": 20_000, "full": 60_000}
Rates = dict[str, float]  # probe -> jobs/s


def rate(count: int, run: Callable[[], object]) -> float:
    begun = time.perf_counter()
    run()
    return count / (time.perf_counter() - begun)


def parts(count: int, size: int) -> Iterator[range]:
    for at in range(0, count, size):
        yield range(at, min(at + size, count))


# --- event loops


async def _nothing() -> None:
    pass


async def _tasks(count: int) -> None:
    gate = asyncio.Semaphore(256)

    def over(_: object) -> None:
        gate.release()

    for _ in range(count):
        await gate.acquire()
        asyncio.create_task(_nothing()).add_done_callback(over)
    for _ in range(256):
        await gate.acquire()


async def _eager(count: int) -> None:
    asyncio.get_running_loop().set_task_factory(asyncio.eager_task_factory)  # type: ignore[attr-defined, unused-ignore]
    await _tasks(count)


def loops(count: int) -> Rates:
    import uvloop

    found = {
        "asyncio: a task for each no-op, 256 at once": rate(count, lambda: asyncio.run(_tasks(count))),
        "uvloop: a task for each no-op, 256 at once": rate(count, lambda: uvloop.run(_tasks(count))),
    }
    if sys.version_info >= (3, 12):
        found["asyncio: the same with eager tasks"] = rate(count, lambda: asyncio.run(_eager(count)))
    return found


# --- PostgreSQL

TABLE = """
DROP TABLE IF EXISTS probe;
CREATE TABLE probe (id text PRIMARY KEY, version int NOT NULL DEFAULT 0, state int NOT NULL DEFAULT 1,
    place bigint, payload text NOT NULL);
CREATE INDEX probe_line ON probe (place) WHERE place IS NOT NULL;
"""
FILL = "INSERT INTO probe (id, place, payload) SELECT * FROM unnest(%s::text[], %s::bigint[], %s::text[])"
TAKE = """UPDATE probe SET state = 2, version = version + 1, place = NULL WHERE ctid = ANY(ARRAY(
    SELECT ctid FROM probe WHERE place IS NOT NULL ORDER BY place LIMIT %s FOR UPDATE SKIP LOCKED))
    RETURNING id, version, payload"""
END = """UPDATE probe SET state = 3 FROM unnest(%s::text[], %s::int[]) AS out (id, version)
    WHERE probe.id = out.id AND probe.version = out.version"""


def postgres(url: str, count: int) -> Rates:
    """One connection, with a commit for each statement that a library would have to commit."""
    import psycopg

    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(TABLE)  # type: ignore[arg-type, unused-ignore]

        def fill() -> None:
            for some in parts(count, CALL):
                ids = [f"{n:026}" for n in some]
                connection.execute(FILL, [ids, list(some), [PAYLOAD] * len(ids)])

        def drain() -> None:
            """Settle the last batch and claim the next in one commit and one round trip."""
            ended: list[Any] = []
            while True:
                with connection.pipeline(), connection.transaction():
                    if ended:
                        connection.execute(END, [[row[0] for row in ended], [row[1] for row in ended]], prepare=True)
                    taken = connection.execute(TAKE, [BATCH], prepare=True)
                ended = taken.fetchall()
                if not ended:
                    return

        def singles() -> None:
            for n in range(count // 20):
                connection.execute(FILL, [[f"s{n}"], [n], [PAYLOAD]], prepare=True)

        found = {"insert, 1,000 rows a commit": rate(count, fill)}
        connection.execute("ANALYZE probe")
        found["claim 256 and settle the last 256, rows kept"] = rate(count, drain)
        found["insert, one row a commit"] = rate(count // 20, singles)
        connection.execute("DROP TABLE probe")
    return found


# --- Redis

SCRIPT = """
local ids = redis.call('ZPOPMIN', KEYS[1], ARGV[1])
local names = {}
for i = 1, #ids, 2 do names[#names + 1] = ids[i] end
if #names == 0 then return names end
return redis.call('HMGET', KEYS[2], unpack(names))
"""


def valkey(url: str, count: int) -> Rates:
    import redis

    client: Any = redis.Redis.from_url(url)
    client.flushall()
    take = client.register_script(SCRIPT)

    def singles() -> None:
        for n in range(count // 10):
            client.hset("single", n, PAYLOAD)

    def fill() -> None:
        for some in parts(count, CALL):
            pipe = client.pipeline(transaction=False)
            pipe.hset("job", mapping={f"{n:026}": PAYLOAD for n in some})
            pipe.zadd("line", {f"{n:026}": n for n in some})
            pipe.execute()

    def drain() -> None:
        while take(keys=["line", "job"], args=[100]):
            pass

    found = {
        "set one, one at a time": rate(count // 10, singles),
        "insert, 1,000 jobs a trip": rate(count, fill),
        "a script that claims 100": rate(count, drain),
    }
    client.flushall()
    client.close()
    return found


# --- SQLite


def sqlite(level: str, count: int) -> Rates:
    with tempfile.TemporaryDirectory() as folder:
        base = sqlite3.connect(Path(folder, "probe.db"), isolation_level=None)
        base.executescript(f"PRAGMA journal_mode=wal; PRAGMA synchronous={level};")
        base.executescript(
            "CREATE TABLE probe (seq INTEGER PRIMARY KEY, state INTEGER NOT NULL DEFAULT 1, place REAL, payload TEXT);"
            "CREATE INDEX probe_line ON probe (place) WHERE place IS NOT NULL;"
        )
        insert = "INSERT INTO probe (place, payload) VALUES (?, ?)"

        def fill() -> None:
            for some in parts(count, CALL):
                base.execute("BEGIN IMMEDIATE")
                base.executemany(insert, [(n, PAYLOAD) for n in some])
                base.execute("COMMIT")

        def drain() -> None:
            ended: list[tuple[int]] = []
            while True:
                base.execute("BEGIN IMMEDIATE")
                base.executemany("UPDATE probe SET state = 3 WHERE seq = ?", ended)
                taken = base.execute(
                    "UPDATE probe SET state = 2, place = NULL WHERE seq IN (SELECT seq FROM probe "
                    "WHERE place IS NOT NULL ORDER BY place LIMIT ?) RETURNING seq, payload",
                    [BATCH],
                ).fetchall()
                base.execute("COMMIT")
                ended = [(row[0],) for row in taken]
                if not ended:
                    return

        def singles() -> None:
            for n in range(count // 20):
                base.execute(insert, (n, PAYLOAD))

        found = {
            "insert, 1,000 rows a commit": rate(count, fill),
            "claim 256 and settle the last 256, rows kept": rate(count, drain),
            "insert, one row a commit": rate(count // 20, singles),
        }
        base.close()
    return found


# --- all of them, in their own process


def measured(places: Places, storages: Sequence[str], size: str, python: str) -> dict[str, Rates]:
    """Storage -> probe -> jobs/s."""
    from benchmarks.harness.session import ROOT

    urls = {}
    for storage in storages:
        if not storage.startswith("sqlite"):
            place = places.of(storage)
            place.reset()
            urls[storage] = place.url
    words = {"urls": urls, "sqlite": any(it.startswith("sqlite") for it in storages), "count": COUNTS[size]}
    ran = subprocess.run(
        [python, "-m", "benchmarks.harness.probes"],
        capture_output=True,
        text=True,
        cwd=ROOT,
        timeout=600,
        env={**os.environ, "PROBE": json.dumps(words)},
        check=False,
    )
    if ran.returncode:
        return {"failed": {" ".join(ran.stderr.split())[-300:]: 0.0}}
    found: dict[str, Rates] = json.loads(ran.stdout.splitlines()[-1])
    return found


def medians(rounds: Sequence[dict[str, Rates]]) -> dict[str, Rates]:
    """The medians over all rounds, or over those that have a probe."""
    found: dict[str, dict[str, list[float]]] = {}
    for one in rounds:
        for storage, rates in one.items():
            for name, value in rates.items():
                found.setdefault(storage, {}).setdefault(name, []).append(value)
    return {storage: {name: statistics.median(it) for name, it in rates.items()} for storage, rates in found.items()}


def once(urls: dict[str, str], with_sqlite: bool, count: int) -> dict[str, Rates]:
    found = {"loops": loops(5 * count)}
    for storage, url in urls.items():
        found[storage] = postgres(url, count) if storage == "postgres" else valkey(url, count)
    if with_sqlite:
        for level in ("normal", "full"):
            found[f"sqlite-{level}"] = sqlite(level, count)
    return found


def main() -> None:
    words = json.loads(os.environ["PROBE"])
    print(json.dumps(once(words["urls"], words["sqlite"], words["count"])))


if __name__ == "__main__":
    main()
