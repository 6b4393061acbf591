"""Odd values in every call of the worker protocol, the native API and both compatible protocols, next to ordinary jobs.

The calls are seeded, so a failure can be repeated. docs/guides/server.md says how many calls each run makes.
TEST_FUZZ_SEED and TEST_FUZZ_TIMES choose another seed, and more calls.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
from collections.abc import AsyncIterator, Iterator
from copy import deepcopy
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from tests.fixtures import KINDS, a_storage
from tests.served import host
from treadle import App, Worker
from treadle.contrib.delayed.app import delayed_routes
from treadle.contrib.queuey.app import queue_routes
from treadle.contrib.queuey.jobs import Rules
from treadle.server import Settings

CALLS = {"memory": 1_000, "sqlite": 600, "redis": 600, "postgres": 300}  # each takes two or three seconds
SEED = int(os.environ.get("TEST_FUZZ_SEED", "0"))
TIMES = int(os.environ.get("TEST_FUZZ_TIMES", "1"))  # this many times as many calls
GOOD = 40
TOGETHER = 8
UUID = "0190b0b0-0000-7000-8000-000000000001"
ODD: tuple[Any, ...] = (
    None,
    True,
    False,
    0,
    -1,
    1,
    2**15,
    2**31 - 1,
    2**31,
    2**63 - 1,
    2**63,
    2**64,
    10**30,
    -(2**63),
    1e308,
    -1e308,
    1e-300,
    0.5,
    "",
    " ",
    "a",
    "\0",
    "a\0b",
    "\x1b[2J\x07",
    "\u202e",
    "é",
    "🧵",
    "\ud800",
    "x" * 300,
    "y" * 70_000,
    "a b",
    "../../etc",
    "'; drop table job; --",
    "{x}:*",
    "treadle:leader",
    "treadle:x",
    "treadle:" + "0" * 32,
    "treadle:" + "0" * 32 + "-000001",
    "treadle:signal:" + "0" * 40 + ":1",
    "treadle:once:" + "0" * 16,
    "cron:n:20261122T000000Z",
    "treadle.limit",
    "treadle.schedule",
    "treadle.flow",
    "treadle.once a",
    "treadle",
    "[]",
    "{",
    "null",
    '{"timeout":-1}',
    '{"kwargs":{"guard":true}}',
    '{"limit":"a","seconds":-1}',
    '[{"$t":"str","v":[55296]}]',
    [],
    {},
    [[]],
    [None],
    ["a", "a"],
    ["\0"],
    [["a", 1]],
    [["a", -1]],
    [["a", 2**70]],
    [["a", "b"]],
    {"a": 1},
    {"\0": "\0"},
    [[[[[[[[]]]]]]]],
    "ready",
    "waiting",
    "running",
    "succeeded",
    "failed",
    "cancelled",
    UUID,
)
NEW = {
    "id": "a",
    "task": "t",
    "payload": "[1]",
    "queue": "q",
    "priority": 0,
    "delay": 0.0,
    "key": "k",
    "key_conflict": "keep",
    "key_window": 1.0,
    "key_until": "ended",
    "after": ["a"],
    "required": 1,
    "failures_allowed": 0,
    "wait_timeout": 9.0,
    "limits": [["l", 1]],
    "lane": "l",
    "stride": 1.0,
    "aging": 0.0,
    "keep": 9.0,
    "keep_failed": 9.0,
    "deadline": 99.0,
    "retry": "{}",
    "lease": 9.0,
    "labels": ["l"],
    "headers": [["h", "v"]],
    "root": "a",
    "parent": "a",
    "function_done": False,
    "run_at": 1.0,
    "deadline_at": 9e9,
    "nonce": "n",
}
OUT = {
    "id": "a",
    "version": 1,
    "state": "succeeded",
    "delay": 0.0,
    "attempt": 1,
    "result": "1",
    "value": "1",
    "error": "e",
    "reason": "error",
    "checkpoints": [["s", "1"]],
    "note": "n",
    "followups": [NEW],
    "after": ["a"],
    "required": 1,
    "failures_allowed": 0,
    "function_done": True,
    "keep": 9.0,
}
REPORT = {"id": "a", "version": 1, "checkpoints": [["s", "1"]], "note": "n"}
NEEDED = (
    "id",
    "version",
    "state",
    "jobs",
    "outcomes",
    "worker",
    "claim",
    "changes",
    "type",
    "rule",
    "name",
    "job",
    "task",
    "ids",
    "topics",
    "renewals",
    "running",
    "binary_addr",
    "runner_id",
    "status",
    "payload",
    "dueTime",
    "succeed",
    "fail",
    "defer",
    "limit",
    "slots",
)
CLAIM = {
    "worker": "w#1",
    "queues": [["q", 1]],
    "tasks": {"t": [1, 9.0]},
    "limit": 3,
    "lease": 9.0,
    "ids": ["a"],
    "running": ["a"],
    "wait": 0.0,
    "max_lost": 3,
}
PRESENCE = {
    "worker": "w",
    "host": "h",
    "pid": 1,
    "queues": ["q"],
    "tasks": ["t"],
    "slots": 1,
    "running": 1,
    "uptime": 1.0,
    "ttl": 9.0,
    "gone": False,
    "paused": 0.0,
    "gathering": [["t", 1.0, 1.0]],
    "draining": "it is 3 h old",
    "age": 0.0,
}
QUERY = {
    "ids": ["a"],
    "state": ["ready"],
    "task": "t",
    "queue": "q",
    "root": "a",
    "parent": "a",
    "label": "l",
    "before": 1.0,
    "cursor": "c",
    "order": "newest",
    "ahead_of": "a",
    "limit": 5,
    "count": True,
}
RULE = {"name": "l", "slots": 1, "rate": 1, "per": 1.0, "how": "window", "burst": 1, "hold": "running"}
CHANGE = {"type": "pause", "name": "l", "why": "paused", "until": 9.0}
ASKED = {
    "task": "t",
    "args": [1],
    "kwargs": {"a": 1},
    "queue": "q",
    "priority": 0,
    "delay": 0.0,
    "run_at": 1.0,
    "deadline": 9e9,
    "expires": 9.0,
    "timeout": 9.0,
    "retry": {"attempts": 1},
    "lease": 9.0,
    "max_lost": 1,
    "key": {"key": "k", "conflict": "keep", "window": 1.0},
    "lane": "l",
    "limits": ["l"],
    "cost": 1,
    "aging": 0.0,
    "keep": 9.0,
    "keep_failed": 9.0,
    "after": ["a"],
    "when": {"required": 1},
    "wait_timeout": 9.0,
    "pass_result": False,
    "labels": ["l"],
    "headers": {"h": "v"},
    "id": "b",
}
STEP = {"id": "a", "version": 1, "name": "s", "lease": 9.0}
STREAM = {"id": "a", "version": 1, "name": "s", "lease": 30.0}
NATIVE: tuple[tuple[str, str, Any], ...] = (
    ("POST", "/v1/work/enqueue", {"jobs": [NEW]}),
    ("POST", "/v1/work/claim", CLAIM),
    (
        "POST",
        "/v1/work/heartbeat",
        {"worker": PRESENCE, "renewals": [{"id": "a", "version": 1, "checkpoints": [["s", "1"]]}], "lease": 9.0},
    ),
    ("POST", "/v1/work/settle", {"outcomes": [OUT]}),
    ("POST", "/v1/work/settle", {"outcomes": [{**REPORT, "succeed": 1, "followups": [NEW]}]}),
    ("POST", "/v1/work/settle", {"outcomes": [{**REPORT, "fail": "x"}, {**REPORT, "defer": 1.0}]}),
    ("POST", "/v1/work/settle_claim", {"outcomes": [OUT], "claim": CLAIM}),
    ("POST", "/v1/work/steps", {**STEP, "result": {"a": [1]}}),
    ("POST", "/v1/work/steps", {**STEP, "after": "s", "failure": "no luck"}),
    ("POST", "/v1/work/steps", {**STEP, "sleep": 1.0}),
    ("POST", "/v1/work/steps", {**STEP, "wait": {"timeout": 9.0}}),
    ("POST", "/v1/work/steps", {**STEP, "call": NEW}),
    ("POST", "/v1/work/stream", {**STREAM, "values": ["a", {"b": [1]}]}),
    ("POST", "/v1/work/stream", {**STREAM, "values": [], "step": "s", "at": 3}),
    ("GET", "/v1/jobs/a/streams/s?from=1&limit=5&wait=0", None),
    ("POST", "/v1/work/get", {"ids": ["a"]}),
    ("POST", "/v1/work/find", QUERY),
    ("POST", "/v1/work/limits", {"use": True}),
    ("POST", "/v1/work/prune", {"limit": 5}),
    ("POST", "/v1/work/set_limits", {"changes": [{"type": "set", "rule": RULE}]}),
    ("POST", "/v1/work/set_limits", {"changes": [CHANGE]}),
    ("POST", "/v1/work/watch", {"topics": ["job:a"], "timeout": 0.0}),
    ("POST", "/v1/jobs", ASKED),
    ("POST", "/v1/jobs/batch", {"jobs": [ASKED]}),
    ("PUT", "/v1/limits/l", {"slots": 1, "rate": 1, "per": 1.0}),
    ("PUT", "/v1/schedules/s", {"job": ASKED, "cron": "0 3 * * *", "every": 60.0, "tz": "UTC", "catch_up": "one"}),
    ("POST", "/v1/jobs/a/cancel", {"tree": True}),
    ("GET", "/v1/jobs?limit=1000", None),
    ("GET", "/v1/schedules", None),
    ("POST", "/v1/session", {"token": "t"}),
    ("POST", "/v1/schedules/preview", {"cron": "*/5 3 * * *", "tz": "UTC"}),
    ("POST", "/v1/schedules/preview", {"every": 60.0}),
    ("POST", "/v1/limits/l/pause", None),
    ("POST", "/v1/limits/l/resume", None),
    ("GET", "/v1/me", None),
    ("GET", "/v1/overview", None),
    ("GET", "/v1/metrics?from=1&to=1e9&step=60&task=t", None),
    ("GET", "/v1/tasks", None),
)
QUEUE: tuple[tuple[str, str, Any], ...] = (
    ("POST", "/jobs/create", {"binary_addr": "b", "input_addr": "i", "priority": 0, "delay": 0.0}),
    ("POST", "/jobs/claim", {"runner_id": UUID}),
    ("POST", f"/jobs/{UUID}/tickle", {"runner_id": UUID}),
    ("POST", f"/jobs/{UUID}/complete", {"status": "completed", "output_addr": "o", "runner_id": UUID}),
    ("POST", f"/jobs/{UUID}/release", {"runner_id": UUID}),
    ("GET", "/jobs?limit=1000", None),
    ("GET", f"/jobs/{UUID}", None),
)
DELAYED: tuple[tuple[str, str, Any], ...] = (
    ("POST", "/", {"payload": "p", "dueTime": 9e9}),
    ("GET", "/jobs/01j2rb1c000000000000000000", None),
    ("GET", "/stats", None),
)


class Dice:
    """Makes bodies with odd values in some places."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)

    def call(self) -> tuple[str, str, Any]:
        kind = self._random.choices((NATIVE, QUEUE, DELAYED), (12, 2, 1))[0]
        method, path, body = self._random.choice(kind)
        if "{" not in path and "?" not in path and self._random.random() < 0.05:
            path += self._random.choice(("/", "%00", "?limit=99999999999999999999", "?cursor=%ff", "?state=x"))
        protocol = {id(NATIVE): "native", id(QUEUE): "queue", id(DELAYED): "delayed"}[id(kind)]
        return protocol, f"{method} {path}", None if body is None else self.spoilt(body)

    def spoilt(self, body: Any) -> Any:
        """The body without some of its optional fields, and with odd values in up to two places."""
        found = self._thinned(body)
        for _ in range(self._random.choice((0, 1, 1, 2))):
            if places := list(_places(found)):
                holder, name = self._random.choice(places)
                holder[name] = self._odd(holder[name])
        return found

    def _thinned(self, value: Any) -> Any:
        if isinstance(value, dict):
            kept = {name: each for name, each in value.items() if name in NEEDED or self._random.random() < 0.4}
            return {name: self._thinned(each) for name, each in kept.items()}
        return [self._thinned(each) for each in value] if isinstance(value, list) else value

    def _odd(self, value: Any) -> Any:
        """An odd value, nearly always of the same type, because the decoder refuses any other."""
        if self._random.random() < 0.15:
            return deepcopy(self._random.choice(ODD))
        if isinstance(value, list) and value:
            return self._random.choice(([], deepcopy(value) * 3, [self._odd(each) for each in value]))
        alike = [
            each for each in ODD if isinstance(each, type(value)) and isinstance(each, bool) is isinstance(value, bool)
        ]
        alike += [each for each in ODD if type(each) is int] if type(value) is float else []
        return deepcopy(self._random.choice(alike or ODD))

    def headers(self) -> dict[str, str]:
        odd = self._random.choice((None, None, None, "a", "k" * 300, "\xff\x85"))
        return {} if odd is None else {"Idempotency-Key": odd}


def _places(value: Any) -> Iterator[tuple[Any, Any]]:
    """The places in a body: the dict or list, and the name or number of the value."""
    for name, each in value.items() if isinstance(value, dict) else enumerate(value):
        yield value, name
        if isinstance(each, dict | list):
            yield from _places(each)


@pytest.fixture
async def session() -> AsyncIterator[aiohttp.ClientSession]:
    async with aiohttp.ClientSession() as session:
        yield session


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
async def test_odd_values_are_no_fault_and_ordinary_jobs_run(
    kind: str, tmp_path: Path, session: aiohttp.ClientSession
) -> None:
    with a_storage(kind, tmp_path) as storage:
        app = App(storage=storage)

        @app.task(name="good", queue="good")
        async def good(n: int) -> int:
            return n

        here, settings = host(), Settings(max_wait=0.05)
        urls = {
            "native": here.add(app, settings),
            "queue": here.add(app, settings, [queue_routes(Rules())]),
            "delayed": here.add(app, settings, [delayed_routes()]),
        }
        worker = Worker(app, ["good", "default", "q"], name="good-worker", poll=0.05)
        here.run(worker.start())
        try:
            await _fuzz(session, urls, Dice(KINDS.index(kind) + 100 * SEED), CALLS[kind] * TIMES)
            answers = [
                await _answer(
                    session, "POST", urls["native"] + "/v1/jobs", {"task": "good", "args": [n], "queue": "good"}
                )
                for n in range(GOOD)
            ]
            assert {status for status, _ in answers} == {201}
            for n, (_, job) in enumerate(answers):
                _, ended = await _answer(session, "GET", f"{urls['native']}/v1/jobs/{job['id']}/wait?timeout=10", None)
                while ended["state"] != "succeeded" and not ended["error"]:
                    _, ended = await _answer(
                        session, "GET", f"{urls['native']}/v1/jobs/{job['id']}/wait?timeout=10", None
                    )
                assert (ended["state"], ended["result"]) == ("succeeded", n)
        finally:
            here.run(worker.stop(0))
            here.run(app.close())


async def _fuzz(session: aiohttp.ClientSession, urls: dict[str, str], dice: Dice, most: int) -> None:
    await _answer(session, "POST", urls["native"] + "/v1/jobs", {"task": "t", "id": "a", "queue": "far", "delay": 1e6})
    faults: list[str] = []
    statuses: dict[int, int] = {}

    async def calls(number: int) -> None:
        for _ in range(number):
            protocol, words, body = dice.call()
            method, _, path = words.partition(" ")
            if "/settle" in path and isinstance(body.get("outcomes"), list):
                await _give_runs(session, urls["native"], body["outcomes"])
            if "/steps" in path:
                await _give_runs(session, urls["native"], [body])
            status, said = await _answer(session, method, urls[protocol] + path, body, dice.headers())
            statuses[status] = statuses.get(status, 0) + 1
            if status >= 500:
                faults.append(f"{status} {protocol} {words} {json.dumps(body)[:400]}: {str(said)[:200]}")

    await asyncio.gather(*(calls(most // TOGETHER + 1) for _ in range(TOGETHER)))
    assert not faults, "\n".join(faults[:10])
    assert statuses.get(200, 0) > most // 4, statuses  # not all calls may stop at the first check
    assert sum(statuses.values()) >= most


async def _give_runs(session: aiohttp.ClientSession, url: str, outcomes: list[Any]) -> None:
    """Replace the id and version of these outcomes by those of running jobs, unless they are odd values."""
    for out in outcomes:
        if not isinstance(out, dict) or (out.get("id"), out.get("version")) != ("a", 1):
            continue
        _, stored = await _answer(session, "POST", f"{url}/v1/jobs", {"task": "run", "queue": "runs"})
        ask = {"worker": f"fuzz#{stored['id']}", "ids": [stored["id"]]}
        _, claimed = await _answer(session, "POST", f"{url}/v1/work/claim", ask)
        for record in claimed["records"]:
            out["id"], out["version"] = record["job"]["id"], record["version"]


async def _answer(
    session: aiohttp.ClientSession, method: str, url: str, body: Any, headers: dict[str, str] | None = None
) -> tuple[int, Any]:
    data = None if body is None else json.dumps(body).encode()
    sent = {**(headers or {}), "Content-Type": "application/json"}
    async with session.request(method, url, data=data, headers=sent) as answer:
        content = await answer.read()
        return answer.status, json.loads(content) if content[:1] in (b"{", b"[") else content.decode(errors="replace")
