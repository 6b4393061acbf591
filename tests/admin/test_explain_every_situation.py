"""`explain` in every situation, on every storage: the sentence is right, and each command in it does what it says.

The situations are made by workers and calls of the contract, under a clock moved by hand.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import re
import shlex
from collections.abc import Awaitable, Callable, Iterator
from contextlib import aclosing
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner

from tests.admin.situations import combined, limited, placed, queued, running, waiting
from tests.admin.situations.stage import Stage
from tests.fixtures import KINDS, a_storage
from tests.kit import Spy
from tests.served import memory_url
from tests.servers import cluster, valkey
from treadle import App
from treadle.cli.root import treadle as cli
from treadle.cli.target import Target
from treadle.ports import Ports, memory_backend
from treadle.storage.composed import ComposedStorage
from treadle.storage.contract import Storage
from treadle.storage.http import HttpStorage
from treadle.storage.redis import RedisStorage, ShardedRedis
from treadle.testing import HandClock
from treadle_testkit.shows import shows

MODULES = (
    queued.situations,
    placed.situations,
    limited.situations,
    waiting.situations,
    running.situations,
    combined.situations,
)
SITUATIONS = {name: made for module in MODULES for name, made in module.all.items()}
QUEUE_LIMITS = {name for module in MODULES for name in module.queue_limits}
MORE = ("shards", "cluster", "ports", "http")  # besides KINDS
ORDERED = {"room_is_kept_for_a_job_that_is_queued_again", "a_costly_job_is_ahead"}  # exact within one shard only
NOT_RUN = {"worker", "storage"}  # they start processes, or need two storages; their words are parsed

# A server records the pauses that arrive by the worker protocol, so there the sentence names the caller.
RECORDED = re.compile(r" \(anybody at [\d.]+ paused it at [^)]* UTC\)")

_names = (f"x{os.getpid()}-{n}" for n in itertools.count())


@pytest.fixture(params=(*KINDS, *(pytest.param(kind, marks=pytest.mark.slow) for kind in MORE)))
def storage(request: pytest.FixtureRequest, tmp_path: Path, clock: HandClock) -> Iterator[Storage]:
    if request.param == "shards":
        yield ShardedRedis(valkey.url(), ns=next(_names), shards=3, now=clock)
    elif request.param == "cluster":
        yield RedisStorage(cluster.shared().url, ns=next(_names), now=clock)
    elif request.param == "ports":
        yield ComposedStorage(Ports(*memory_backend(clock)), now=clock)
    elif request.param == "http":
        yield HttpStorage(memory_url(clock))
    else:
        with a_storage(request.param, tmp_path, clock) as storage:
            yield storage


@pytest.fixture
async def commands(app: App, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], Awaitable[str]]:
    """Run a command line as the user would, on the app of the test."""
    loop = asyncio.get_running_loop()

    def run(target: Target, act: Callable[[App], Any], make: bool = False) -> Any:
        async def on_loop() -> Any:
            return await act(app)

        return asyncio.run_coroutine_threadsafe(on_loop(), loop).result(60)

    monkeypatch.setattr(Target, "run", run)
    monkeypatch.setattr(Target, "app", property(lambda target: app))

    async def invoke(line: str) -> str:
        words = shlex.split(line)[1:]
        if words[0] in NOT_RUN:
            _parse(words)
            return ""
        found = await asyncio.to_thread(CliRunner().invoke, cli, words)
        assert found.exit_code == 0, (line, found.output, found.exception)
        return str(found.stdout)

    return invoke


def _parse(words: list[str]) -> None:
    """Raises if click does not know the command or an option."""
    command = cli.get_command(click.Context(cli), words[0])
    assert command is not None, words
    command.make_context(words[0], words[1:], resilient_parsing=True)


@shows("`explain` is right in every situation of a table, and the commands it names change the situation")
@pytest.mark.parametrize("name", sorted(SITUATIONS))
async def test_explain_is_right_in_each_situation(
    name: str, app: App, spy: Spy, clock: HandClock, commands: Callable[[str], Awaitable[str]], storage: Storage
) -> None:
    if isinstance(storage, ShardedRedis) and name in QUEUE_LIMITS | ORDERED:
        pytest.skip("shards do not limit a queue, and order their jobs each by itself")
    if isinstance(storage, HttpStorage) and name.startswith("a_job_of_the_system_queue"):
        pytest.skip("over HTTP nobody stores Treadle's own jobs")
    stage = Stage(app, spy, clock)
    async with aclosing(SITUATIONS[name](stage)) as sentences:  # type: ignore[type-var]
        last = None
        async for id, sentence in sentences:
            assert RECORDED.sub("", await stage.app.jobs.explain(id)) == sentence
            last = id, sentence
        if last is None:
            return
    id, sentence = last
    lines = re.findall(r"`(treadle [^`]+)`", sentence)
    for line in lines:
        await commands(line)
    if any(line.split()[1] not in NOT_RUN and " explain " not in line for line in lines):
        assert RECORDED.sub("", await app.jobs.explain(id)) != sentence


def test_there_are_many_situations() -> None:
    assert len(SITUATIONS) >= 40
