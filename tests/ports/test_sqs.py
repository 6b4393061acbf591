"""The queue on SQS: the suite of all queues on a server with its protocol; and as one of three ports of a storage."""

from __future__ import annotations

import asyncio
import itertools
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import boto3
import pytest

from tests.servers import moto, valkey
from tests.waiting import until
from treadle import App, BadOption, Worker, flow
from treadle.blobs import DirectoryBlobs
from treadle.ports import memory_queue
from treadle.ports.large_messages import with_blobs
from treadle.ports.redis import redis_pubsub, redis_store
from treadle.ports.sqs import SqsQueue, sqs_queue
from treadle_testkit.ports.queue import *  # noqa: F403
from treadle_testkit.shows import shows

WHO = {"region_name": "us-east-1", "aws_access_key_id": "key", "aws_secret_access_key": "secret"}

_names = (f"q{os.getpid()}-{n}" for n in itertools.count())


def client() -> Any:
    return boto3.client("sqs", endpoint_url=moto.shared().url, **WHO)


def new_queue(wait: float = 0.0) -> SqsQueue:
    name, sqs = next(_names), client()
    url, dead = (sqs.create_queue(QueueName=f"{name}{kind}")["QueueUrl"] for kind in ("", "-dead"))
    sqs.close()
    return sqs_queue(url, dead=dead, wait=wait, endpoint_url=moto.shared().url, **WHO)


@pytest.fixture
def advance() -> Callable[[float], Any]:
    return asyncio.sleep  # the server has a clock of its own


@pytest.fixture
def make_queue() -> Any:
    return lambda clock: new_queue()


async def test_a_dead_letter_goes_to_the_other_queue_with_its_reason() -> None:
    queue = new_queue()
    await queue.push("half a me")
    [pulled] = await queue.pop(1, 30)
    assert await queue.dead_letter(pulled.handle, "no JSON")
    sqs = client()
    [message] = sqs.receive_message(QueueUrl=queue._dead, MessageAttributeNames=["All"])["Messages"]
    assert (message["Body"], message["MessageAttributes"]["reason"]["StringValue"]) == ("half a me", "no JSON")
    assert await queue.size() == 0
    sqs.close()
    await queue.close()


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        ({"url": "name", "dead": "http://x/d"}, "URL of a queue"),
        ({"url": "http://x/q", "dead": "d"}, "URL of a queue"),
        ({"url": "http://x/q.fifo", "dead": "http://x/d"}, "a standard queue"),
        ({"url": "http://x/q", "dead": "http://x/d", "wait": 21}, "0 to 20"),
    ],
)
def test_an_unsuitable_queue_is_refused(given: dict[str, Any], problem: str) -> None:
    with pytest.raises(BadOption, match=problem):
        sqs_queue(**given)


@shows("an SQS queue and a Redis store run a workflow")
async def test_sqs_with_redis_as_its_users_run_it() -> None:
    queue = new_queue(wait=1)
    ports = (queue, redis_pubsub(valkey.url()), redis_store(valkey.url()))
    app = App(ports=ports, namespace=next(_names))

    @app.task
    async def add(a: int, b: int) -> int:
        return a + b

    @app.task(reduce="sum")
    async def fan(width: int) -> Any:
        return flow(add.job(n, 1) for n in range(width))

    async with app, Worker(app, poll=0.2):
        await queue.push("not a wake-up")
        job = await fan.enqueue(30)
        assert await job.workflow.result(60) == sum(range(1, 31))

        async def empty() -> bool:
            return not await queue.size()

        await until(empty, "an empty queue")


@shows("a body that is too large for SQS is stored as a file and comes back whole")
async def test_a_large_body_is_stored_outside_the_queue(tmp_path: Path) -> None:
    queue = with_blobs(new_queue(), DirectoryBlobs(tmp_path))
    text = "ä" * 300_000
    await queue.push(text)
    await queue.push("small")
    await queue.push("treadle-blob:not really")
    found: list[Any] = []
    async with asyncio.timeout(60):
        while len(found) < 3:
            found += await queue.pop(3, 60)
    assert {one.body for one in found} == {text, "small", "treadle-blob:not really"}
    assert all([await queue.ack(one.handle) for one in found])
    await queue.close()


def empty(folder: Path) -> None:
    for file in folder.glob("*/*"):
        file.unlink()


@shows("a message whose stored body is missing becomes a dead letter with the reason")
async def test_a_missing_body_is_a_dead_letter_with_its_reason(tmp_path: Path) -> None:
    inner = memory_queue()
    queue = with_blobs(inner, DirectoryBlobs(tmp_path), limit=10)
    await queue.push("x" * 100)
    await queue.push("short")
    empty(tmp_path)
    assert [one.body for one in await queue.pop(5, 60)] == ["short"]
    [dead] = inner.dead
    assert "its body" in dead.reason
