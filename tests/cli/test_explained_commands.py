"""The commands that `treadle jobs explain` prints work as printed, on the same storage; and hints for wrong ids."""

from __future__ import annotations

import asyncio
import re
import shlex
from pathlib import Path

import pytest

from treadle import App, Limit
from treadle.cli.root import run
from treadle.core.model import Claim, Outcome, Presence, State
from treadle_testkit.shows import shows

FILE = """
from treadle import App, Retry

app = App("sqlite:///jobs.db")

@app.task(name="t", retry=Retry(attempts=1))
async def t(password: str = "") -> None:
    raise ValueError(f"cannot log in with {password}")
"""


def printed(out: str) -> list[list[str]]:
    return [shlex.split(line)[1:] for line in re.findall(r"`(treadle [^`]+)`", out)]


@shows("the commands that `treadle jobs explain` prints act on the storage that was looked at")
def test_commands_work_as_printed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("TREADLE_URL", raising=False)
    (tmp_path / "it's.py").write_text(FILE)

    async def fill() -> None:
        async with App("sqlite:///jobs.db") as app:

            @app.task(name="t")
            async def t() -> None: ...

            await t.options(id="-later", delay=600).enqueue()
            await t.options(id="mail-1", queue="-q").enqueue()
            await app.limits.set(Limit("queue:-q", slots=1))
            await app.queues.pause("-q")

    async def serve() -> None:
        async with App("sqlite:///jobs.db") as app:
            present = Presence(worker="w1", queues=("-q",), tasks=("t",), slots=8, ttl=86_400)
            await app.storage.heartbeat(present, [], 30)

    asyncio.run(fill())
    for named in (["--url", "sqlite:///jobs.db"], ["--app", "it's.py:app"]):
        assert run(["jobs", "explain", *named, "--", "-later"]) == 0
        [line] = printed(capsys.readouterr().out)
        assert line == ["jobs", "run-now", *named, "--", "-later"]
    assert run(line) == 0
    capsys.readouterr()
    assert run(["jobs", "explain", "--url", "sqlite:///jobs.db", "--", "-later"]) == 0
    [line] = printed(capsys.readouterr().out)
    assert line == ["worker", "--url", "sqlite:///jobs.db", "--queues", "default"]
    assert run(["jobs", "explain", "mail-1", "--app", "it's.py:app"]) == 0
    resume, start = printed(capsys.readouterr().out)
    assert start == ["worker", "it's.py:app", "--queues=-q"]
    asyncio.run(serve())
    assert run(["jobs", "explain", "mail-1", "--app", "it's.py:app", "--eta"]) == 0
    assert "treadle queues resume --app" in capsys.readouterr().out.partition("CHANGE")[2], "in the table, too"
    assert run(resume) == 0
    capsys.readouterr()
    assert run(["jobs", "show", "mail-1", "--app", "it's.py:app"]) == 0
    assert "is paused" not in capsys.readouterr().out


@shows("`treadle jobs explain --eta` hides secrets in errors")
def test_an_estimate_hides_secrets(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "jobs.py").write_text(FILE)

    async def fill() -> None:
        async with App("sqlite:///jobs.db") as app:

            @app.task(name="t")
            async def t(password: str) -> None: ...

            job = await t.options(id="j").enqueue(password="hunter2-secret")
            [row] = (await app.storage.claim(Claim(worker="w#1"))).records
            failed = Outcome(
                id=job.id,
                version=row.version,
                state=State.READY,
                attempt=1,
                delay=60,
                error="E: hunter2-secret is wrong",
            )
            await app.storage.settle([failed])

    asyncio.run(fill())
    for more in ([], ["--eta"], ["--json", "--eta"]):
        assert run(["jobs", "explain", "j", "--app", "jobs.py:app", *more]) == 0
        out = capsys.readouterr().out
        assert "attempt 1 failed" in out
        assert "hunter2" not in out


@shows("`treadle jobs explain` suggests an id for one that is typed in part, or wrongly")
def test_explain_suggests_an_id_for_a_partial_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)

    async def fill() -> list[str]:
        async with App("sqlite:///treadle.db") as app:

            @app.task(name="t")
            async def t() -> None: ...

            return [(await t.enqueue()).id, (await t.options(id="invoice-2024-0017").enqueue()).id]

    id, named = asyncio.run(fill())
    for typed, meant in ((id[:8], id), ("invoice-2024-001", named), ("invoice-2042-0017", named)):
        assert run(["jobs", "explain", typed]) == 1
        assert f"did you mean {meant}?" in capsys.readouterr().err
    for typed in ("zzzzzzzz", "in"):
        assert run(["jobs", "show", typed]) == 1
        assert "did you mean" not in capsys.readouterr().err
