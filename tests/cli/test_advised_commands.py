"""Every command that a message advises is safe to paste into a shell, whatever the senders of jobs chose as names."""

from __future__ import annotations

import asyncio
import re
import subprocess
from pathlib import Path

import pytest

from treadle import App, Limit, Worker
from treadle.cli.root import run
from treadle.core.command_lines import command
from treadle_testkit.shows import shows

NAMES = (
    "$(touch${IFS}ran1)",
    "';touch ran2;'",
    "`touch ran3`",
    "a;touch ran4",
    "--all",
    "-h",
    "a&&touch ran5",
    '"$(touch ran6)"',
    "a>ran7",
    "a|touch ran8",
    "~+",
    "*",
    "\\';touch ran9;\\'",
)
ADVICE = re.compile(r"`(treadle(?: (?:[^'`\n]|'[^'\n]*')*)?)`")
STUB = '#!/bin/sh\nprintf "%s\\n" "$@" > said\n'
APP = """
from treadle import App

app = App("sqlite:///jobs.db")


@app.task(name="t")
async def t() -> None: ...
"""


async def fill(url: str) -> str:
    """Store jobs, limits and schedules with hostile names. Return what the errors of the app advise."""
    app, errors = App(url), list[str]()

    @app.task(name="t")
    async def t() -> None: ...

    app.every(600, name="-tick")(t)
    for name in NAMES:
        app.limits.declare(Limit(f"{name} declared", slots=1))
    async with app, Worker(app, queues=["none"]):
        for name in NAMES:
            job = await t.options(id=f"-j{len(errors)}", queue=name, limits=[name]).enqueue()
            await app.stub("unknown", queue=f"{name} open").enqueue()
            await app.queues.pause(name)
            await app.queues.pause(f"{name} unused")
            await app.limits.set(Limit(name, slots=0))
            with pytest.raises(TimeoutError) as caught:
                await job.result(0)
            errors.append(str(caught.value))
    return "\n".join(errors)


@shows("a command that a message advises does nothing else when it is pasted into a shell")
def test_advice_is_safe_to_paste(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TREADLE_URL", "sqlite:///jobs.db")
    (tmp_path / "later.py").write_text(APP)
    texts = asyncio.run(fill("sqlite:///jobs.db"))
    commands = [["doctor"], ["limits"], ["queues"], ["storage", "check", "later:app"]]
    for number, name in enumerate(NAMES):
        commands += [
            ["jobs", "explain", "--", f"-j{number}"],
            ["queues", "pause", "--", f"{name} x"],
            ["limits", "pause", "--", f"{name} x"],
            ["limits", "set", "--slots", "2", "--", f"{name} x"],
            ["limits", "set", "--", f"{name} x"],
            ["limits", "remove", "--", f"{name} declared"],
            ["enqueue", f"--id=-k{number}", "--wait", "0", "t"],
        ]
    for words in commands:
        run(words)
        captured = capsys.readouterr()
        texts += captured.out + captured.err
    advised = sorted(set(ADVICE.findall(texts)))
    kinds = {tuple(words.split()[1:3]) for words in advised}
    assert kinds >= {
        ("jobs", "explain"),
        ("limits", "remove"),
        ("limits", "resume"),
        ("limits", "set"),
        ("queues", "resume"),
        ("schedules", "delete"),
        ("worker", "module:app"),
    }
    shell = tmp_path / "shell"
    (shell / "bin").mkdir(parents=True)
    (shell / "bin" / "treadle").write_text(STUB)
    (shell / "bin" / "treadle").chmod(0o755)
    given = list[str]()
    for words in advised:
        subprocess.run(
            ["bash", "-c", words], cwd=shell, env={"PATH": f"{shell}/bin:/usr/bin:/bin"}, check=True, timeout=30
        )
        given += (shell / "said").read_text().splitlines()
        assert sorted(each.name for each in shell.iterdir()) == ["bin", "said"], words
    assert set(NAMES) <= set(given), "each name arrives as one argument"


def test_a_name_that_is_an_option_stays_a_name() -> None:
    assert command("jobs", "show", "--all") == "`treadle jobs show -- --all`"
    assert command("token", "NAME", options=["--file", "my tokens"]) == "`treadle token NAME --file 'my tokens'`"
