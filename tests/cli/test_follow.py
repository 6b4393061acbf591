"""`treadle jobs follow`: streams and log lines of a job, while it runs and afterwards."""

from __future__ import annotations

import asyncio
import json
import logging
import signal
from pathlib import Path

import pytest

from tests.cli.tools import Command
from tests.kit import work
from tests.waiting import Signal, until
from treadle import App, Job, Retry, current
from treadle.cli.root import run
from treadle_testkit.shows import shows

log = logging.getLogger("shop")


class Speech:
    """A job that speaks: it fails after its first words once, and waits for the test before its last one."""

    def __init__(self, url: str) -> None:
        self.app, self.moved, self.may_end, self.tries = App(url), Signal(), False, 0

        @self.app.task(name="speak", retry=Retry(attempts=2, base=0.0))
        async def speak() -> str:
            return await current().step("say", self.say)

        @self.app.task(name="greet")
        async def greet() -> None:
            log.warning("hello %s", "ada")

        @self.app.task(name="both")
        async def both() -> None:
            log.warning("hello")
            await current().stream("words").write("hello")

        self.speak, self.greet, self.both = speak, greet, both

    async def say(self) -> str:
        out, self.tries = current().stream("words"), self.tries + 1
        await out.write("one ")
        if self.tries == 1:
            raise ValueError("no")
        await out.write("two")
        await self.moved.until(lambda: self.may_end, "the test lets it end")
        await out.write({"n": 3, "token": "secret"})
        return "done"

    def end(self) -> None:
        self.may_end = True
        self.moved.send()


@pytest.fixture
def speech(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Speech:
    monkeypatch.chdir(tmp_path)
    log.setLevel(logging.INFO)
    return Speech("sqlite:///treadle.db")


@shows("`treadle jobs follow` prints a stream while the job runs, and says which text is void")
async def test_a_stream_is_printed_while_it_is_written(speech: Speech, tmp_path: Path) -> None:
    async with speech.app, work(speech.app):
        job = await speech.speak.enqueue()
        await until(lambda: speech.tries == 2, "the second try")
        with Command("jobs", "follow", job.id, cwd=tmp_path) as command:
            await asyncio.to_thread(command.wait_for, "[step 'say' runs again: 1 chunk above is void]")
            speech.end()
            assert await asyncio.to_thread(command.ended) == 0
    assert command.said[-1] == f"job {job.id} succeeded"
    assert "".join(command.data) == 'one \none two\n{"n":3,"token":"***"}\n'


@pytest.mark.skipif(signal.getsignal(signal.SIGINT) is signal.SIG_IGN, reason="its background job ignores Ctrl-C")
@shows("Ctrl-C ends `treadle jobs follow` quietly")
async def test_ctrl_c_ends_it_quietly(speech: Speech, tmp_path: Path) -> None:
    async with speech.app, work(speech.app):
        job = await speech.speak.enqueue()
        with Command("jobs", "follow", job.id, "words", cwd=tmp_path) as command:
            await asyncio.to_thread(command.wait_for, "runs again")
            command.process.send_signal(signal.SIGINT)
            assert await asyncio.to_thread(command.ended) == 0
        speech.end()
        await job.ended(30)
    assert command.said[1:] == []


async def test_json_has_a_line_for_each_entry(speech: Speech, capsys: pytest.CaptureFixture[str]) -> None:
    speech.end()
    async with speech.app, work(speech.app, capture_logs="info"):
        job = await speech.speak.enqueue()
        await job.ended(30)
    code, out, _ = await called(capsys, "jobs", "follow", job.id, "--json", "--from", "1")
    lines = [json.loads(line) for line in out.splitlines()]
    assert (code, lines) == (
        0,
        [
            {"offset": 1, "step": "say", "to": 0},
            {"offset": 2, "step": "say", "value": "one "},
            {"offset": 3, "step": "say", "value": "two"},
            {"offset": 4, "step": "say", "value": {"n": 3, "token": "***"}},
        ],
    )
    assert (await called(capsys, "jobs", "follow", job.id, "--reveal"))[1].endswith('{"n":3,"token":"secret"}\n')


@shows("`treadle jobs follow` prints the log of a job that has no other stream")
async def test_the_log_is_the_stream_of_a_job_without_another(
    speech: Speech, capsys: pytest.CaptureFixture[str]
) -> None:
    async with speech.app, work(speech.app, capture_logs="info"):
        job = await speech.greet.enqueue()
        await job.ended(30)
    code, out, err = await called(capsys, "jobs", "follow", job.id)
    assert (code, err) == (0, f"job {job.id} succeeded\n")
    assert out.endswith(" warning shop: hello ada\n")
    _, shown, _ = await called(capsys, "jobs", "show", job.id)
    assert f"log, see `treadle jobs follow --url sqlite:///treadle.db {job.id} NAME`" in shown
    _, shown, _ = await called(capsys, "jobs", "show", job.id, "--json")
    assert json.loads(shown)["streams"] == ["log"]


async def test_a_stream_that_cannot_be_followed(speech: Speech, capsys: pytest.CaptureFixture[str]) -> None:
    speech.end()
    async with speech.app, work(speech.app, capture_logs="info"):
        job: Job[str] = await speech.speak.enqueue()
        await job.ended(30)
    code, _, err = await called(capsys, "jobs", "follow", job.id, "other")
    assert (code, err) == (1, f"treadle: job {job.id} has ended without a stream 'other'; it has words\n")
    assert (await called(capsys, "jobs", "follow", "none"))[0] == 1
    async with speech.app, work(speech.app, capture_logs="info"):
        both = await speech.both.enqueue()
        await both.ended(30)
    code, _, err = await called(capsys, "jobs", "follow", both.id)
    assert (code, err) == (2, f"treadle: job {both.id} has several streams, name one of them: words, log\n")


async def called(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str, str]:
    code = await asyncio.to_thread(run, [*words, "--url", "sqlite:///treadle.db"])
    found = capsys.readouterr()
    return code, found.out, found.err
