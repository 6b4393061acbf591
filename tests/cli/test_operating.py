"""The commands of operators: searching, failures, workflows, and the record of what they did."""

from __future__ import annotations

import asyncio
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.served import memory_url
from treadle import App, Retry, current, flow
from treadle.admin.audit import whoami
from treadle.cli.root import run
from treadle.server import Settings, Token
from treadle.server.auth.tokens import digest
from treadle.testing import drain
from treadle_testkit.shows import shows

URL = "sqlite:///jobs.db"


def made() -> tuple[App, Any]:
    app = App(URL)

    @app.task(name="send", retry=Retry(attempts=1))
    async def send(to: str) -> str:
        if "bad" in to:
            raise ValueError(f"no such mailbox: {to!r}")
        return to

    return app, send


@pytest.fixture
def jobs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """A database with three failed jobs, one queued job and one workflow -> the id of the workflow."""
    monkeypatch.chdir(tmp_path)

    async def fill() -> list[str]:
        app, send = made()
        async with app:
            await app.enqueue([send.job(f"bad{number}@example.org") for number in range(3)])
            root = await app.enqueue(flow(*(send.job(f"{number}") for number in range(20))).then(send.job("last")))
            await drain(app)
            await send.enqueue("Jane@example.org")
            return [root.id]

    return asyncio.run(fill())


def said(capsys: pytest.CaptureFixture[str], *words: str, code: int = 0) -> tuple[str, str]:
    assert run([*words, "--url", URL]) == code
    found = capsys.readouterr()
    return found.out, found.err


def test_a_search_prints_how_far_it_read(jobs: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    out, _ = said(capsys, "jobs", "list", "--search", "JANE@", "--json")
    [job] = json.loads(out)
    assert job["args"] == ["Jane@example.org"]
    out, err = said(capsys, "jobs", "list", "--search", "bad1", "--scan", "5")
    assert "next page: --cursor" in err
    assert "(looked at 5 rows, to " in err
    out, _ = said(capsys, "jobs", "list", "--status", "queued", "--json")
    assert len(json.loads(out)) == 1
    out, _ = said(capsys, "jobs", "list", "--since", "1h", "--task", "send", "--json")
    assert len(json.loads(out)) == 25


def test_failures_are_grouped(jobs: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    out, _ = said(capsys, "jobs", "failures")
    assert "ValueError: no such mailbox: <text>" in out
    out, _ = said(capsys, "jobs", "failures", "--json")
    [group] = json.loads(out)
    assert (group["jobs"], group["task"]) == (3, "send")
    _, err = said(capsys, "jobs", "failures", "--scan", "2")
    assert "the newest 2 of 3 failed jobs" in err
    _, err = said(capsys, "jobs", "failures", "--task", "sned")
    assert "no failed jobs" in err
    assert "did you mean 'send'?" in err


def test_workflows_are_listed_and_drawn(jobs: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    out, _ = said(capsys, "jobs", "workflows")
    assert jobs[0] in out
    out, _ = said(capsys, "jobs", "workflows", "--json")
    [found] = json.loads(out)
    assert (found["id"], found["jobs"], found["done"], found["state"]) == (jobs[0], 22, 22, "succeeded")
    assert said(capsys, "jobs", "workflows", "--state", "failed")[1].strip() == "no workflows"
    out, _ = said(capsys, "jobs", "workflow", jobs[0])
    lines = [line.split() for line in out.splitlines()[1:]]
    assert [(line[0], line[1], line[3]) for line in lines] == [
        ("1", "send", "20"),
        ("2", "send", "1"),
        ("3", "(joint)", "1"),
    ]
    out, _ = said(capsys, "jobs", "workflow", jobs[0], "--mermaid")
    assert out.splitlines()[:4] == [
        "flowchart LR",
        '  n1["send x 20<br/>succeeded"]:::succeeded',
        '  n2["send<br/>succeeded"]:::succeeded',
        "  n3(( )):::succeeded",
    ]
    assert "  n1 --> n2" in out
    out, _ = said(capsys, "jobs", "workflow", jobs[0], "--json", "--fold", "100")
    assert len(json.loads(out)["nodes"]) == 22
    assert "unknown" in said(capsys, "jobs", "workflow", "unknown", code=1)[1]
    said(capsys, "jobs", "workflow", jobs[0], "--json", "--mermaid", code=2)


@shows("Operator commands are recorded in the audit log as user@host")
def test_commands_of_operators_are_recorded(jobs: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    said(capsys, "jobs", "retry", "--task", "send", "--search", "bad1", "--yes")
    said(capsys, "jobs", "delete", "--state", "failed", "--yes")
    said(capsys, "queues", "pause", "default")
    said(capsys, "queues", "resume", "default")
    said(capsys, "limits", "set", "api", "--slots", "3")
    said(capsys, "limits", "remove", "api")
    said(capsys, "jobs", "cancel", "unknown", code=1)
    said(capsys, "schedules", "delete", "nightly", code=1)
    out, _ = said(capsys, "storage", "audit", "--json")
    found = list(reversed(json.loads(out)))
    assert [(each["act"], each["target"], each["done"]) for each in found] == [
        ("jobs.retry", "", 1),
        ("jobs.delete", "", 2),
        ("queue.pause", "default", None),
        ("queue.resume", "default", None),
        ("limit.set", "api", None),
        ("limit.delete", "api", None),
        ("jobs.cancel", "", 0),
        ("schedule.delete", "nightly", None),
    ]
    assert {each["from"] for each in found} == {"cli"}
    assert all("@" in each["by"] for each in found)
    assert found[0]["filter"] == "failed jobs of task 'send' with the text 'bad1'"
    assert "nightly" in found[-1]["error"]
    out, err = said(capsys, "storage", "audit", "list", "--limit", "2")
    assert "schedule.delete" in out
    assert "next page: --cursor" in err
    out, _ = said(capsys, "jobs", "list", "--json", "--limit", "1000")
    assert not any(each["task"] == "treadle.audit" for each in json.loads(out))
    said(capsys, "jobs", "delete", found[0]["id"], code=1)


async def test_over_http_the_name_of_the_token_is_recorded(capsys: pytest.CaptureFixture[str]) -> None:
    tokens = tuple(
        Token(name=name, digest=digest(name), scopes=("read", "operate"), queues=queues)
        for name, queues in (("ops", ()), ("bound", ("mail",)))
    )
    url = memory_url(None, Settings(tokens=tokens))

    async def command(token: str, *words: str) -> int:
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("TREADLE_TOKEN", token)
            return await asyncio.to_thread(run, [*words, "--url", url])

    assert await command("ops", "queues", "pause", "a") == 0
    assert await command("bound", "queues", "pause", "mail") == 0
    capsys.readouterr()
    assert await command("ops", "storage", "audit", "list", "--json") == 0
    newest, oldest = json.loads(capsys.readouterr().out)
    assert newest["by"].startswith("bound (")
    assert oldest["by"].startswith("ops (")
    assert {newest["from"], oldest["from"]} == {"cli"}
    assert newest["ended_at"] is not None
    assert oldest["ended_at"] is not None
    assert await command("bound", "storage", "audit", "list") == 0
    assert "no acts are recorded" in capsys.readouterr().err  # they belong to no queue


@pytest.fixture
def order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A database with a durable job that has ended -> its id."""
    monkeypatch.chdir(tmp_path)

    async def fill() -> str:
        app = App(URL)

        @app.task(name="order")
        async def order(number: int) -> int:
            return await current().step("charge", lambda: number)

        async with app:
            job = await order.enqueue(7)
            await drain(app)
            return job.id

    return asyncio.run(fill())


@shows("operators pause and resume a job, run it again from a step and fork it, and each act is recorded")
def test_a_job_is_run_again_forked_paused_and_resumed(order: str, capsys: pytest.CaptureFixture[str]) -> None:
    out, _ = said(capsys, "jobs", "rerun", order, "--from-step", "charge")
    assert out == f"{order} runs again\n"
    assert said(capsys, "jobs", "pause", order)[0] == "paused 1 job\n"
    assert said(capsys, "jobs", "pause", order)[0] == "paused 0 jobs\n"
    why, _ = said(capsys, "jobs", "explain", order)
    assert "It is paused since" in why
    assert f" by {whoami()}: `treadle jobs resume --url {URL} {order}` queues it again" in why
    [listed] = json.loads(said(capsys, "jobs", "list", "--json")[0])
    assert listed["due_at"] is None
    assert listed["paused_at"].startswith("20")
    assert re.search(r"ready +order .* paused .* ago", said(capsys, "jobs", "list")[0])
    shown, _ = said(capsys, "jobs", "show", order)
    assert re.search(r"^paused +20", shown, re.MULTILINE)
    assert not re.search(r"^due ", shown, re.MULTILINE)
    assert said(capsys, "jobs", "resume", order)[0] == "resumed 1 job\n"
    [listed] = json.loads(said(capsys, "jobs", "list", "--json")[0])
    assert listed["paused_at"] is None
    fork = said(capsys, "jobs", "fork", order, "8")[0].strip()
    [job] = json.loads(said(capsys, "jobs", "list", "--search", fork, "--json")[0])
    assert (job["id"], job["args"]) == (fork, [8])
    _, problem = said(capsys, "jobs", "rerun", order, "--from-step", "chrage", code=2)
    assert "has no stored step 'chrage'" in problem
    _, problem = said(capsys, "jobs", "pause", f"{order[:-1]}x", code=1)
    assert "no job" in problem
    entries = json.loads(said(capsys, "storage", "audit", "--json")[0])
    acts = {(entry["act"], entry["error"] is None) for entry in entries}
    assert {("job.rerun", True), ("jobs.pause", True), ("jobs.resume", True), ("job.fork", True)} <= acts


PROGRAM = """
from treadle import App, current

app = App("sqlite:///jobs.db")


@app.task(name="order")
async def order(number: int) -> int:
    here = current()
    receipt = await here.step("STEP", lambda: 10 * number)
    await here.sleep(3600)
    return receipt
"""


@pytest.mark.slow
@shows("`treadle jobs replay --pdb` opens a debugger in the function, where a history ends or at its mismatch")
def test_a_history_is_replayed_in_a_debugger(tmp_path: Path) -> None:
    def command(*words: str, keys: str = "") -> subprocess.CompletedProcess[str]:
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
        line = [sys.executable, "-m", "treadle", *words]
        return subprocess.run(
            line, check=False, cwd=tmp_path, input=keys, capture_output=True, text=True, env=environment
        )

    (tmp_path / "shop.py").write_text(PROGRAM.replace("STEP", "charge"))
    (tmp_path / "next_shop.py").write_text(PROGRAM.replace("STEP", "pay"))
    monkey = "import asyncio, shop; from treadle.testing import drain\nasync def main():\n async with shop.app:\n"
    monkey += "  await shop.order.enqueue(7)\n  await drain(shop.app)\nasyncio.run(main())"
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    subprocess.run([sys.executable, "-c", monkey], cwd=tmp_path, check=True, env=environment)
    (tmp_path / "h.jsonl").write_text(command("jobs", "export", "--url", URL).stdout)
    plain = command("jobs", "replay", "shop:app", "h.jsonl")
    assert (plain.returncode, "2 recorded steps, up to 'sleep:sleep'" in plain.stdout) == (0, True), plain
    stopped = command("jobs", "replay", "shop:app", "h.jsonl", "--pdb", keys="p receipt + 1\nw\nc\n")
    assert "71" in stopped.stdout, stopped
    assert "the history ends at 'sleep:sleep'" in stopped.stderr
    wrong = command("jobs", "replay", "next_shop:app", "h.jsonl", "--pdb", keys="p number\nc\n")
    assert (wrong.returncode, "(Pdb) 7" in wrong.stdout, "began with other code" in wrong.stderr) == (1, True, True)
