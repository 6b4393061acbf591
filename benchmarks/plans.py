"""How PostgreSQL finds the next jobs among very many: the plan of a claim's first step, with the buffers it touched.

    python3 dev.py bench plans [--many 1000000] [--blocked 100000]

The rows are created in the database, from one enqueued row, and then vacuumed, as workers do. The planner settings are
those of the function (functions/settle_and_claim.sql).
"""

from __future__ import annotations

import argparse
import asyncio
from typing import LiteralString

import psycopg

from tests.servers.postgres import Postgres
from treadle.core.model import NewJob
from treadle.storage import connect

PINNED: LiteralString = (
    "SET enable_sort = off; SET enable_seqscan = off; SET enable_bitmapscan = off; SET enable_hashjoin = off; "
    "SET enable_mergejoin = off; SET plan_cache_mode = force_generic_plan; SET jit = off; SET search_path = treadle"
)
MADE: LiteralString = (
    "CREATE TEMP TABLE one AS SELECT * FROM treadle.job; ALTER TABLE one DROP COLUMN id, DROP COLUMN queue_position, "
    "DROP COLUMN return_position, DROP COLUMN due_at, DROP COLUMN limits, DROP COLUMN costs, DROP COLUMN blocked_on"
)
REST: LiteralString = (
    "version, state, rank, function_done, checkpoints, attempt, lost, reopenings, pending, "
    "failures_allowed, deadline_at, created_at, started_at, updated_at, ended_at, expires_at, keep, keep_failed, "
    "lease, queue, task, worker, key, lane, root, parent, after, words, spec, reason, note, result, value, error"
)
FILL: LiteralString = (
    "INSERT INTO treadle.job (id, queue_position, return_position, due_at, limits, costs, blocked_on, " + REST + ") "
    "SELECT %s || lpad(n::text, 9, '0'), CASE WHEN %s THEN created_at + n / 1000 END, created_at, "
    "CASE WHEN %s THEN created_at + 1e6 + n END, CASE WHEN %s THEN ARRAY['full'] END, CASE WHEN %s THEN ARRAY[1] END, "
    "CASE WHEN %s THEN 'full' END, " + REST + " FROM one, generate_series(1, %s) AS n"
)
PICK: LiteralString = (
    "PREPARE pick (text, int) AS SELECT ctid FROM job j "
    "WHERE j.queue = $1 AND j.queue_position IS NOT NULL AND j.limits IS NULL "
    "ORDER BY j.rank DESC, j.queue_position, j.id LIMIT $2 FOR NO KEY UPDATE SKIP LOCKED"
)
CASES = {"due": (True, False, False), "scheduled for later": (False, True, False), "blocked": (False, False, True)}


async def one_row(url: str) -> None:
    storage = connect(url)
    await storage.open()
    await storage.enqueue([NewJob(id="0", task="t")])
    await storage.close()


def plan(url: str, case: str, count: int) -> list[str]:
    asyncio.run(one_row(url))
    line, later, aside = CASES[case]
    with psycopg.connect(url, autocommit=True) as connection:
        for statement in MADE.split("; "):
            connection.execute(statement.encode())
        connection.execute(FILL, ("m", line, later, aside, aside, aside, count))
        connection.execute(FILL, ("d", True, False, False, False, False, 1_000))
        connection.execute("VACUUM treadle.job")
        for statement in (*PINNED.split("; "), PICK):
            connection.execute(statement.encode())
        found: list[tuple[str]] = []
        for _ in range(2):  # the second one excludes one-time costs
            asked = "EXPLAIN (ANALYZE, BUFFERS, COSTS off, TIMING off) EXECUTE pick('default', 10)"
            found = connection.execute(asked).fetchall()
    return [text for (text,) in found]


def main(words: list[str]) -> None:
    parser = argparse.ArgumentParser(prog="dev.py bench plans", description=__doc__)
    parser.add_argument("--many", type=int, default=1_000_000)
    parser.add_argument("--blocked", type=int, default=100_000)
    args = parser.parse_args(words)
    with Postgres() as server:
        for case in CASES:
            count = args.blocked if case == "blocked" else args.many
            print(f"{count:,} {case}")
            print("\n".join(f"    {line}" for line in plan(server.database(), case, count)), flush=True)
