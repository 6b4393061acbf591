"""Rows stored without any check: every read succeeds, and says in words what cannot be decoded."""

from __future__ import annotations

import asyncio
import contextlib
import io
import json
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.fixtures import KINDS, a_url
from tests.served import host
from treadle import App, Worker
from treadle.cli.root import run
from treadle.core.model import Claim, LeaseRenewal, NewJob, Outcome, Presence, Record, State
from treadle.server import Settings
from treadle.storage.contract import Storage
from treadle.storage.memory import MemoryStorage

HUGE = '{"$t":"int","v":"0x' + "f" * 6_000 + '"}'
HALF = '{"$t":"str","v":[55296]}'
DEEP = "[" * 20_000 + "]" * 20_000  # too deep for Python's decoder
NESTED = (90, 150, 400, 3_000, 9_000)  # some can be read; of others a caller can read less than the server wrote
PAYLOADS = {
    "huge": f"[{HUGE}]",
    "half": f"[{HALF}]",
    "garbage": "nonsense {",
    "number": "5",
    "text": '"abc"',
    "null": "null",
    "args": '{"args":5}',
    "kwargs": '{"kwargs":[1]}',
    "name": '{"kwargs":{"$t":"dict","v":[[1,2]]}}',
    "bytes": '{"kwargs":{"$t":"dict","v":[[{"$t":"bytes","v":"AA=="},2]]}}',
    "value": f'{{"kwargs":{{"a":{HALF}}}}}',
    "unknown": '[{"$t":"nope","v":1}]',
    "deep": DEEP,
    "good": "[1]",
}
RESULTS = ("nonsense", HALF, HUGE, '[{"$t":"int","v":"zz"}]', '{"$t":"datetime","v":"x"}', DEEP, "5")
NOTES = (
    "x",
    "[]",
    "5",
    "null",
    '"progress"',
    '{"progress":"a","text":1}',
    '{"progress":1e400}',
    '{"progress":null}',
    '{"progress":' + "9" * 400 + ',"text":"x"}',
    DEEP,
    '{"text":' + DEEP + "}",
)
CHECKPOINTS = (
    "1",
    "1.5",
    "null",
    "[]",
    '"text"',
    "garbage {",
    '{"until":1e300}',
    '{"until":"soon"}',
    '{"after":1}',
    '{"more":' + DEEP + "}",
    '{"value":1}',
    '{"until":4000000000.0}',
    '{"gave_up":true}',
)
SIGNALS = ("garbage", "5", "{}", '{"job":5,"signal":7}', '{"job":"w0","signal":' + DEEP + "}")


def signal(number: int) -> str:
    return f"treadle:signal:{'0' * 40}:{number}"


async def ticked(app: App) -> None:
    """A schedule that has made a job, and one that was changed and paused since."""
    await app.schedules.upsert("nightly", app.stub("x").job(), every=0.1)
    async with asyncio.timeout(60), Worker(app, ["nothing"], poll=0.05, role="auto"):
        while (await app.schedules.get("nightly")).last is None:
            await app.storage.watch(("queue:default",), 0.1)
    await app.schedules.upsert("nightly", every=3_600)


async def fill(app: App) -> None:
    await ticked(app)
    storage: Storage = app.storage
    calls = [NewJob(id=f"call-{name}", task="t", payload=text, delay=60.0) for name, text in PAYLOADS.items()]
    calls += [NewJob(id=f"nested-{n}", task="t", payload="[" * n + "]" * n, delay=60.0) for n in NESTED]
    flows = [
        NewJob(id=f"flow-{name}", task="treadle.flow", payload=text, function_done=True)
        for name, text in PAYLOADS.items()
    ]
    promises = [NewJob(id=signal(number), payload=text, wait_timeout=60.0) for number, text in enumerate(SIGNALS)]
    waiting = [NewJob(id=f"w{number}", task="t", after=(signal(number),)) for number in range(len(SIGNALS))]
    policies = [NewJob(id="policy", task="t", retry="garbage", delay=60.0)]
    await storage.enqueue([*calls, *flows, *promises, *waiting, *policies])
    ends = [NewJob(id=f"end{n}", task="u", queue="ends") for n in range(max(len(RESULTS), len(NOTES)) + 2)]
    await storage.enqueue([*ends, NewJob(id="runs", task="u", queue="ends"), *own_rows()])
    queues = (("ends", 100),)
    rows = {row.id: row for row in (await storage.claim(Claim(worker="w#1", queues=queues, limit=100))).records}
    await storage.settle(list(endings(rows)))
    run = rows["runs"]
    checkpoints = tuple((f"step {number}", text) for number, text in enumerate(CHECKPOINTS))
    await storage.heartbeat(
        Presence(worker="w"), [LeaseRenewal(run.id, run.version, checkpoints=checkpoints, note="5")], 600.0
    )


def own_rows() -> list[NewJob]:
    """Rows that claim to be Treadle's own."""
    texts = ("[]", "garbage", '{"name":"n","more":' + DEEP + "}")
    return [
        NewJob(id=f"own{number}", task="treadle.schedule", queue="treadle", payload=text, delay=600.0)
        for number, text in enumerate(texts)
    ]


def endings(rows: dict[str, Record]) -> Iterator[Outcome]:
    for number in range(max(len(RESULTS), len(NOTES))):
        row, text = rows[f"end{number}"], RESULTS[number % len(RESULTS)]
        yield Outcome(
            id=row.id,
            version=row.version,
            state=State.SUCCEEDED,
            attempt=1,
            result=text,
            value=text,
            note=NOTES[number % len(NOTES)],
        )
    for number, error in enumerate(("", "\n\n"), max(len(RESULTS), len(NOTES))):
        row = rows[f"end{number}"]
        yield Outcome(id=row.id, version=row.version, state=State.FAILED, attempt=1, error=error, reason="error")


class Place:
    """A storage full of odd rows, read from Python, by HTTP and by the command line."""

    def __init__(self, app: App, site: str, url: str, ids: list[str]) -> None:
        self.app, self.site, self.url, self.ids = app, site, url, ids

    def get(self, path: str) -> Any:
        with urllib.request.urlopen(self.site + path, timeout=60) as answer:
            return json.loads(answer.read())

    def cli(self, *words: str) -> str:
        """The output of a command, which must succeed."""
        out, err = io.StringIO(), io.StringIO()
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            code = run([*words, "--url", self.url])
        assert code == 0, (words, err.getvalue()[-400:])
        out.getvalue().encode()
        return out.getvalue()


@pytest.fixture(scope="module", params=KINDS)
def place(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    kind, here = request.param, host().run
    with a_url(kind, Path(tmp_path_factory.mktemp("odd"))) as url:
        app = App(storage=MemoryStorage()) if kind == "memory" else App(url)
        site = host().add(app, Settings(max_wait=5))
        try:
            here(fill(app))
            ids = [row.id for row in here(app.jobs.list(limit=1_000)).records]
            yield Place(app, site, site if kind == "memory" else url, ids)
        finally:
            here(app.close())


def test_python_shows_every_row(place: Place) -> None:
    app, here = place.app, host().run
    rows = {row.id: row for row in here(app.jobs.list(limit=1_000)).records}
    for name, text in PAYLOADS.items():
        if name not in ("good", "huge", "half", "value"):
            assert app.jobs.arguments(rows[f"call-{name}"]) == ((text,), {}), name
    assert app.jobs.arguments(rows["call-half"]) == (("\ud800",), {})
    assert app.jobs.arguments(rows["call-good"]) == ((1,), {})
    for id, row in rows.items():
        assert here(app.jobs.explain(id))
        assert isinstance(app.jobs.arguments(row), tuple)
    assert [list(here(app.jobs.signals_of(f"w{n}"))) for n in range(len(SIGNALS))] == [[]] * len(SIGNALS)
    assert len(here(app.dead.list(limit=1_000)).records) == 2
    assert [each.name for each in here(app.schedules.list())] == ["nightly"]
    here(app.queues.stats())


@pytest.mark.slow
def test_http_shows_every_row(place: Place) -> None:
    assert {job["id"] for job in place.get("/v1/jobs?limit=1000")["jobs"]} == set(place.ids)
    for id in place.ids:
        job = place.get(f"/v1/jobs/{id}")
        assert place.get(f"/v1/jobs/{id}/wait?timeout=0")["id"] == id
        assert place.get(f"/v1/jobs/{id}/explain")["text"]
        kind, _, name = id.partition("-")
        if kind in ("call", "flow"):
            assert job["args"] == ([1] if name == "good" else [PAYLOADS[name]]), id
    assert [each["name"] for each in place.get("/v1/schedules")["schedules"]] == ["nightly"]
    for path in ("/v1/stats", "/v1/queues", "/v1/limits", "/v1/workers"):
        # a 404 is right too: the statistics name what they cannot show
        try:
            place.get(path)
        except urllib.error.HTTPError as error:
            error.close()


def test_the_command_line_shows_every_row(place: Place) -> None:
    assert "call-huge" in place.cli("jobs", "list", "-n", "1000")
    listed = {job["id"]: job for job in json.loads(place.cli("jobs", "list", "-n", "1000", "--json"))}
    assert set(listed) == set(place.ids)
    for name, text in PAYLOADS.items():
        assert listed[f"call-{name}"]["args"] == ([1] if name == "good" else [text]), name
    for number, text in enumerate(RESULTS[:-1]):
        assert listed[f"end{number}"]["result"] == text
    assert listed["end6"]["result"] == 5
    assert listed["runs"]["steps"] == {}  # a page has none
    steps = json.loads(place.cli("jobs", "show", "runs", "--json"))["steps"]
    assert [steps[f"step {number}"] for number in range(6)] == list(CHECKPOINTS[:6])
    assert (steps["step 6"], steps["step 10"], steps["step 11"]) == (
        "sleeps until 1e+300 s after 1970",
        "done",
        "sleeps until 2096-10-02 07:06:40 UTC",
    )
    [id] = [id for id in listed if id.startswith("treadle:schedule:")]
    schedule = json.loads(place.cli("jobs", "show", id, "--json"))
    assert float(schedule["steps"]["cursor"] or 0) >= 0
    assert schedule["steps"]["last"].startswith("cron:nightly:")
    assert json.loads(schedule["steps"]["definition"])["name"] == "nightly"
    for command in ("schedules list", "queues list", "limits list", "queues stats", "queues workers"):
        place.cli(*command.split())
        json.loads(place.cli(*command.split(), "--json"))
    place.cli("top", "--times", "1")
    assert "call-half" in place.cli("jobs", "list", "-n", "1000", "--watch", "--times", "1")
    place.cli("jobs", "list", "--state", "failed", "--order", "ended")


def test_the_command_line_prints_every_result(place: Place) -> None:
    """A job that was stored before; half characters and numbers of 6,000 digits are not JSON."""
    typed = ("enqueue", "u", "--queue", "ends", "--wait", "9", "--id")
    assert json.loads(place.cli(*typed, "end1")) == "\\ud800"
    assert json.loads(place.cli(*typed, "end2")) == "0x" + "f" * 6_000
    assert json.loads(place.cli(*typed, "end6")) == 5


@pytest.mark.slow
def test_the_command_line_shows_each_row(place: Place) -> None:
    for id in place.ids:
        assert id in place.cli("jobs", "show", id)
        assert json.loads(place.cli("jobs", "show", id, "--json"))["why"]
    assert place.cli("jobs", "explain", "w0").startswith("It waits")
    assert "garbage" in place.cli("jobs", "show", signal(0))
    assert "step 5 (garbage {)" in place.cli("jobs", "show", "runs")
