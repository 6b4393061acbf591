"""Odd values sent with a token of some queues, and odd packets: no fault, no text of another queue, no growth.

Another queue holds rows with a mark in every text; their ids, keys and names are among the odd values. The calls are
seeded; TEST_FUZZ_SEED and TEST_FUZZ_TIMES choose another seed, and more calls. docs/guides/security.md has the counts
of a long run.
"""

from __future__ import annotations

import asyncio
import gc
import json
import os
import random
import sys
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import msgspec
import pytest

from tests.contrib.discovery.test_discovery import odd_packets
from tests.fixtures import KINDS, a_storage
from tests.served import host
from tests.server.test_crossing import token
from tests.server.test_fuzz import CALLS, SEED, TIMES, UUID, Dice
from treadle import App
from treadle.contrib.delayed.app import delayed_routes
from treadle.contrib.discovery.packet import BadPacket, decode
from treadle.contrib.queuey.app import queue_routes
from treadle.contrib.queuey.jobs import Rules
from treadle.core.model import Claim, NewJob, Outcome, Presence, Record, State
from treadle.core.query_model import Query
from treadle.server import Settings
from treadle.server.auth.tokens import SCOPES
from treadle.storage.contract import Storage

MARK = "text-of-another-queue"
MINE = ("q", "a", "runs", "default", "wasi", "delayed")
FAR_UUID, FAR_ULID = UUID[:-1] + "2", "01j2rb1c000000000000000001"
FAR = ("far-ready", "far-running", "far-ended", "far-waiting", FAR_UUID, FAR_ULID)
NAMES = (*FAR, "far-key", "far", "queue:far", "far-lane", "far-limit", "job:far-ready", "queue:far ", "far-worker#1")
TOGETHER = 8
FILES = 24  # how many more descriptors may be in use after the second half of the calls than after the first
MEMORY = 96 * 2**20  # bytes by which the process may grow, in addition to the rows that the calls have stored
PACKETS = 20_000 * TIMES
PATHS: tuple[tuple[str, str, Any], ...] = (
    ("GET", "/v1/jobs/{}", None),
    ("GET", "/v1/jobs/{}/wait?timeout=0", None),
    ("GET", "/v1/jobs/{}/events", None),
    ("GET", "/v1/jobs/{}/streams", None),
    ("GET", "/v1/jobs/{}/streams/words", None),
    ("GET", "/v1/jobs/{}/explain", None),
    ("POST", "/v1/jobs/{}/cancel", {"tree": True}),
    ("DELETE", "/v1/jobs/{}", None),
    ("POST", "/v1/jobs/{}/retry", None),
    ("POST", "/v1/jobs/{}/run_now", None),
    ("POST", "/v1/jobs/{}/pause", None),
    ("POST", "/v1/jobs/{}/resume", None),
    ("POST", "/v1/jobs/{}/rerun", {}),
    ("POST", "/v1/jobs/{}/fork", {}),
    ("POST", "/v1/jobs/{}/signal", {"name": "s", "value": 1}),
    ("POST", "/v1/jobs/{}/send", {"name": "s", "value": 1}),
    ("POST", "/v1/jobs/{}/ask", {"name": "s", "value": 1, "timeout": 0}),
    ("GET", "/v1/jobs/{}/value?name=s", None),
    ("GET", "/v1/jobs?queue=q&parent={}", None),
    ("GET", "/v1/jobs?queue=q&workflow={}&count=true", None),
    ("GET", "/v1/jobs?queue=far", None),
    ("POST", "/v1/work/stats", {}),
    ("GET", "/v1/stats", None),
    ("GET", "/v1/workers", None),
    ("GET", "/v1/limits", None),
    ("GET", "/v1/overview", None),
    ("GET", "/v1/metrics?queue=far", None),
    ("GET", "/v1/tasks", None),
    ("GET", "/v1/doctor", None),
    ("POST", "/v1/limits/far-limit/pause", None),
)


class Thief(Dice):
    """Odd values that name rows of the other queue wherever the body has a text."""

    def call(self) -> tuple[str, str, Any]:
        if self._random.random() < 0.15:
            method, path, body = self._random.choice(PATHS)
            return "native", f"{method} {path.format(self._random.choice(FAR))}", body
        protocol, words, body = super().call()
        if protocol != "native" and self._random.random() < 0.3:
            words = words.replace(UUID, FAR_UUID).replace(FAR_ULID[:-1] + "0", FAR_ULID)
        return protocol, words, body

    def _odd(self, value: Any) -> Any:
        if isinstance(value, str) and self._random.random() < 0.5:
            return self._random.choice(NAMES)
        return super()._odd(value)


def _far(id: str, **more: Any) -> NewJob:
    facts = {
        "task": MARK,
        "queue": "far",
        "payload": json.dumps([MARK]),
        "labels": (MARK,),
        "headers": ((MARK, MARK),),
        "lane": "far-lane",
        "keep": 10.0**6,
        "keep_failed": 10.0**6,
        "limits": (("far-limit", 1),),
        **more,
    }
    return NewJob(id=id, **facts)


async def _plant(storage: Storage) -> None:
    """Store rows of the other queue in each state, and a worker of it."""
    await storage.enqueue(
        [
            _far("far-running"),
            _far("far-ended"),
            _far("far-ready", key="far-key", limits=()),
            _far("far-waiting", after=("far-ready",)),
            _far(FAR_UUID, delay=10.0**6),
            _far(FAR_ULID, delay=10.0**6),
        ]
    )
    ask = Claim(worker="far-worker#1", queues=(("far", 2),), limit=2, lease=10.0**6, ids=("far-running", "far-ended"))
    held = (await storage.claim(ask)).records
    assert [row.id for row in held] == ["far-running", "far-ended"]
    text = json.dumps(MARK)
    out = Outcome(id="far-ended", version=1, state=State.SUCCEEDED, result=text, note=text, checkpoints=((MARK, text),))
    assert (await storage.settle([out]))[0].status == "applied"
    worker = Presence(
        worker="far-worker", host=MARK, pid=1, queues=("far",), tasks=(MARK,), slots=1, running=1, ttl=10.0**4
    )
    await storage.heartbeat(worker, [], 9.0)


async def _rows(storage: Storage) -> list[Record | None]:
    return list(await storage.get(FAR))


async def _stored(storage: Storage) -> int:
    """Six times the bytes of all rows as text, which is what they take in a storage in memory."""
    page, size = await storage.find(Query(limit=500)), 0
    while True:
        size += sum(len(msgspec.json.encode(row)) for row in page.records)
        if page.cursor is None:
            return 6 * size
        page = await storage.find(Query(limit=500, cursor=page.cursor))


def _in_use() -> tuple[int, int]:
    """Descriptors and bytes of this process, which includes the server."""
    gc.collect()
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return len(os.listdir("/proc/self/fd")), pages * os.sysconf("SC_PAGE_SIZE")


@pytest.fixture
async def session() -> AsyncIterator[aiohttp.ClientSession]:
    headers = {"Authorization": "Bearer bound", "Content-Type": "application/json"}
    async with aiohttp.ClientSession(headers=headers) as session:
        yield session


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="Linux says what a process has in use")
@pytest.mark.parametrize("kind", KINDS)
async def test_a_bound_token_reaches_no_row_of_another_queue(
    kind: str, tmp_path: Path, session: aiohttp.ClientSession
) -> None:
    with a_storage(kind, tmp_path) as storage:
        app, here = App(storage=storage), host()
        settings = Settings(tokens=(token("bound", *SCOPES, queues=MINE),), max_wait=0.05)
        urls = {
            "native": here.add(app, settings),
            "queue": here.add(app, settings, [queue_routes(Rules())]),
            "delayed": here.add(app, settings, [delayed_routes()]),
        }
        try:
            here.run(_plant(storage))
            before, dice = here.run(_rows(storage)), Thief(KINDS.index(kind) + 100 * SEED)
            assert all(MARK in msgspec.json.encode(row).decode() for row in before)
            counts: Counter[int] = Counter()
            await _fuzz(session, urls, dice, CALLS[kind] // 2, counts)
            files, memory, held = *_in_use(), here.run(_stored(storage))
            await _fuzz(session, urls, dice, CALLS[kind] * TIMES - CALLS[kind] // 2, counts)
            files_now, memory_now, held_now = *_in_use(), here.run(_stored(storage))
            assert here.run(_rows(storage)) == before
            assert files_now - files <= FILES
            assert memory_now - memory <= MEMORY + (held_now - held if kind == "memory" else 0)
            assert counts[200] + counts[201] > counts.total() // 8, counts  # many calls must pass the first check
            print(f"{kind}: {counts.total():,} calls {dict(sorted(counts.items()))}")
            print(f"descriptors {files} -> {files_now}, MiB {memory >> 20} -> {memory_now >> 20}")
        finally:
            here.run(app.close())


async def _fuzz(
    session: aiohttp.ClientSession, urls: dict[str, str], dice: Dice, most: int, counts: Counter[int]
) -> None:
    faults: list[str] = []

    async def calls(number: int) -> None:
        for _ in range(number):
            protocol, words, body = dice.call()
            method, _, path = words.partition(" ")
            data = None if body is None else json.dumps(body).encode()
            async with session.request(method, urls[protocol] + path, data=data, headers=dice.headers()) as answer:
                said = f"{dict(answer.headers)} {(await answer.read()).decode(errors='replace')}"
            counts[answer.status] += 1
            if answer.status >= 500 or MARK in said:
                faults.append(f"{answer.status} {protocol} {words} {(data or b'')[:400]!r}: {said[:800]}")

    await asyncio.gather(*(calls(most // TOGETHER + 1) for _ in range(TOGETHER)))
    assert not faults, "\n".join(faults[:10])


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="Linux says what a process has in use")
def test_packets_of_the_network_take_no_memory() -> None:
    rng, counts = random.Random(2 + 100 * SEED), Counter[str]()

    def read(number: int) -> None:
        for raw in odd_packets(rng, number):
            try:
                found = decode(raw)
            except BadPacket:
                counts["refused"] += 1
            else:
                counts["read"] += 1
                assert len(found.answers) + len(found.more) <= 500

    read(PACKETS // 4)
    files, memory = _in_use()
    read(PACKETS - PACKETS // 4)
    files_now, memory_now = _in_use()
    assert files_now <= files
    assert memory_now - memory <= 16 * 2**20
    assert min(counts["refused"], counts["read"]) > PACKETS // 20
    print(f"{PACKETS:,} packets {dict(counts)}, MiB {memory >> 20} -> {memory_now >> 20}")
