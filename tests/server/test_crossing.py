"""Every call with ids of another queue, for a token of each scope that is bound to one queue.

No answer has a word of the other queue, and no row of it changes. A call that is not in the table fails the test.
"""

from __future__ import annotations

import base64
import json
from collections.abc import AsyncIterator, Iterator
from itertools import product
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from starlette.routing import Route

from tests.served import host, memory_url
from tests.server.places import EVERY, a_place
from tests.server.test_api import Client, session
from treadle import App
from treadle.contrib.delayed.app import delayed_routes
from treadle.contrib.delayed.ids import shown
from treadle.contrib.queuey.app import QUEUE, queue_routes
from treadle.contrib.queuey.jobs import Rules
from treadle.core import defaults, ids
from treadle.metrics import encode
from treadle.server import Settings, Token
from treadle.server.app import operations_of
from treadle.server.auth.tokens import SCOPES, digest
from treadle.server.longpoll import LongPoll
from treadle.workflow.signals import signal_id

__all__ = ["session"]

SECRET = "S3CRET"  # in every text of the other queue but the ids, so that an answer with such a text shows
MINE, OTHER, RESTING = "mine", "other", "other too"
READY, RUNNING, ENDED, FAILED, WAITING = (
    f"other-{state}" for state in ("ready", "running", "ended", "failed", "waiting")
)
IDS = (READY, RUNNING, ENDED, FAILED, WAITING)
SIGNAL = signal_id(WAITING, "approved", 1)
UNGIVEN = signal_id(READY, "approved", 1)
REQUEST = f"treadle:approval:{32 * '0'}"
CHILD = f"{ids.derived(RUNNING, 1)}-000001"
TICK = "cron:nightly:20300101T000000Z"
AUDIT = "treadle.audit"
MARK, ONCE_ID = "treadle.once charge:7", f"treadle:once:{16 * '0'}"

Probe = tuple[str, Any]  # the path, and the body


def new(id: str = "", **fields: Any) -> dict[str, Any]:
    return {"id": id or ids.UuidV7()(), "task": "t", "queue": MINE, **fields}


def raw_jobs() -> Iterator[dict[str, Any]]:
    """Jobs of my queue that name rows of the other one."""
    for id in (*IDS, SIGNAL, TICK, CHILD):
        yield new(id)
        yield new(id, nonce="1")
        yield new(id, task="", payload='"mine"')
        yield new(after=[id])
        yield new(after=[id], failures_allowed=None, function_done=True)
        yield new(after=[id], wait_timeout=60)
        yield new(root=id)
        yield new(root=id, parent=id)
        yield new(
            task="treadle.flow",
            payload='{"kwargs": {"guard": true}}',
            after=[id],
            required=0,
            failures_allowed=None,
            function_done=True,
        )
    won = json.dumps({"job": "mine-0", "once": "charge:7"})
    for conflict in ("keep", "raise", "replace"):
        yield new(key="t order-8", key_conflict=conflict)
        yield new(key=MARK, key_conflict=conflict)
        yield new(ONCE_ID, task="", key=MARK, key_conflict=conflict, payload=won, deadline=60)
        yield new(key="treadle.schedule nightly", key_conflict=conflict)
    yield new(queue=OTHER)
    yield new(queue=OTHER, reach=[OTHER])
    yield new(READY, reach=[OTHER])
    wanted = [["treadle:signal", json.dumps({"job": READY, "signal": "approved"})]]
    own = json.dumps({"job": READY, "signal": "approved", "nonce": "n"})
    yield new(f"treadle:answer:{40 * '0'}", task="", payload=own)
    yield new(f"treadle:answer:{40 * '0'}", task="", payload=own, parent=READY)
    asked = [["treadle:approval", json.dumps({"job": READY, "name": "refund", "task": "t"})]]
    for place in ({}, {"parent": READY}, {"root": READY, "parent": READY}):
        yield new(REQUEST[:-1] + "1", task="", headers=asked, labels=["treadle:approval", "treadle:approval:"], **place)
    yield new(UNGIVEN, task="", headers=wanted)
    yield new(UNGIVEN, task="", headers=wanted, parent=READY)
    yield new(UNGIVEN, task="", headers=wanted, root=READY, parent=READY)
    for queue, limit in product(("treadle", MINE), (f"queue:{OTHER}", "shared")):
        yield new(
            f"treadle:hold:{32 * '0'}",
            task="treadle.limit",
            queue=queue,
            lease=defaults.OWN_LEASE,
            key=f"treadle.limit {limit}",
            payload=json.dumps({"limit": limit, "seconds": 60}),
        )
    schedule = {"name": "evil", "timing": {"type": "every", "seconds": 60.0}, "task": "t", "job": new(queue=OTHER)}
    for queue in ("treadle", MINE):
        yield new(
            "treadle:schedule:evil",
            task="treadle.schedule",
            queue=queue,
            lease=defaults.OWN_LEASE,
            key="treadle.schedule evil",
            payload=json.dumps(schedule),
        )
    for queue in ("treadle", MINE):
        yield new("treadle:leader", task="treadle.leader", queue=queue, function_done=True)
    yield new("treadle:leader")


def outcomes() -> Iterator[dict[str, Any]]:
    """Outcomes for the other queue's jobs."""
    for id, version in product((*IDS, SIGNAL, REQUEST), (0, 1, 2)):
        yield {"id": id, "version": version, "state": "succeeded", "result": '"mine"'}
        yield {"id": id, "version": version, "state": "succeeded", "result": '{"approved":true,"by":"mine"}'}
        yield {"id": id, "version": version, "state": "cancelled", "reason": "asked"}
        yield {"id": id, "version": version, "state": "ready"}
        yield {"id": id, "version": version, "state": "waiting", "after": []}
        yield {"id": id, "version": version, "state": "failed", "keep": 0, "reach": [OTHER]}


def own_outcomes() -> Iterator[dict[str, Any]]:
    """Outcomes for my jobs that name rows of the other queue."""
    for id in (*IDS, SIGNAL, REQUEST):
        yield {"state": "waiting", "after": [id], "function_done": True}
        yield {
            "state": "waiting",
            "after": [id],
            "function_done": True,
            "checkpoints": [["treadle:plan", '{"guard": true}']],
        }
    for job in raw_jobs():
        yield {"state": "succeeded", "followups": [job]}
        yield {"state": "waiting", "function_done": True, "followups": [job], "after": [job["id"]]}


def numbered() -> list[dict[str, Any]]:
    """Each outcome for a running job of its own; see `furnish`. Ids that no run derives are left out, because the whole
    call is refused for them (test_runners.py)."""
    own = [each for each in own_outcomes() if all(ids.stem(job["id"]) is None for job in each.get("followups", ()))]
    return [{"id": f"mine-{number}", "version": 1, **each} for number, each in enumerate(own)]


def steps() -> Iterator[dict[str, Any]]:
    """Steps of the other queue's jobs."""
    for id, version in product((*IDS, SIGNAL), (0, 1, 2)):
        for fields in ({}, {"result": "mine"}, {"failure": "mine"}, {"sleep": 1}, {"wait": {}}, {"call": new("")}):
            yield {"id": id, "version": version, "name": "charge", **fields}


def chunks() -> Iterator[dict[str, Any]]:
    """Chunks of streams of the other queue's jobs."""
    for id, version, step in product((*IDS, SIGNAL), (0, 1, 2), ("", "charge")):
        yield {"id": id, "version": version, "name": "words", "step": step, "values": ["mine"]}


def own_steps() -> list[dict[str, Any]]:
    """Calls of jobs of the other queue, each in a running job of its own."""
    return [{"id": f"step-{n}", "version": 1, "name": "s", "call": job} for n, job in enumerate(raw_jobs())]


def reports() -> Iterator[dict[str, Any]]:
    for id, version in product(IDS, (0, 1, 2)):
        yield {"id": id, "version": version, "succeed": "mine"}
        yield {"id": id, "version": version, "fail": "mine"}
        yield {"id": id, "version": version, "defer": 0}
        yield {"id": id, "version": version, "followups": [new("")]}


def claims() -> Iterator[dict[str, Any]]:
    # the claim id under which a job of the other queue runs
    yield {"worker": "theirs#1", "queues": [[MINE, 9]], "limit": 9}
    yield {"worker": "w#1", "queues": [[OTHER, 9]], "limit": 9}
    yield {"worker": "w#2", "queues": [["treadle", 9]], "limit": 9}
    for id in (*IDS, SIGNAL):
        yield {"worker": "w#3", "queues": [[MINE, 9]], "ids": [id], "limit": 9}
        yield {"worker": "w#4", "queues": [[OTHER, 9]], "ids": [id], "limit": 9, "reach": [OTHER]}


def native_jobs() -> Iterator[dict[str, Any]]:
    asked = {"task": "t", "queue": MINE}
    for id in IDS:
        yield {**asked, "id": id}
        yield {**asked, "id": id, "args": ["mine"]}
        yield {**asked, "after": [id]}
        yield {**asked, "after": [id], "when": {"of": "done"}, "pass_result": True}
        yield {**asked, "after": [id], "wait_timeout": 60}
    for conflict in ("keep", "raise", "replace"):
        yield {**asked, "key": {"key": "order-8", "conflict": conflict}}
        yield {**asked, "task": "other", "key": {"key": "shared", "conflict": conflict, "shared": True}}
    yield {**asked, "queue": OTHER}
    yield {**asked, "id": SIGNAL}
    yield {**asked, "id": TICK}


def of_each(path: str, body: Any = None) -> list[Probe]:
    return [(path.replace("{id}", id), body) for id in (*IDS, SIGNAL, REQUEST)]


HOLDS = [
    [{"id": id, "version": version, **more}]
    for id in IDS
    for version in (0, 1, 2)
    for more in ({}, {"note": "mine"}, {"checkpoints": [["step", "1"]]}, {"reach": [OTHER]})
]
WATCHED = [[f"job:{id}"] for id in IDS] + [[f"queue:{OTHER}"], ["worker:theirs"], ["queue:treadle"]]
RULES = [{"name": f"queue:{OTHER}", "slots": 5}, {"name": "shared", "slots": 5}]


NOTHING_COUNTED = base64.b64encode(encode([])).decode()


def measured(source: str, data: str = NOTHING_COUNTED) -> dict[str, Any]:
    """A row of metrics."""
    return {"at": 60.0, "span": 60.0, "source": source, "data": data}


TABLE: dict[str, list[Probe]] = {
    "GET /v1/me": [("/v1/me", None)],
    "POST /v1/session": [("/v1/session", {"token": "unknown"})],
    "DELETE /v1/session": [("/v1/session", None)],
    "GET /v1/overview": [("/v1/overview", None)],
    "GET /metrics": [("/metrics", None)],
    "GET /v1/scale": [("/v1/scale", None), (f"/v1/scale?queue={MINE}&queue={OTHER}", None)],
    "GET /v1/metrics": [("/v1/metrics", None), (f"/v1/metrics?queue={OTHER}", None), ("/v1/metrics?task=t", None)],
    "GET /v1/tasks": [("/v1/tasks", None)],
    "GET /v1/doctor": [("/v1/doctor", None)],
    "GET /v1/jobs/{id}/history": of_each("/v1/jobs/{id}/history"),
    "GET /v1/failures": [("/v1/failures", None), (f"/v1/failures?queue={OTHER}", None)],
    "GET /v1/workflows": [("/v1/workflows", None)],
    "GET /v1/workflows/{id}/graph": of_each("/v1/workflows/{id}/graph"),
    "GET /v1/audit": [("/v1/audit", None)],
    "GET /v1/operations": [("/v1/operations", None)],
    "GET /v1/operations/{id}": of_each("/v1/operations/{id}"),
    "DELETE /v1/operations/{id}": of_each("/v1/operations/{id}"),
    "POST /v1/operations": [
        ("/v1/operations", {"act": act, "created_before": 4e9, "dry": dry, **which})
        for act, dry in product(("retry", "cancel", "run_now", "delete"), (True, False))
        for which in ({"ids": [*IDS]}, {"filter": {"queue": OTHER}}, {"filter": {"task": "t"}}, {"filter": {}})
    ],
    "POST /v1/jobs": [("/v1/jobs", each) for each in native_jobs()],
    "GET /v1/jobs": [
        (f"/v1/jobs?{query}", None)
        for query in (
            "",
            f"queue={OTHER}",
            f"queue={MINE}",
            f"queue={MINE}&workflow={READY}",
            f"queue={MINE}&parent={RUNNING}",
            f"queue={MINE}&label=blue",
            "queue=treadle",
            "task=t",
        )
    ],
    "POST /v1/jobs/batch": [
        ("/v1/jobs/batch", {"jobs": [{"task": "t", "queue": MINE}, each]}) for each in native_jobs()
    ],
    "GET /v1/jobs/{id}": of_each("/v1/jobs/{id}"),
    "DELETE /v1/jobs/{id}": of_each("/v1/jobs/{id}"),
    "GET /v1/jobs/{id}/wait": of_each("/v1/jobs/{id}/wait?timeout=0"),
    "GET /v1/jobs/{id}/events": of_each("/v1/jobs/{id}/events"),
    "GET /v1/jobs/{id}/streams": of_each("/v1/jobs/{id}/streams"),
    "GET /v1/jobs/{id}/streams/{name}": of_each("/v1/jobs/{id}/streams/words"),
    "GET /v1/jobs/{id}/explain": of_each("/v1/jobs/{id}/explain"),
    "GET /v1/jobs/{id}/eta": of_each("/v1/jobs/{id}/eta"),
    "POST /v1/jobs/{id}/cancel": of_each("/v1/jobs/{id}/cancel", {}),
    "POST /v1/jobs/{id}/retry": of_each("/v1/jobs/{id}/retry"),
    "POST /v1/jobs/{id}/signal": of_each("/v1/jobs/{id}/signal", {"name": "approved", "value": "mine"}),
    "POST /v1/jobs/{id}/send": of_each("/v1/jobs/{id}/send", {"name": "approved", "value": "mine", "key": "k"}),
    "POST /v1/jobs/{id}/ask": of_each("/v1/jobs/{id}/ask", {"name": "approved", "value": "mine", "timeout": 0}),
    "GET /v1/jobs/{id}/value": of_each("/v1/jobs/{id}/value?name=status"),
    "GET /v1/approvals": [("/v1/approvals", None), (f"/v1/approvals?queue={OTHER}", None)],
    "GET /v1/approvals/{id}": of_each("/v1/approvals/{id}"),
    "POST /v1/approvals/{id}/decide": of_each("/v1/approvals/{id}/decide", {"approved": True}),
    "POST /v1/approvals/{id}/link": of_each("/v1/approvals/{id}/link", {"to": "mine"}),
    "POST /v1/jobs/{id}/run_now": of_each("/v1/jobs/{id}/run_now"),
    "POST /v1/jobs/{id}/pause": of_each("/v1/jobs/{id}/pause"),
    "POST /v1/jobs/{id}/resume": of_each("/v1/jobs/{id}/resume"),
    "POST /v1/jobs/{id}/rerun": of_each("/v1/jobs/{id}/rerun", {}),
    "POST /v1/jobs/{id}/fork": of_each("/v1/jobs/{id}/fork", {"args": ["mine"]}),
    "GET /v1/schedules": [("/v1/schedules", None)],
    "GET /v1/schedules/{name}": [("/v1/schedules/nightly", None)],
    "PUT /v1/schedules/{name}": [
        ("/v1/schedules/nightly", {"every": 5}),
        ("/v1/schedules/mine", {"job": {"task": "t", "queue": OTHER}, "every": 5}),
    ],
    "DELETE /v1/schedules/{name}": [("/v1/schedules/nightly", None)],
    "POST /v1/schedules/preview": [("/v1/schedules/preview", {"cron": "0 3 * * *"})],
    "POST /v1/schedules/{name}/pause": [("/v1/schedules/nightly/pause", None)],
    "POST /v1/schedules/{name}/resume": [("/v1/schedules/nightly/resume", None)],
    "POST /v1/schedules/{name}/trigger": [("/v1/schedules/nightly/trigger", None)],
    "GET /v1/queues": [("/v1/queues", None)],
    "GET /v1/queues/{name}/plan": [(f"/v1/queues/{OTHER}/plan", None), ("/v1/queues/treadle/plan", None)],
    "POST /v1/queues/{name}/pause": [(f"/v1/queues/{OTHER}/pause", None), ("/v1/queues/treadle/pause", None)],
    "POST /v1/queues/{name}/resume": [(f"/v1/queues/{RESTING}/resume", None)],
    "GET /v1/limits": [("/v1/limits", None)],
    "PUT /v1/limits/{name}": [(f"/v1/limits/{each['name']}", {"slots": 5}) for each in RULES],
    "DELETE /v1/limits/{name}": [(f"/v1/limits/{each['name']}", None) for each in RULES],
    "POST /v1/limits/{name}/pause": [(f"/v1/limits/{each['name']}/pause", None) for each in RULES],
    "POST /v1/limits/{name}/resume": [(f"/v1/limits/{each['name']}/resume", None) for each in RULES],
    "GET /v1/workers": [("/v1/workers", None)],
    "GET /v1/stats": [("/v1/stats", None)],
    "POST /v1/work/hello": [("/v1/work/hello", {})],
    "POST /v1/work/enqueue": [("/v1/work/enqueue", {"jobs": [each]}) for each in raw_jobs()],
    "POST /v1/work/claim": [
        ("/v1/work/claim", {**each, **more}) for each in claims() for more in ({}, {"max_lost": 3})
    ],
    "POST /v1/work/heartbeat": [
        *[("/v1/work/heartbeat", {"worker": {"worker": "theirs"}, "renewals": each}) for each in HOLDS],
        ("/v1/work/heartbeat", {"worker": {"worker": "theirs", "gone": True}}),
        ("/v1/work/heartbeat", {"worker": {"worker": "w", "queues": [OTHER]}}),
    ],
    "POST /v1/work/settle": [
        ("/v1/work/settle", {"outcomes": list(each)}) for each in (outcomes(), reports(), numbered()[::2])
    ],
    "POST /v1/work/settle_claim": [
        *[
            ("/v1/work/settle_claim", {"outcomes": list(each), "claim": {"worker": "w#5", "queues": [], "limit": 0}})
            for each in (outcomes(), numbered()[1::2])
        ],
        *[("/v1/work/settle_claim", {"outcomes": [], "claim": each}) for each in claims()],
    ],
    "POST /v1/work/steps": [("/v1/work/steps", each) for each in (*steps(), *own_steps())],
    "POST /v1/work/stream": [("/v1/work/stream", each) for each in chunks()],
    "POST /v1/work/get": [("/v1/work/get", {"ids": [*IDS, SIGNAL, "treadle:schedule:1", "treadle:leader"]})],
    "POST /v1/work/find": [
        ("/v1/work/find", each)
        for each in (
            {},
            {"queue": OTHER},
            {"queue": MINE},
            {"queue": MINE, "ids": list(IDS)},
            {"queue": MINE, "root": WAITING},
            {"queue": MINE, "ahead_of": READY, "order": "queue", "count": True},
            {"queue": "treadle"},
        )
    ],
    "POST /v1/work/stats": [("/v1/work/stats", {})],
    "POST /v1/work/recount": [("/v1/work/recount", {}), ("/v1/work/recount", {"repair": True})],
    "POST /v1/work/glance": [("/v1/work/glance", {}), ("/v1/work/glance", {"most": 1})],
    "POST /v1/work/store_metrics": [
        ("/v1/work/store_metrics", {"rows": [measured("own")], "remove": [measured("theirs"), measured("own")]}),
        ("/v1/work/store_metrics", {"rows": [measured("")]}),
        ("/v1/work/store_metrics", {"rows": [], "remove": [measured("")]}),
    ],
    "POST /v1/work/read_metrics": [("/v1/work/read_metrics", {"since": 0, "until": 1e9})],
    "POST /v1/work/limits": [("/v1/work/limits", {}), ("/v1/work/limits", {"use": False})],
    "POST /v1/work/set_limits": [
        ("/v1/work/set_limits", {"changes": [each]})
        for each in (
            *[{"type": "set", "rule": rule} for rule in RULES],
            *[{"type": "declare", "rule": rule} for rule in RULES],
            {"type": "pause", "name": f"queue:{OTHER}"},
            {"type": "resume", "name": f"queue:{RESTING}"},
            {"type": "pause", "name": "shared"},
        )
    ],
    "POST /v1/work/prune": [("/v1/work/prune", {"limit": 9})],
    "POST /v1/work/watch": [("/v1/work/watch", {"topics": each, "timeout": 0}) for each in WATCHED],
}

# Each of the other protocols serves one queue, to which this token has no right.
UUID = ids.UuidV7()
WASI, DELAYED = UUID(), UUID()
BLOB = "sha256:" + "0" * 64
QUEUEY: dict[str, list[Probe]] = {
    "POST /jobs/create": [("/jobs/create", {"binary_addr": BLOB})],
    "POST /jobs/claim": [("/jobs/claim", {"runner_id": "00000000-0000-0000-0000-000000000001"})],
    "GET /jobs": [("/jobs", None)],
    "GET /jobs/{id}": [(f"/jobs/{WASI}", None)],
    "POST /jobs/{id}/tickle": [(f"/jobs/{WASI}/tickle", {})],
    "POST /jobs/{id}/complete": [(f"/jobs/{WASI}/complete", {"status": "completed", "output_addr": BLOB})],
    "GET /jobs/{id}/output": [(f"/jobs/{WASI}/output", None)],
    "POST /jobs/{id}/release": [(f"/jobs/{WASI}/release", {})],
    "POST /jobs/{id}/cancel": [(f"/jobs/{WASI}/cancel", None)],
}
DELAYED_JOBS: dict[str, list[Probe]] = {
    "POST /": [("/", {"payload": "mine", "dueTime": 4e9})],
    "GET /jobs/{id}": [(f"/jobs/{shown(DELAYED)}", None)],
    "DELETE /jobs/{id}": [(f"/jobs/{shown(DELAYED)}", None)],
    "GET /stats": [("/stats", None)],
}
ENDLESS = {"GET /v1/overview/events"}  # test_overview_stream.py
UNPROTECTED = {"GET /ping", "GET /jobs/create", "GET /jobs/claim"}  # their answers contain no job


def token(name: str, *scopes: str, queues: tuple[str, ...] = ()) -> Token:
    return Token(name=name, digest=digest(name), scopes=scopes, queues=queues)


TOKENS = (
    token("admin", *SCOPES),
    token("all", *SCOPES, queues=(MINE,)),
    *(token(scope, scope, queues=(MINE,)) for scope in SCOPES),
)


class Sites:
    """The server and its two other protocols, on one storage."""

    def __init__(self, app: App, session: aiohttp.ClientSession) -> None:
        self.app, settings = app, Settings(tokens=TOKENS, max_wait=5)
        self.native = Client(host().add(app, settings), session)
        self.queuey = Client(host().add(app, settings, [queue_routes(Rules())]), session)
        self.delayed = Client(host().add(app, settings, [delayed_routes()]), session)

    async def admin(self, path: str, body: Any, method: str = "POST") -> Any:
        status, answer = await self.native(method, path, body, "admin")
        assert status in (200, 201), answer
        return answer

    async def others(self) -> str:
        """All rows of the other queues, limits, schedules and workers, as text."""
        found: list[Any] = []
        for queue in (OTHER, "treadle", QUEUE, defaults.DELAYED_QUEUE):
            page = await self.admin("/v1/work/find", {"queue": queue, "order": "oldest", "limit": 1_000})
            found += [
                row for row in page["records"] if row["job"].get("task") != AUDIT
            ]  # the server's notes of these acts
        stats = await self.admin("/v1/work/stats", {})
        found += [each["rule"] | {"pauses": each["pauses"]} for each in stats["limits"]]
        found += [
            {name: each[name] for name in ("worker", "host")} for each in stats["workers"] if "/" not in each["worker"]
        ]
        return json.dumps(found, indent=1)


@pytest.fixture(params=EVERY)
async def sites(request: pytest.FixtureRequest, tmp_path: Path, session: aiohttp.ClientSession) -> AsyncIterator[Sites]:
    with a_place(request.param, tmp_path) as storage:
        app = App(storage=storage)
        yield Sites(app, session)
        host().run(app.close())


async def furnish(sites: Sites) -> None:
    """Fill the other queue: jobs in every state, a signal, a mark, a schedule, limits, a pause, a worker."""
    about = {"queue": OTHER, "payload": json.dumps([SECRET]), "labels": ["blue", SECRET], "headers": [["h", SECRET]]}
    limits = [[f"{SECRET}-limit", 1]]
    wanted = [["treadle:signal", json.dumps({"job": WAITING, "signal": "approved"})]]
    await sites.admin(
        "/v1/work/enqueue",
        {
            "jobs": [
                *[{"id": id, "task": f"{SECRET}.t", **about} for id in (RUNNING, ENDED, FAILED, WAITING)],
                {"id": READY, "task": "t", "key": "t order-8", "limits": limits, "lane": SECRET, **about},
                {"id": "other-shared", "task": "t", "key": " shared", **about},
                {"id": WASI, "task": "wasi.run", "queue": QUEUE, "payload": json.dumps([SECRET, None])},
                {
                    "id": DELAYED,
                    "task": defaults.DELAYED_TASK,
                    "queue": defaults.DELAYED_QUEUE,
                    "payload": json.dumps([SECRET]),
                    "headers": [["dueTime", "4e9"]],
                },
            ]
        },
    )
    mark = {
        "id": f"treadle:once:{16 * '1'}",
        "task": "",
        "key": MARK,
        "queue": OTHER,
        "deadline": 3600,
        "payload": json.dumps({"job": RUNNING, "once": "charge:7"}),
        "headers": [["h", SECRET]],
    }
    await sites.admin("/v1/work/enqueue", {"jobs": [mark]})
    claim = {"queues": [[OTHER, 9]], "limit": 9, "lease": 3600}
    await sites.admin("/v1/work/claim", {"worker": "theirs#1", "ids": [RUNNING], **claim})
    await sites.admin("/v1/work/claim", {"worker": "theirs#2", "ids": [ENDED, FAILED, WAITING], **claim})
    signal = {"id": SIGNAL, "task": "", "headers": wanted, "queue": OTHER, "root": WAITING, "parent": WAITING}
    about_request = json.dumps({"job": WAITING, "name": SECRET, "task": "t"})
    request = {
        **signal,
        "id": REQUEST,
        "payload": json.dumps({"amount": SECRET}),
        "headers": [["treadle:approval", about_request]],
        "labels": ["treadle:approval", "treadle:approval:"],
    }
    said = await sites.admin(
        "/v1/work/settle",
        {
            "outcomes": [
                {"id": ENDED, "version": 1, "state": "succeeded", "result": json.dumps(SECRET)},
                {"id": FAILED, "version": 1, "state": "failed", "reason": "error", "error": SECRET},
                {
                    "id": WAITING,
                    "version": 1,
                    "state": "waiting",
                    "followups": [signal, request],
                    "after": [SIGNAL, REQUEST],
                },
            ]
        },
    )
    assert {each["status"] for each in said["settled"]} == {"applied"}
    mine = [each["id"] for each in (*numbered(), *own_steps())]
    await sites.admin("/v1/work/enqueue", {"jobs": [new(id) for id in mine]})
    await sites.admin("/v1/work/claim", {"worker": "own#1", "queues": [[MINE, 1]], "ids": mine, "limit": len(mine)})
    hold = {"id": RUNNING, "version": 1, "note": SECRET, "checkpoints": [["step", SECRET]]}
    worker = {"worker": "theirs", "host": SECRET, "queues": [OTHER], "ttl": 3600}
    await sites.admin("/v1/work/heartbeat", {"worker": worker, "renewals": [hold], "lease": 3600})
    await sites.admin("/v1/limits/shared", {"slots": 3}, "PUT")
    await sites.admin(f"/v1/limits/{SECRET}-limit", {"slots": 3}, "PUT")
    await sites.admin(f"/v1/queues/{RESTING}/pause", None)
    job = {"task": "t", "queue": OTHER, "args": [SECRET]}
    await sites.admin("/v1/schedules/nightly", {"job": job, "cron": "0 3 1 1 *"}, "PUT")


async def probe(call: Client, operation: str, probes: list[Probe], name: str) -> None:
    for path, body in probes:
        status, answer = await call(operation.partition(" ")[0], path, body, name)
        asked = f"{name}: {operation} {path} {json.dumps(body)[:500]}"
        assert status < 500, f"{asked} -> {status} {answer}"
        assert SECRET not in json.dumps(answer), f"{asked} -> {answer}"


@pytest.mark.slow
@pytest.mark.parametrize("name", [each.name for each in TOKENS if each.queues])
async def test_no_call_reads_or_changes_another_queue(sites: Sites, name: str) -> None:
    """Calls reveal nothing of the other queues, and change nothing: no row, limit, pause, schedule or worker."""
    await furnish(sites)
    before = await sites.others()
    assert SECRET in before
    for call, table in ((sites.native, TABLE), (sites.queuey, QUEUEY), (sites.delayed, DELAYED_JOBS)):
        for operation, probes in table.items():
            await probe(call, operation, probes, name)
            if name == "all":
                assert await sites.others() == before, operation
    assert await sites.others() == before
    mine = (await sites.admin("/v1/work/find", {"queue": MINE, "limit": 1_000}))["records"]
    for row in mine:  # also, none of my jobs waits for a job of the other queue, or belongs to one
        job = row["job"]
        named = {*row.get("after", ()), *job.get("after", ()), job.get("root"), job.get("parent")}
        assert named.isdisjoint({*IDS, SIGNAL}), row
        assert not job["id"].startswith("cron:"), row
        assert not job["id"].startswith("treadle:") or job["id"] == CHILD, row
        assert not job["task"].startswith(("treadle.schedule", "treadle.limit", "treadle.leader")), row


@pytest.mark.parametrize(
    "call",
    [
        "POST /v1/work/prune",
        "GET /v1/doctor",
        "POST /v1/work/read_metrics",
        "GET /v1/schedules",
        "PUT /v1/schedules/{name}",
        "PUT /v1/limits/{name}",
        "POST /v1/limits/{name}/pause",
        "POST /v1/work/set_limits",
        "POST /v1/queues/{name}/pause",
    ],
)
async def test_an_operation_on_every_queue_is_refused_to_a_bound_token(
    session: aiohttp.ClientSession, call: str
) -> None:
    client = Client(memory_url(None, Settings(tokens=TOKENS)), session)
    for path, body in TABLE[call]:
        status, answer = await client(call.partition(" ")[0], path, body, "all")
        assert (status, answer["error"]) == (403, "forbidden"), (path, body)


async def test_every_call_is_in_the_table(sites: Sites) -> None:
    """A new call must be added to the table, with ids of another queue."""
    waiting = LongPoll(lambda: sites.app.storage)
    native = {f"{each.method} {each.path}" for each in operations_of(sites.app._core, Settings(), waiting)}
    assert native - ENDLESS == TABLE.keys()
    for protocol, table in ((queue_routes(Rules()), QUEUEY), (delayed_routes(), DELAYED_JOBS)):
        routes = [route for route in protocol(sites.app._core, Settings(), waiting) if isinstance(route, Route)]
        calls = {f"{method} {route.path}" for route in routes for method in route.methods or () if method != "HEAD"}
        assert {call for call in calls if "{rest" not in call} - UNPROTECTED == table.keys()


async def test_a_bound_token_stores_the_metrics_of_its_own_workers(sites: Sites) -> None:
    """Under their stored names, so it cannot replace or remove rows of others."""
    await sites.admin("/v1/work/store_metrics", {"rows": [measured("theirs", "BBBB"), measured("", "CCCC")]})
    for operation, (path, body) in [("POST", each) for each in TABLE["POST /v1/work/store_metrics"]]:
        await sites.native(operation, path, body, "all")
    rows = (await sites.admin("/v1/work/read_metrics", {"since": 0, "until": 1e9}))["rows"]
    assert rows == [measured("", "CCCC"), measured("all/own"), measured("theirs", "BBBB")]
    status, problem = await sites.native("POST", "/v1/work/store_metrics", {"rows": [measured("")]}, "all")
    assert (status, problem["error"]) == (403, "forbidden")


@pytest.mark.slow
@pytest.mark.parametrize("name", ["all", "enqueue"])
async def test_a_bound_token_has_its_scopes_within_its_queue(sites: Sites, name: str) -> None:
    await furnish(sites)
    status, job = await sites.native("POST", "/v1/jobs", {"task": "t", "queue": MINE, "key": "k", "id": "m"}, name)
    assert (status, job["queue"]) == (201, MINE)
    status, job = await sites.native("POST", "/v1/jobs", {"task": "t", "queue": MINE, "key": "k"}, name)
    assert (status, job["id"]) == (200, "m")
    status, job = await sites.native("POST", "/v1/jobs", {"task": "t", "queue": MINE, "after": ["m"]}, name)
    assert (status, job["state"]) == (201, "waiting")


async def test_a_token_without_the_scope_read_sees_nothing_of_the_stored_job(sites: Sites) -> None:
    """The token has the scope enqueue alone."""
    job = {"task": "t", "queue": MINE, "key": "k", "id": "m", "args": [SECRET]}
    await sites.native("POST", "/v1/jobs", job, "admin")
    for path, body in (
        ("/v1/jobs", {"task": "t", "queue": MINE, "key": "k"}),
        ("/v1/work/enqueue", {"jobs": [new("m")]}),
        ("/v1/work/enqueue", {"jobs": [new(key="t k")]}),
    ):
        status, answer = await sites.native("POST", path, body, "enqueue")
        assert status == 200
        assert '"m"' in json.dumps(answer)
        assert SECRET not in json.dumps(answer)
    taken = {"task": "other", "queue": MINE, "id": "m"}
    for path, body in (("/v1/jobs", taken), ("/v1/work/enqueue", {"jobs": [new("m", task="other", nonce="1")]})):
        status, answer = await sites.native("POST", path, body, "enqueue")
        assert (status, answer["details"]["task"], answer["details"]["other"]) == (422, None, False)


@pytest.mark.slow
async def test_explain_shows_no_use_of_a_limit_by_other_queues(sites: Sites) -> None:
    """My job may name a limit of the other queue, but not see which jobs it blocks or how much of it is used."""
    await furnish(sites)
    await sites.admin("/v1/limits/shared", {"slots": 1}, "PUT")
    theirs = [{"id": f"o{n}", "task": "t", "queue": OTHER, "limits": [["shared", 1]]} for n in range(3)]
    await sites.admin("/v1/work/enqueue", {"jobs": theirs})
    claim = {"queues": [[OTHER, 9]], "ids": ["o0", "o1", "o2"], "limit": 9, "lease": 3600}
    await sites.admin("/v1/work/claim", {"worker": "theirs#9", **claim})
    await sites.native("POST", "/v1/jobs", {"task": "t", "queue": MINE, "id": "m", "limits": ["shared"]}, "all")
    await sites.native(
        "POST", "/v1/work/claim", {"worker": "w#1", "queues": [[MINE, 1]], "tasks": {"t": [9, 9]}}, "all"
    )
    said = {name: (await sites.native("GET", "/v1/jobs/m/explain", None, name))[1]["text"] for name in ("all", "admin")}
    assert "shared" in said["all"]
    assert not any(word.isdigit() for word in said["all"].split()), said
    assert "1 of 1 slots" in said["admin"]
