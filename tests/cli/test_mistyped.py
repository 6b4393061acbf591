"""A mistyped name never succeeds silently: each kind of name, in each call, from the command line and over HTTP."""

from __future__ import annotations

import asyncio
import json
import urllib.parse
import urllib.request
from collections.abc import Collection, Iterator
from pathlib import Path
from random import Random
from typing import Any

import pytest
from msgspec import Struct

from tests.kit import Told
from tests.served import host
from treadle import App, Limit, Worker, current
from treadle.admin.known_names import heard
from treadle.cli.root import run
from treadle.core import similar_names
from treadle.server import Settings, Token
from treadle.server.auth.tokens import digest


class Case(Struct):
    """One call, made from each side. http: method, path and body."""

    words: str
    cli: list[str]
    http: tuple[str, str, Any] | None = None


QUEUE = "nothing uses the queue 'fecth' yet; did you mean 'fetch'?"
TASK = "nothing uses the task 'mail.sned' yet; did you mean 'mail.send'?"
LABEL = "no job has the label 'tenant=acne'; did you mean 'tenant=acme'?"
LIMIT = "nothing uses the limit 'stmp' yet; did you mean 'smtp'?"

CASES: dict[str, Case] = {
    "list queue": Case(
        QUEUE,
        ["jobs", "list", "--queue", "fecth"],
        ("GET", "/v1/jobs?queue=fecth", None),
    ),
    "list task": Case(
        TASK,
        ["jobs", "list", "--task", "mail.sned"],
        ("GET", "/v1/jobs?task=mail.sned", None),
    ),
    "list label": Case(
        LABEL,
        ["jobs", "list", "--label", "tenant=acne"],
        ("GET", "/v1/jobs?label=" + urllib.parse.quote("tenant=acne"), None),
    ),
    "count queue": Case(
        QUEUE,
        ["jobs", "list", "--queue", "fecth"],
        ("GET", "/v1/jobs?queue=fecth&limit=0&count=true", None),
    ),
    "cancel queue": Case(QUEUE, ["jobs", "cancel", "--queue", "fecth", "--yes"]),
    "retry task": Case(TASK, ["jobs", "retry", "--task", "mail.sned", "--yes"]),
    "delete label": Case(LABEL, ["jobs", "delete", "-l", "tenant=acne", "--yes"]),
    "dead queue": Case(QUEUE, ["jobs", "retry", "--queue", "fecth", "--yes"]),
    "enqueue queue": Case(
        QUEUE,
        ["enqueue", "mail.send", "--queue", "fecth"],
        ("POST", "/v1/jobs", {"task": "mail.send", "queue": "fecth"}),
    ),
    "enqueue task": Case(
        TASK,
        ["enqueue", "mail.sned", "--queue", "fetch"],
        ("POST", "/v1/jobs", {"task": "mail.sned", "queue": "fetch"}),
    ),
    "enqueue limit": Case(
        LIMIT,
        ["enqueue", "mail.send", "--queue", "fetch", "--limit", "stmp"],
        ("POST", "/v1/jobs/batch", {"jobs": [{"task": "mail.send", "queue": "fetch", "limits": ["stmp"]}]}),
    ),
    "pause queue": Case(
        QUEUE,
        ["queues", "pause", "fecth"],
        ("POST", "/v1/queues/fecth/pause", None),
    ),
    "resume queue": Case(
        "the queue 'fetched' is not paused; did you mean 'fetch'?",
        ["queues", "resume", "fetched"],
        ("POST", "/v1/queues/fetched/resume", None),
    ),
    "pause limit": Case(LIMIT, ["limits", "pause", "stmp"]),
    "remove limit": Case(
        "there is no limit 'stmp'; did you mean 'smtp'?",
        ["limits", "remove", "stmp"],
        ("DELETE", "/v1/limits/stmp", None),
    ),
    "set limit": Case(
        "nothing uses the limit 'stmp' yet; did you mean 'smtp'?",
        ["limits", "set", "stmp", "--slots", "1"],
        ("PUT", "/v1/limits/stmp", {"slots": 1}),
    ),
    "set limit of a queue": Case(
        QUEUE,
        ["limits", "set", "queue:fecth", "--slots", "1"],
        ("PUT", "/v1/limits/queue:fecth", {"slots": 1}),
    ),
    "signal": Case(
        "job waiting waits for the signal 'approved', not for 'aproved'; did you mean 'approved'?",
        ["jobs", "signal", "waiting", "aproved"],
        ("POST", "/v1/jobs/waiting/signal", {"name": "aproved"}),
    ),
}


async def seed(url: str) -> None:
    """Store a queue, a task and a label of a job, a rule, a pause, and a job that waits for a signal."""
    async with App(url) as app:
        await app.stub("mail.send", queue="fetch", labels=["tenant=acme"]).enqueue()
        await app.limits.set(Limit("smtp", slots=3))
        await app.queues.pause("fetch")

        @app.task(name="release")
        async def release() -> object:
            return await current().wait_for("approved")

        told = Told(app)
        await release.options(id="waiting").enqueue()
        async with Worker(app, queues=["default"]):
            await told.until("waiting")
        assert await app.jobs.signals_of("waiting")


@pytest.fixture
def url(tmp_path: Path) -> str:
    url = f"sqlite:///{tmp_path / 'jobs.db'}?synchronous=normal"
    asyncio.run(seed(url))
    return url


@pytest.fixture
def served(url: str) -> Iterator[str]:
    app = App(url)
    tokens = [
        Token(name="all", digest=digest("all"), scopes=("read", "enqueue", "operate")),
        Token(name="other", digest=digest("other"), scopes=("read", "enqueue", "operate"), queues=("fecth",)),
    ]
    yield host().add(app, Settings(tokens=tokens))
    host().run(app.close())


def ask(served: str, call: tuple[str, str, Any], token: str = "all") -> Any:
    method, path, body = call
    headers = {"Authorization": f"Bearer {token}", "Content-Type": "application/json"}
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(served + path, data, headers, method=method)
    with urllib.request.urlopen(request, timeout=30) as answer:
        return json.loads(answer.read())


@pytest.mark.parametrize("case", CASES)
def test_the_command_line_warns(url: str, case: str, capsys: pytest.CaptureFixture[str]) -> None:
    refused = case == "remove limit"
    assert run([*CASES[case].cli, "--url", url]) == (1 if refused else 0)
    said = capsys.readouterr().err
    assert said.count(CASES[case].words) == 1
    assert said.count("warning: ") == (0 if refused else 1)


@pytest.mark.parametrize("case", [name for name, case in CASES.items() if case.http])
def test_http_answers_the_warning(served: str, case: str) -> None:
    call = CASES[case].http
    assert call is not None
    assert ask(served, call)["warning"] == CASES[case].words


RIGHT: list[tuple[str, str, Any]] = [
    ("GET", "/v1/jobs?queue=fetch", None),
    ("GET", "/v1/jobs?queue=fetch&state=failed", None),
    ("GET", "/v1/jobs?task=mail.send&state=failed", None),
    ("GET", "/v1/jobs?label=" + urllib.parse.quote("tenant=acme") + "&state=failed", None),
    ("POST", "/v1/jobs", {"task": "mail.send", "queue": "fetch", "limits": ["smtp", "smtp:one"]}),
    ("POST", "/v1/jobs", {"task": "entirely_new", "queue": "elsewhere", "limits": ["other"]}),
    ("POST", "/v1/jobs", {"task": "mail.send", "queue": "fetch", "labels": ["tenant=acne"]}),
    ("POST", "/v1/jobs/waiting/signal", {"name": "approved"}),
]


def test_a_name_that_is_used_or_like_no_other_has_no_warning(served: str) -> None:
    for call in RIGHT:
        assert "warning" not in ask(served, call), call


def test_names_that_differ_in_a_number_only_are_no_mistake(served: str) -> None:
    for number in (1, 2, 13):
        assert "warning" not in ask(served, ("POST", "/v1/jobs", {"task": "mail.send", "queue": f"tenant-{number}"}))


def test_a_bound_token_sees_no_names_of_other_queues(served: str) -> None:
    for case in ("list queue", "list label", "enqueue queue", "pause queue"):
        method, path, body = CASES[case].http or ("", "", None)
        path = path + ("&queue=fecth" if "label" in path else "")
        told = ask(served, (method, path, body), "other").get("warning", "")
        assert not any(name in told for name in ("'fetch'", "acme", "mail.send")), told


@pytest.mark.slow
async def test_very_many_new_names_are_not_all_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    """Comparing each name with every other took minutes, during which a server answered no request."""
    compared: list[int] = []
    get_close_matches = similar_names.difflib.get_close_matches

    def counted(word: str, known: Collection[str], number: int) -> list[str]:
        compared.append(len(known))
        return get_close_matches(word, known, number)

    monkeypatch.setattr(similar_names.difflib, "get_close_matches", counted)
    app = App("memory://")
    site = host().add(app, Settings())
    rng = Random(1)
    for length in (12, 200):
        for _ in range(3):
            tasks = ["".join(rng.choices("abcdefgh", k=length)) for _ in range(1_000)]
            limits = ["".join(rng.choices("abcdefgh", k=length)) for _ in range(64)]
            jobs = [{"task": task, "queue": f"q{task}", "limits": limits} for task in tasks]
            answer = await asyncio.to_thread(ask, site, ("POST", "/v1/jobs/batch", {"jobs": jobs}))
            assert len(answer["jobs"]) == 1_000
            assert sum(compared) <= 20 * 200
            compared.clear()


def test_a_bound_token_sees_no_tasks_of_other_queues_of_a_worker() -> None:
    app = App("memory://")
    tokens = tuple(
        Token(name=name, digest=digest(name), scopes=("enqueue", "read", "work"), queues=queues)
        for name, queues in (("all", ()), ("mine", ("mine",)), ("both", ("mine", "other")))
    )
    url = host().add(app, Settings(tokens=tokens))
    worker = {"worker": "w", "queues": ["mine", "other"], "tasks": ["pay.refund"], "ttl": 60}
    ask(url, ("POST", "/v1/work/heartbeat", {"worker": worker}))
    told = {
        name: ask(url, ("POST", "/v1/jobs", {"task": task, "queue": "mine"}), name)
        for name, task in (("mine", "pay.refnud"), ("both", "pay.erfund"))
    }
    assert "warning" not in told["mine"]
    assert "pay.refund" in told["both"]["warning"]


def test_doctor_names_a_pause_that_nothing_obeys(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    for words in (["queues", "pause", "fecth"], ["limits", "pause", "stmp"], ["limits", "pause", "smtp"]):
        run([*words, "--url", url])
    capsys.readouterr()
    run(["doctor", "--json", "--url", url])
    found = [check["text"] for check in json.loads(capsys.readouterr().out) if check["name"] in ("paused", "limits")]
    assert [text for text in found if "did you mean" in text] == [
        "queue 'fecth' is paused, and nothing uses it; did you mean 'fetch'?",
        "limit 'stmp' is paused, has no rule and blocks no job; did you mean 'smtp'?",
    ]
    assert not any("'smtp' is paused" in text for text in found), "its rule uses it"


async def test_calls_that_enqueue_make_no_additional_query() -> None:
    """No enqueue from Python makes one, and no list that finds rows. A new name of an enqueue over HTTP makes one."""
    async with App("memory://") as app:
        asked = list[str]()
        for verb in ("stats", "glance", "limits"):
            inner = getattr(app.storage, verb)
            setattr(app.storage, verb, lambda *a, v=verb, i=inner, **k: (asked.append(v), i(*a, **k))[1])

        @app.task(name="send", queue="mail", limits=["smtp"])
        async def send() -> None: ...

        await send.enqueue()
        await app.enqueue(send.job(), send.options(delay=5).job())
        assert len((await app.jobs.list(queue="mail", task="send")).records) == 3
        assert asked == []
        far = app.stub("far", queue="away")
        await far.enqueue()
        assert asked == []
        with heard():
            for _ in range(5):
                await app.jobs.names.warn_of_new([far.job().new])
        assert (asked.count("glance"), asked.count("stats")) == (1, 0)


def test_an_app_in_the_place_of_a_task(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    monkeypatch.chdir(tmp_path)
    Path("shop.py").write_text("")
    assert run(["enqueue", "shop.py:app", "charge"]) == 2
    assert "'shop.py:app' names an app, not a task: give it as --app shop.py:app" in capsys.readouterr().err
