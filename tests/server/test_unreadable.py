"""Texts that no decoder can read: a request names the field and is refused, and a stored one blocks no other row."""

from __future__ import annotations

import ast
import re
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest

import treadle
from tests.served import host, memory_url
from tests.server.places import EVERY, a_place
from tests.server.test_answers import HELLO, hostile, whole
from tests.server.test_api import Client, session
from tests.worker.test_leader import Candidate
from treadle import App, Retry, StorageError, Worker
from treadle.contrib.delayed.app import delayed_routes
from treadle.contrib.delayed.ids import shown
from treadle.contrib.queuey.app import QUEUE, queue_routes
from treadle.contrib.queuey.jobs import Rules
from treadle.core import defaults
from treadle.core.ids import UuidV7
from treadle.core.model import Claim, LeaseRenewal, NewJob, Outcome, Presence, State
from treadle.server import Settings
from treadle.storage.contract import Storage
from treadle.worker.leader import ID

__all__ = ["session"]

DEEP = "[" * 20_000 + "]" * 20_000
ODD = ("garbage {", "5", '{"more":' + DEEP + "}", DEEP)


class Site:
    """One storage, its server, and both compatible protocols."""

    def __init__(self, app: App, storage: Storage, session: aiohttp.ClientSession) -> None:
        self.app, self.storage = app, storage
        self.native = Client(host().add(app, Settings(max_wait=5)), session)
        self.queuey = Client(host().add(app, Settings(max_wait=5), [queue_routes(Rules())]), session)
        self.delayed = Client(host().add(app, Settings(max_wait=5), [delayed_routes()]), session)

    async def work(self, verb: str, body: Any) -> Any:
        status, answer = await self.native("POST", f"/v1/work/{verb}", body)
        assert status == 200, (verb, answer)
        return answer

    async def store(self, *jobs: NewJob) -> None:
        host().run(self.storage.enqueue(jobs))


@pytest.fixture(params=EVERY)
async def site(request: pytest.FixtureRequest, tmp_path: Path, session: aiohttp.ClientSession) -> AsyncIterator[Site]:
    with a_place(request.param, tmp_path) as storage:
        app = App(storage=storage)
        yield Site(app, storage, session)
        host().run(app.close())


# --- requests


def cursors() -> Iterator[str]:
    for order in ("newest", "oldest", "ended", "queue"):
        for parts in (
            (DEEP,),
            ("1", DEEP),
            ("1e400", '"a"'),
            ("1" + "0" * 400, '"a"'),
            ("1", '"a\\u0000"'),
            ("1", '"a"', "2"),
            ('"q"', str(2**63), "1", '"a"'),
            ('"q"', "1" + "0" * 400, "1", '"a"'),
            ('"q"', "1", "1e308", '"a"'),
            ('"q"', "1", "1e308", '"\\u0000"'),
            ('"\\u0000"', "1", "1", '"a"'),
            ("1e308", '"a"'),
            ("-1e308", '"a"'),
        ):
            yield f'["{order}",{",".join(parts)}]'


async def test_an_invalid_cursor_is_refused(site: Site) -> None:
    """422 for a text that no page returned. One that looks like a cursor is a position, possibly after all rows or
    before."""
    await site.store(*[NewJob(id=f"j{number}", task="t") for number in range(3)])
    for text in (*cursors(), DEEP, "{", "[]"):
        cursor = text.encode().hex()
        for order in ("newest", "oldest", "ended", "queue"):
            status, answer = await site.native("POST", "/v1/work/find", {"cursor": cursor, "order": order})
            assert status in (200, 422), (text[:60], order, answer)
            if status == 422:
                assert answer["error"] == "bad_option", answer
                assert len(answer["message"]) < 500
    short = ('["newest",' + "[" * 2_000 + "]" * 2_000 + ',"a"]').encode().hex()
    assert (await site.native("GET", f"/v1/jobs?cursor={short}"))[0] == 422


POLICIES = {
    '{"more":' + DEEP + "}": ("retry", 'expected the JSON text of a retry policy, found \'{"more":['),
    "{not json": ("retry", "expected the JSON text of a retry policy, found '{not json'"),
    "[]": ("retry", "expected `object`, found an array"),
    '{"timeout":"soon"}': ("timeout", 'expected `float | null`, found "soon"'),
    '{"timeout":-1}': ("timeout", "expected more than 0 s, or None for no limit, found -1.0"),
    '{"max_lost":-1}': ("max_lost", "expected 1 or more, or 0 for any number, found -1"),
    '{"retry":{"attempts":"x"}}': ("retry.attempts", 'expected `int | null`, found "x"'),
    '{"retry":{"attempts":0}}': ("retry", "attempts: expected 1 to 1,000,000,000, or None for no end, found 0"),
    '{"retry":{"attempts":' + "9" * 400 + "}}": ("retry", "attempts: expected 1 to"),
    '{"retry":{"factor":[' + DEEP + "]}}": ("retry", "expected the JSON text of a retry policy, found "),
    '{"retry":{"base":-5}}': ("retry.base", "expected seconds (0 to 3,153,600,000) or a timedelta, found -5.0"),
    '{"retry":{"base":"z"}}': ("retry.base", 'invalid ISO8601 duration, found "z"'),
}


@pytest.mark.parametrize("text", POLICIES)
async def test_a_policy_is_refused_by_its_field(session: aiohttp.ClientSession, text: str) -> None:
    """The raw verbs refuse it, alone and in `followups`: the error names the field, what was expected and what was
    found."""
    call = Client(memory_url(None), session)
    option, words = POLICIES[text]
    status, answer = await call("POST", "/v1/work/enqueue", {"jobs": [{"id": "a", "task": "t", "retry": text}]})
    assert (status, answer["error"], answer["details"]["option"]) == (422, "bad_option", option), answer
    assert answer["details"]["problem"].startswith(words), answer
    assert "msgspec" not in answer["message"]
    assert len(answer["message"]) < 300
    await call("POST", "/v1/jobs", {"task": "t", "id": "run"})
    _, claimed = await call("POST", "/v1/work/claim", {"worker": "w#1"})
    [row] = claimed["records"]
    outcome = {
        "id": "run",
        "version": row["version"],
        "state": "succeeded",
        "followups": [{"id": "kid", "retry": text}],
    }
    _, said = await call("POST", "/v1/work/settle", {"outcomes": [outcome]})
    assert said["settled"][0]["status"] == "refused"
    assert words in said["settled"][0]["reason"]


@pytest.mark.parametrize(
    ("retry", "words"),
    [
        ({"attempts": 0}, "retry.attempts: expected `int` >= 1, found 0"),
        ({"attempts": "x"}, 'retry.attempts: expected `int | null`, found "x"'),
        ({"attempts": 10**30}, "retry.attempts: expected `int` <= 1000000000, found 1000"),
        ({"jitter": 2}, "retry.jitter: expected `float` <= 1.0, found 2"),
        ({"base": -1}, "retry.base: expected `float` >= 0.0, found -1"),
        ({"base": {"a": 1}}, "retry.base: expected `float`, found an object"),
        ({"tries": 3}, "retry: object contains unknown field `tries`"),
        (7, "retry: expected `object`, found 7"),
    ],
)
async def test_a_policy_of_the_native_api_is_refused_by_its_field(
    session: aiohttp.ClientSession, retry: Any, words: str
) -> None:
    call = Client(memory_url(None), session)
    status, answer = await call("POST", "/v1/jobs", {"task": "t", "retry": retry})
    assert status == 422
    assert words in answer["message"]
    _, answer = await call("POST", "/v1/jobs/batch", {"jobs": [{"task": "t"}, {"task": "t", "retry": retry}]})
    assert words in answer["message"]


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/jobs", '{"task":"t","priority":1e999,"x":[' + DEEP + "]}"),
        ("/v1/jobs", '{"task":["' + "x" * 9 + '"],"args":[' + DEEP + "]}"),
        ("/v1/jobs", '{"task":7,'),
        ("/v1/jobs", '{"task":"t","args":[' + DEEP + "]}"),
        ("/v1/work/enqueue", '{"jobs":[{"id":7}],"more":' + DEEP + "}"),
        ("/v1/work/claim", '{"worker":7,"more":' + DEEP + "}"),
        ("/v1/work/settle", '{"outcomes":[{"id":"a","version":1,"succeed":' + DEEP + "}]}"),
    ],
)
async def test_a_body_with_two_mistakes_is_refused(session: aiohttp.ClientSession, path: str, body: str) -> None:
    """The first mistake is reported without reading the rest."""
    call = Client(memory_url(None), session)
    status, answer = await call("POST", path, raw=body.encode(), headers={"Content-Type": "application/json"})
    assert 400 <= status < 500 or answer["settled"][0]["status"] == "stale", answer


@pytest.mark.parametrize("payload", ODD)
async def test_rows_of_treadles_own_that_cannot_be_read(session: aiohttp.ClientSession, payload: str) -> None:
    call = Client(memory_url(None), session)
    once, hold = "treadle:once:" + "0" * 16, "treadle:hold:" + "0" * 32
    for job in (
        {"id": hold, "task": "treadle.limit", "queue": "treadle", "key": "treadle.limit a", "lease": 5.0},
        {"id": once, "task": "", "key": "treadle.once a", "deadline": 9.0},
        {"id": "treadle:signal:" + "0" * 40 + ":1", "task": ""},
        {"id": "treadle:schedule:1", "task": "treadle.schedule", "queue": "treadle", "key": "treadle.schedule n"},
    ):
        status, answer = await call("POST", "/v1/work/enqueue", {"jobs": [{**job, "payload": payload}]})
        assert (status, answer["error"]) == (422, "bad_option"), answer
    job = {"id": "f", "task": "treadle.flow", "function_done": True, "payload": payload}
    assert (await call("POST", "/v1/work/enqueue", {"jobs": [job]}))[0] == 422
    assert (await call("GET", "/v1/jobs"))[1]["jobs"] == []


# --- stored rows


async def test_the_compatible_protocols_skip_rows_of_others(site: Site) -> None:
    """A list shows the other rows, a read of such a row answers 404, and a claim ends such jobs and takes the next."""
    new = UuidV7()
    wasi, delayed = [new() for _ in ODD], [new() for _ in ODD]
    header = (("dueTime", "1"),)
    await site.store(
        *[NewJob(id=id, task="wasi.run", queue=QUEUE, payload=text) for id, text in zip(wasi, ODD, strict=True)],
        *[
            NewJob(id=id, task=defaults.DELAYED_TASK, queue=defaults.DELAYED_QUEUE, payload=text, headers=header)
            for id, text in zip(delayed, ODD, strict=True)
        ],
    )
    status, good = await site.queuey("POST", "/jobs/create", {"binary_addr": "sha256:" + "0" * 64})
    assert status == 200
    for id in wasi:
        assert (await site.queuey("GET", f"/jobs/{id}"))[0] == 404
    status, listed = await site.queuey("GET", "/jobs")
    assert (status, [job["job_id"] for job in listed["jobs"]]) == (200, [good["job_id"]])
    status, claimed = await site.queuey("POST", "/jobs/claim", {"runner_id": new()})
    assert (status, claimed["job_id"]) == (200, good["job_id"])
    for id in delayed[:3]:
        assert (await site.delayed("GET", f"/jobs/{shown(id)}"))[0] == 404
        assert (await site.delayed("DELETE", f"/jobs/{shown(id)}"))[0] == 404
    # a list of one deeply nested value
    assert (await site.delayed("GET", f"/jobs/{shown(delayed[3])}"))[0] in (200, 404)
    assert (await site.delayed("GET", "/stats"))[0] == 200


@pytest.mark.parametrize("note", ODD)
@pytest.mark.parametrize("result", ODD)
async def test_a_run_of_the_queue_protocol_that_left_odd_texts(
    session: aiohttp.ClientSession, note: str, result: str
) -> None:
    storage_app = App("memory://")
    url = host().add(storage_app, Settings(max_wait=5), [queue_routes(Rules())])
    call, here, storage = Client(url, session), host().run, storage_app.storage
    _, job = await call("POST", "/jobs/create", {"binary_addr": "sha256:" + "0" * 64})
    await call("POST", "/jobs/claim", {"runner_id": UuidV7()()})
    [row] = here(storage.get([job["job_id"]]))
    here(storage.settle([Outcome(id=row.id, version=row.version, state=State.SUCCEEDED, result=result, note=note)]))
    status, shown_job = await call("GET", f"/jobs/{row.id}")
    assert (status, shown_job["status"], shown_job["output_addr"]) == (200, "completed", None)
    assert (await call("GET", f"/jobs/{row.id}/output"))[0] in (200, 404)


CHECKPOINTS = tuple(
    [[name, text]]
    for name in ("treadle:after", "treadle:lost", "treadle:plan", "treadle:of")
    for text in (*ODD[:3], "0:", "0:x", "0:-1", "0:" + "9" * 4_300, '{"a":7}')
)


async def test_checkpoints_entries_that_cannot_be_read_keep_no_runner_from_its_jobs(site: Site) -> None:
    """A runner in another language may have stored anything under the names of Treadle's own checkpoints."""
    await site.store(NewJob(id="up", task="t"), NewJob(id="other", task="t"))
    jobs = [NewJob(id=f"j{number}", task="t", after=("up",)) for number in range(len(CHECKPOINTS))]
    await site.store(*jobs)
    ask = {"worker": "w#0", "queues": [["default", 2]], "ids": ["up", "other"], "limit": 2}
    for row in (await site.work("claim", ask))["records"]:
        await site.work("settle", {"outcomes": [{"id": row["job"]["id"], "version": row["version"], "succeed": 1}]})
    count = len(CHECKPOINTS)
    claimed = await site.work("claim", {"worker": "w#1", "queues": [["default", count]], "limit": count, "lease": 0.01})
    for row, checkpoints in zip(claimed["records"], CHECKPOINTS, strict=True):
        renewal = {"id": row["job"]["id"], "version": row["version"], "checkpoints": checkpoints}
        status, _ = await site.native(
            "POST", "/v1/work/heartbeat", {"worker": {"worker": "w"}, "renewals": [renewal], "lease": 0.001}
        )
        assert status in (200, 422), checkpoints  # an unreadable plan is refused
    found = set[str]()
    while len(found) < count:  # each is a suspect, so it comes alone, and the next one when it is settled
        answer = await site.work(
            "claim",
            {
                "worker": f"w#{len(found) + 2}",
                "queues": [["default", count]],
                "limit": count,
                "max_lost": 3,
                "wait": 1,
                "lease": 60,
            },
        )
        for row in answer["records"]:
            id = row["job"]["id"]
            found |= {id} & {job.id for job in jobs}
            report = {"id": id, "version": row["version"], "followups": [{"id": "", "task": "t"}], "again": True}
            said = await site.work("settle", {"outcomes": [report]})
            assert said["settled"][0]["status"] == "applied", row
            assert (await site.native("GET", f"/v1/jobs/{id}"))[0] == 200


@pytest.mark.parametrize("kind", EVERY)
@pytest.mark.parametrize("note", ODD)
async def test_a_follower_ignores_an_unreadable_note_of_the_lead(kind: str, note: str, tmp_path: Path) -> None:
    """A follower does a duty itself if it cannot read whether the leader does it."""
    with a_place(kind, tmp_path) as storage:
        await storage.open()
        try:
            one, two = Candidate(storage, "one", "leader"), Candidate(storage, "two", "follower")
            await one.look()
            [row] = await storage.get([ID])
            await storage.heartbeat(Presence(worker="one"), [LeaseRenewal(ID, row.version, note=note)], 600.0)
            await two.look()
            assert two.redrives(["mail"]) == ["mail"]
        finally:
            await storage.close()


@pytest.mark.parametrize("kind", EVERY[:-1])  # HTTP refuses to store such rows
async def test_workers_continue_despite_unreadable_rows(kind: str, tmp_path: Path) -> None:
    """The rest of a limit and a flow end; jobs with odd policies and checkpoints run."""
    with a_place(kind, tmp_path) as storage:
        app = App(storage=storage, retry=Retry(attempts=1))

        @app.task(name="t")
        async def t() -> int:
            return 1

        async with app:
            await storage.enqueue(
                [
                    *[
                        NewJob(id=f"rest{n}", task="treadle.limit", queue="treadle", payload=text)
                        for n, text in enumerate(ODD)
                    ],
                    *[
                        NewJob(id=f"flow{n}", task="treadle.flow", payload=text, function_done=True)
                        for n, text in enumerate(ODD)
                    ],
                    *[NewJob(id=f"job{n}", task="t", retry=text) for n, text in enumerate(ODD)],
                    *[NewJob(id=f"memo{n}", task="t") for n in range(len(CHECKPOINTS))],
                ]
            )
            ask = Claim(
                worker="w#1",
                queues=(("default", 100),),
                ids=tuple(f"memo{n}" for n in range(len(CHECKPOINTS))),
                limit=100,
                lease=60.0,
            )
            rows = (await storage.claim(ask)).records
            renewals = [
                LeaseRenewal(row.id, row.version, checkpoints=tuple((name, text) for name, text in checkpoints))
                for row, checkpoints in zip(rows, CHECKPOINTS, strict=True)
            ]
            await storage.heartbeat(Presence(worker="w"), renewals, 60.0)
            back = [Outcome(id=row.id, version=row.version, state=State.READY) for row in rows]
            assert {each.status for each in await storage.settle(back)} == {"applied"}
            async with Worker(app, ["default"], poll=0.05):
                for id in (*[f"job{n}" for n in range(len(ODD))], *[f"memo{n}" for n in range(len(CHECKPOINTS))]):
                    assert (await app._core.client.ended(id, 20)).state is State.SUCCEEDED, id
                for n in range(len(ODD)):
                    assert (await app._core.client.ended(f"rest{n}", 20)).reason == "aborted"
                    assert (await app._core.client.ended(f"flow{n}", 20)).state.final


# --- answers of a server


@pytest.mark.parametrize("body", [b'{"records":' + DEEP.encode() + b"}", b'{"records":7}', b"<p>", b'{"\xff'])
async def test_an_answer_of_another_server_is_an_error(body: bytes) -> None:
    with hostile(whole(HELLO), whole(body)) as url:
        async with App(url) as app:
            with pytest.raises(StorageError, match="expected the response of a Treadle server"):
                await app.storage.get(["a"])
    for status in ("500 No", "422 No"):
        with hostile(whole(HELLO), whole(body, status)) as url:
            async with App(url) as app:
                with pytest.raises(StorageError, match=status[:3]):
                    await app.storage.get(["a"])


# --- Treadle's own sources

NARROW = re.compile(r"\b(MsgspecError|DecodeError)\b")


def handlers() -> Iterator[tuple[str, list[ast.expr], list[ast.expr]]]:
    """Each `except` and `suppress` of the files that name these errors: its place, the errors that it names, and the
    names in its `try`."""
    for file in sorted(Path(treadle.__file__).parent.rglob("*.py")):
        if not NARROW.search(text := file.read_text()):
            continue
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.Try):
                every = [each.type for each in node.handlers if each.type is not None]
                for each in node.handlers:
                    if each.type is not None:
                        yield f"{file}:{each.lineno}", [each.type], every
            elif isinstance(node, ast.Call) and ast.unparse(node.func).endswith("suppress"):
                yield f"{file}:{node.lineno}", node.args, node.args


@pytest.mark.slow
def test_handlers_of_decoding_errors_catch_all_of_them() -> None:
    """JSON that is nested too deep raises RecursionError, half a character UnicodeEncodeError: `errors.UNREADABLE`."""
    narrow = []
    for place, named, every in handlers():
        names = " ".join(ast.unparse(each) for each in named)
        text = " ".join(ast.unparse(each) for each in every)
        if NARROW.search(names) and not ("RecursionError" in text and ("Unicode" in text or "ValueError" in text)):
            narrow.append(place)
    assert narrow == []
