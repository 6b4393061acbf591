"""Faults of a bucket over HTTP: each one releases the jobs whose texts it has, and none of them fails."""

from __future__ import annotations

import asyncio
import io
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Protocol, TypeVar

import pytest

from tests.payloads.faulty_bucket import FAULTS, RETRIED, WHO, FaultyBucket, xml
from treadle import App, JobFailed, StorageError, StorageUnavailable, Worker
from treadle.blobs.bucket import Bucket, read_url
from treadle.blobs.objects import digest_of
from treadle.blobs.s3_objects import BucketObjects
from treadle.storage.memory import MemoryStorage
from treadle_testkit.shows import shows

LARGE = "x" * 5_000
LOGIN = "a gateway that asks for a login"
REFUSED = sorted(FAULTS.keys() - set(RETRIED))


@pytest.fixture
async def bucket(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[FaultyBucket]:
    monkeypatch.setattr("treadle.blobs.bucket.FIRST_PAUSE", 0.001)
    async with FaultyBucket().serving() as served:
        yield served


class Closes(Protocol):
    async def close(self) -> None: ...


C = TypeVar("C", bound=Closes)


@asynccontextmanager
async def closing(what: C) -> AsyncIterator[C]:
    try:
        yield what
    finally:
        await what.close()


def app_of(bucket: FaultyBucket) -> App:
    objects = BucketObjects.at(bucket.url, WHO)
    return App(storage=MemoryStorage(), blobs=objects, offload=2_000, random=lambda: 0.0)


@shows("While a bucket answers anything but NoSuchKey, a job whose text it has waits, without a counted attempt")
@pytest.mark.parametrize("fault", FAULTS)
async def test_a_claimed_job_waits_while_its_bucket_fails(bucket: FaultyBucket, fault: str) -> None:
    async with app_of(bucket) as app:

        @app.task(name="echo")
        async def echo(text: str) -> int:
            return len(text)

        job, small = await echo.enqueue(LARGE), await echo.enqueue("x")
        deferred = asyncio.Event()
        app.on("deferred")(lambda event: deferred.set())
        bucket.fail(FAULTS[fault])
        async with Worker(app):
            await deferred.wait()
            assert await small.result(10) == 1
            bucket.fail(b"")
            assert await app.jobs.run_now(job)  # it would wait for five seconds
            assert await job.result(20) == 5_000
        assert (await app.jobs.get(job)).attempt == 1


async def test_a_bucket_that_does_not_answer(bucket: FaultyBucket, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("treadle.blobs.s3_objects.LONGEST", 0.05)
    async with closing(BucketObjects.at(bucket.url, WHO)) as held:
        bucket.silent = True
        with pytest.raises(StorageUnavailable, match="no complete response"):
            await held.get("a")


async def test_a_text_that_the_bucket_does_not_have_fails_its_job(bucket: FaultyBucket) -> None:
    async with app_of(bucket) as app:

        @app.task(name="echo")
        async def echo(text: str) -> int:
            return len(text)

        job = await echo.enqueue(LARGE)
        bucket.objects.clear()
        async with Worker(app):
            with pytest.raises(JobFailed, match="are not in this app's blob store"):
                await job.result(10)


@pytest.mark.parametrize("fault", RETRIED)
async def test_one_transient_fault_is_retried_in_the_same_call(bucket: FaultyBucket, fault: str) -> None:
    async with closing(BucketObjects.at(bucket.url, WHO)) as held:
        await held.put("a", b"text")
        bucket.fail(FAULTS[fault], times=1)
        assert await held.get("a") == b"text"
        assert [each.split()[0] for each in bucket.requests] == ["PUT", "GET", "GET"]


CALLS: dict[str, Callable[[Bucket], Awaitable[object]]] = {
    "fetch": lambda bucket: bucket.fetch("a", io.BytesIO()),
    "head": lambda bucket: bucket.head("a"),
    "put": lambda bucket: bucket.put("a", io.BytesIO(b"text"), 4, digest_of(b"text")),
    "copy": lambda bucket: bucket.copy("a", "b", '"etag"'),
    "delete": lambda bucket: bucket.delete("a"),
    "list": lambda bucket: bucket.list("", 10),
}


@pytest.mark.parametrize("fault", [each for each in REFUSED if each != LOGIN])
@pytest.mark.parametrize("call", CALLS)
async def test_no_call_takes_a_refusal_for_a_missing_object(bucket: FaultyBucket, call: str, fault: str) -> None:
    async with closing(Bucket(*read_url(bucket.url, WHO))) as held:
        bucket.fail(FAULTS[fault])
        with pytest.raises(StorageError):
            await CALLS[call](held)


async def test_missing_objects_are_no_refusals(bucket: FaultyBucket) -> None:
    async with closing(Bucket(*read_url(bucket.url, WHO))) as held:
        assert await held.head("a") is None
        bucket.fail(xml("404 Not Found", "NoSuchKey", " " * 5_000))
        assert await held.fetch("a", io.BytesIO()) is None
        assert await held.copy("a", "b", "e") is False
        await held.delete("a")  # some services answer 404 here


async def test_an_object_that_is_stored_between_two_requests_is_found(bucket: FaultyBucket) -> None:
    async with closing(Bucket(*read_url(bucket.url, WHO))) as held:
        await held.put("a", io.BytesIO(b"text"), 4, digest_of(b"text"))
        bucket.fail(xml("404 Not Found", "NoSuchKey"), times=1)
        found = await held.head("a")
        assert found is not None
        assert found.size == 4


@pytest.mark.parametrize("fault", ["another region", "a signature for another region"])
async def test_a_bucket_of_another_region_is_named(bucket: FaultyBucket, fault: str) -> None:
    async with closing(BucketObjects.at(bucket.url, WHO)) as held:
        bucket.fail(FAULTS[fault])
        with pytest.raises(StorageError, match="add region=eu-9 to its URL"):
            await held.get("a")
