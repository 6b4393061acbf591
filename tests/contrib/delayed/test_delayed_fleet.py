"""Delayed jobs on a fleet of processes: a leader, followers, any of them killed; and the options of the commands."""

from __future__ import annotations

import os
import random
import signal
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from tests.server.fleet_kit import HANDLER, answer, booked, command, handled, leader, post
from tests.waiting import until
from treadle.cli import options as cli_options
from treadle.cli.output import Stop
from treadle.cli.root import run as treadle
from treadle.contrib.delayed import options as delivery_options
from treadle.contrib.delayed.ids import id_of
from treadle_testkit.shows import shows

pytestmark = pytest.mark.slow

ROLES = "leader,follower,follower"


def check(folder: Path, sent: list[str]) -> None:
    """All jobs ran, none twice, in due order on each worker, and every worker had some."""
    starts = booked(folder)
    assert Counter(id for _, id, _ in starts) == Counter(id_of(name) for name in sent)
    workers: dict[str, list[float]] = {}
    for worker, _, due in starts:
        workers.setdefault(worker, []).append(due)
    assert len(workers) == 3, {worker: len(jobs) for worker, jobs in workers.items()}
    for due_times in workers.values():
        assert due_times == sorted(due_times)


@shows(
    "one command starts the API, a leader and two followers, and each of them gets its jobs in due order",
    "a fleet runs on after its leader is killed and stops with exit code 0",
)
async def test_a_leader_and_two_followers_run_the_jobs_also_after_the_leader_dies(tmp_path: Path) -> None:
    (tmp_path / "shop.py").write_text(HANDLER)
    words = ("up", "shop.py:app", "--protocol", "delayed", "--roles", ROLES, "--host", "127.0.0.1", "--port", "0")
    async with command(tmp_path, *words, "--quiet") as up:
        url = await up.url()
        await up.says("1 slot", 3)
        # More jobs at once than two workers can do before the third has claimed, at distances greater than the time
        # between a request and its commit.
        sent = await post(url, [2.5 + 0.5 * (number // 10) for number in range(30)])
        await handled(tmp_path, 30)
        check(tmp_path, sent)
        first = await leader(tmp_path, "--app", "shop.py:app")
        assert first["worker"].startswith("leader-1:")
        os.kill(first["pid"], signal.SIGKILL)
        await post(url, [1.5] * 6)
        assert len({id for _, id, _ in await handled(tmp_path, 36)}) == 36
        await leader(tmp_path, "--app", "shop.py:app", but=first["pid"])
        workers = await answer(tmp_path, "queues", "workers", "--app", "shop.py:app")
        assert await up.stop() == 0
    for each in workers:
        with pytest.raises(ProcessLookupError):
            os.kill(each["pid"], 0)


@shows("a follower leads once the leader is gone")
async def test_a_follower_leads_once_the_leader_is_dead(tmp_path: Path) -> None:
    (tmp_path / "shop.py").write_text(HANDLER)
    words = ("worker", "shop.py:app", "--protocol", "delayed")
    async with (
        command(tmp_path, *words, WORKER_ROLE="leader") as first,
        command(tmp_path, *words) as second,  # a follower is the default
    ):
        await first.says("claiming")
        await second.says("claiming")
        gone = await leader(tmp_path, "--app", "shop.py:app")
        first.process.kill()  # kill its supervisor first, which would start another one
        os.kill(gone["pid"], signal.SIGKILL)
        await second.says("leads")
        assert await second.stop() == 0


@shows("three processes run thirty jobs once each, and a killed leader stops the flow for less than six seconds")
@pytest.mark.soak
@pytest.mark.timeout(300)
async def test_thirty_jobs_within_ten_seconds(tmp_path: Path) -> None:
    """The requirement word for word, and how long no job runs after the leader is killed."""
    (tmp_path / "shop.py").write_text(HANDLER)
    words = ("up", "shop.py:app", "--protocol", "delayed", "--roles", ROLES, "--host", "127.0.0.1", "--port", "0")
    async with command(tmp_path, *words, "--quiet") as up:
        url = await up.url()
        await up.says("1 slot", 3)
        sent = await post(url, [random.randint(2, 11) for _ in range(30)])
        await handled(tmp_path, 30)
        check(tmp_path, sent)
        found = await leader(tmp_path, "--app", "shop.py:app")
        more = await post(url, [2 + 0.25 * number for number in range(60)])
        await handled(tmp_path, 40)
        os.kill(found["pid"], signal.SIGKILL)
        killed, number, longest = time.monotonic(), len(booked(tmp_path)), 0.0
        while number < 88:  # all but the jobs that the leader may have claimed
            await handled(tmp_path, number + 1)
            now = time.monotonic()
            longest, killed, number = max(longest, now - killed), now, len(booked(tmp_path))
        print(f"the longest pause of the flow after the leader was killed: {longest:.2f} s")
        assert longest < 6
        await leader(tmp_path, "--app", "shop.py:app", but=found["pid"])
        wanted = {id_of(name) for name in sent + more}
        await until(lambda: {id for _, id, _ in booked(tmp_path)} == wanted, "a start of each job", 90)


@shows("`REDIS_HOST`, `REDIS_PORT` and `REDIS_DB` name the storage")
@pytest.mark.parametrize(
    ("environment", "url"),
    [
        ({}, None),
        ({"REDIS_HOST": ""}, None),
        ({"REDIS_HOST": "cache"}, "redis://cache:6379/0"),
        ({"REDIS_PORT": "6380", "REDIS_DB": "3"}, "redis://localhost:6380/3"),
        ({"REDIS_HOST": "::1"}, "redis://[::1]:6379/0"),
    ],
)
def test_the_environment_names_the_redis_server(environment: dict[str, str], url: str | None) -> None:
    assert delivery_options.redis_url(environment) == url


@shows("options win over `API_HOST`, `API_PORT` and `WORKER_ROLE`, and a wrong value ends the command")
def test_options_take_precedence_over_the_environment_and_wrong_values_are_named() -> None:
    options: dict[str, Any] = {"host": None, "port": None}
    delivery_options.listening(options, {"API_HOST": "1.2.3.4", "API_PORT": "99"})
    assert options == {"host": "1.2.3.4", "port": 99}
    options = {"host": "5.6.7.8", "port": 7}
    delivery_options.listening(options, {"API_HOST": "1.2.3.4", "API_PORT": "99"})
    assert options == {"host": "5.6.7.8", "port": 7}
    assert delivery_options.role(None, {}) == "follower"
    assert delivery_options.role(None, {"WORKER_ROLE": "leader"}) == "leader"
    assert delivery_options.role("auto", {"WORKER_ROLE": "leader"}) == "auto"
    for wrong in (
        lambda: delivery_options.role(None, {"WORKER_ROLE": "boss"}),
        lambda: delivery_options.redis_url({"REDIS_PORT": "x"}),
        lambda: delivery_options.listening({"host": None, "port": None}, {"API_PORT": "70000"}),
        lambda: cli_options.roles("leader,boss"),
        lambda: cli_options.roles(" , "),
    ):
        with pytest.raises(Stop):
            wrong()


@shows(
    "`submit-jobs` takes its settings from `JOB_COUNT` and `TIME_OFFSET_SEC` and reports how late the jobs were",
    "`TREADLE_URL` wins over `REDIS_HOST`",
)
async def test_the_environment_of_the_protocol_is_all_it_needs(tmp_path: Path) -> None:
    names = {"API_HOST": "127.0.0.1", "API_PORT": "0", "REDIS_HOST": "nowhere.invalid"}
    async with command(
        tmp_path, "up", "--protocol", "delayed", "--roles", "leader", **names, TREADLE_URL="sqlite:///own.db"
    ) as up:  # Treadle's variable wins, so the other Redis is not used
        url = await up.url()
        await up.says("1 slot")
        found = await answer(tmp_path, "delayed", "submit", API_ENDPOINT=url, JOB_COUNT="5", TIME_OFFSET_SEC="1.5")
        assert (found["jobs"], found["completed"]) == (5, 5)
        assert 0 <= found["late_p50"] <= found["late_p99"] <= found["late_max"]
    assert (tmp_path / "own.db").exists()


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["up"], "name one: bare:app or full:app"),
        (["up", "--protocol", "delayed", "--roles", "boss"], "boss"),
        (["up", "--protocol", "queuey", "--roles", "auto"], "--roles"),
        (["up", "full.py:app", "--webhook", "http://x"], "--protocol delayed"),
        (["up", "--protocol", "delayed", "--roles", "auto", "--url", "memory://"], "memory"),
        (["up", "--protocol", "delayed", "--webhook", "http://x", "--command", "true"], "not both"),
        (["up", "--protocol", "delayed", "--webhook", "x"], "webhook"),
        (["up", "--protocol", "delayed", "--command", "no-such-program-at-all"], "on the PATH"),
        (["up", "--protocol", "delayed", "--command", "'"], "cannot be read"),
        (["up", "--protocol", "delayed", "--header", "A: b"], "--webhook"),
        (["up", "--protocol", "delayed", "--webhook", "http://x", "--header", "A"], "Name: value"),
        (["worker"], "name one: bare:app or full:app"),
        (["worker", "--url", "memory://"], "name an app"),
        (["worker", "bare.py:app", "--protocol", "delayed"], "delayed_handler"),
        (["worker", "full.py:app", "--protocol", "delayed", "--command", "true"], "delayed_handler"),
        (["delayed", "submit", "--endpoint", "ftp://x"], "endpoint"),
        (["delayed", "submit", "--offset", "0.5"], "1 second"),
    ],
)
def test_options_that_do_not_fit_together_are_refused(
    words: list[str], says: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    bare = 'from treadle import App\napp = App("memory://")\n'
    (tmp_path / "bare.py").write_text(bare)
    (tmp_path / "full.py").write_text(bare + "@app.delayed_handler\nasync def handle(payload): ...\n")
    assert treadle(words) == 2
    assert says in capfd.readouterr().err


def test_an_endpoint_without_a_server_is_an_error(capsys: pytest.CaptureFixture[str]) -> None:
    assert treadle(["delayed", "submit", "--endpoint", "http://127.0.0.1:9", "--patience", "0.2"]) == 3
    assert "does not answer" in capsys.readouterr().err
