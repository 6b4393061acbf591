"""Control characters of a sender never reach a terminal and never begin a line of a log."""

from __future__ import annotations

import asyncio
import logging
import sys
import time
from pathlib import Path

import pytest

from treadle import App, JobFailed, Retry, Worker, current
from treadle.cli.output import complain, data, document, facts, note, table, verdict
from treadle.cli.root import run
from treadle.worker.logs import Json, Plain, Simple
from treadle_testkit.shows import shows

HOSTILE = "a\x1b]0;owned\x07\x1b[2J\x9b31m\u202e\r\nFAKE LINE"


def harmless(text: str) -> None:
    assert not {"\x1b", "\x07", "\x9b", "\r", "\u202e"} & set(text), ascii(text)


async def test_texts_of_a_job_are_shown_escaped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    url = "sqlite:///jobs.db"
    app = App(url)

    @app.task(name="fail", retry=Retry(attempts=1))
    async def fail(text: str) -> None:
        await current().progress(0.5, text)
        raise ValueError(text)

    async with app, Worker(app, poll=0.01):
        job = await fail.enqueue(HOSTILE)
        with pytest.raises(JobFailed):
            await job.result(30)
    id = job.id
    for words in (["jobs", "list"], ["jobs", "show", id], ["jobs", "show", id, "--json"], ["jobs", "explain", id]):
        assert await asyncio.to_thread(run, [*words, "--url", url]) == 0
        found = capsys.readouterr()
        harmless(found.out + found.err)
        if words[1] == "show":
            assert "u001b" in found.out or "x1b]0;owned" in found.out


def test_every_output_to_a_terminal_is_escaped(capsys: pytest.CaptureFixture[str]) -> None:
    complain(HOSTILE)
    note(HOSTILE)
    data(HOSTILE)
    document({"a": HOSTILE})
    facts([("a", HOSTILE)])
    table(("a",), [(HOSTILE,)], "")
    verdict("ok", "a", HOSTILE, HOSTILE)
    found = capsys.readouterr()
    harmless(found.out + found.err)
    assert (found.out + found.err).count("\\x1b]0;owned") == 7


def test_a_line_of_a_log_stays_one_line() -> None:
    def record(name: str) -> logging.LogRecord:
        made = logging.LogRecord(name, logging.INFO, "", 0, "%s", (HOSTILE,), None)
        made.__dict__.update(job=HOSTILE, task="t", attempt=1)
        return made

    for formatter in (Simple("%(levelname)s %(message)s"), Plain(), Json()):
        ours, theirs = formatter.format(record("treadle.access")), formatter.format(record("shop"))
        harmless(ours + theirs)
        assert "\n" not in ours
    assert "\n    FAKE LINE" in Plain().format(record("shop"))  # a message of the user's own code may have several


@pytest.mark.parametrize("formatter", [Simple("%(asctime)s %(levelname)s"), Plain()])
def test_every_line_of_a_log_has_the_same_clock(formatter: logging.Formatter, monkeypatch: pytest.MonkeyPatch) -> None:
    """Django sets the zone of a process that imports a project, and the supervisor imports none."""
    found = logging.LogRecord("treadle", 20, "", 0, "claiming jobs", (), None)
    found.created, lines = 1_700_000_000.5, []
    with monkeypatch.context() as patch:
        for name in ("UTC", "Asia/Tokyo", "America/Chicago"):
            patch.setenv("TZ", name)
            time.tzset()
            lines.append(formatter.format(found).partition(" INFO")[0])
    time.tzset()
    assert lines == ["2023-11-14 22:13:20Z"] * 3


@shows("no text of a job begins a line of a log")
@pytest.mark.parametrize("formatter", [Simple("%(asctime)s %(levelname)s %(name)s: %(message)s"), Plain()])
def test_only_a_record_begins_a_line_of_a_log(formatter: logging.Formatter) -> None:
    try:
        raise ValueError(HOSTILE)
    except ValueError:
        found = logging.LogRecord("shop", 40, "", 0, f"%s{HOSTILE}", (HOSTILE,), sys.exc_info(), sinfo=HOSTILE)
    logging.Formatter().format(found)  # another handler keeps its text of the traceback in the record
    others = formatter.format(found).splitlines()[1:]
    assert "FAKE LINE" in "".join(others)
    assert all(line.startswith("    ") for line in others)
