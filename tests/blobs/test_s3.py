"""Blobs in S3-compatible storage, against a server of that protocol in this process."""

from __future__ import annotations

import io
import os
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from botocore.auth import S3SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials as TheirCredentials

from tests.blobs.free import free_port
from tests.blobs.moto import WHO, Store, endpoint
from treadle.blobs import S3Blobs
from treadle.blobs.bucket import BucketAddress, read_url
from treadle.blobs.signing import NOTHING, Credentials, sign
from treadle.errors import BadUrl, StorageError, StorageUnavailable
from treadle_testkit.blobs import *  # noqa: F403
from treadle_testkit.shows import shows

__all__ = ["endpoint"]


@pytest.fixture
def shelf(endpoint: str) -> Store:
    return Store(endpoint)


async def content() -> AsyncIterator[bytes]:
    yield b"x"


async def test_a_missing_bucket_raises_at_once(shelf: Store) -> None:
    blobs = S3Blobs.at(f"s3://no-such-bucket?endpoint={shelf.place.endpoint}", environment=WHO)
    with pytest.raises(StorageError, match="NoSuchBucket"):
        await blobs.put(content())
    await blobs.close()


async def test_an_unreachable_bucket_raises_after_some_tries(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("treadle.blobs.bucket.FIRST_PAUSE", 0.001)
    blobs = S3Blobs.at(f"s3://bucket?endpoint=http://127.0.0.1:{free_port()}", environment=WHO)
    with pytest.raises(StorageUnavailable, match="s3://bucket/"):
        await blobs.put(content())
    with pytest.raises(StorageUnavailable):
        await blobs.size("0" * 64)
    await blobs.close()


def test_a_bucket_url_names_endpoint_prefix_and_region() -> None:
    place, who = read_url("s3://bucket/a/b/", {**WHO, "AWS_REGION": "eu-1", "AWS_SESSION_TOKEN": "t"})
    assert place == BucketAddress(
        endpoint="https://s3.eu-1.amazonaws.com", bucket="bucket", prefix="a/b/", region="eu-1", by_path=False
    )
    assert who == Credentials("key", "secret", "t")
    place, _ = read_url("s3://bucket?endpoint=http://h:9000/&region=x", WHO)
    assert (place.endpoint, place.prefix, place.region, place.by_path) == ("http://h:9000", "", "x", True)
    for wrong in ("s3://", "s3://B", "s3://bucket?x=1", "s3://bucket?endpoint=h:9000", "http://bucket"):
        with pytest.raises(BadUrl):
            read_url(wrong, WHO)
    with pytest.raises(BadUrl, match="AWS_ACCESS_KEY_ID"):
        read_url("s3://bucket", {})


@pytest.mark.parametrize("token", [None, "a token/with+signs="])
@pytest.mark.parametrize(
    ("method", "path", "headers", "digest"),
    [
        ("GET", "/bucket/some/place/ab/abc", {}, NOTHING),
        ("PUT", "/bucket/a%20b/%C3%A4~", {"content-length": "3", "content-type": "a/b"}, "0" * 64),
        ("PUT", "/b/q", {"x-amz-copy-source": "/b/%20x", "x-amz-copy-source-if-match": '"e  t"'}, NOTHING),
        ("DELETE", "/b/q", {"if-match": '"etag"'}, NOTHING),
    ],
)
def test_signatures_are_those_of_the_vendors_own_client(
    monkeypatch: pytest.MonkeyPatch, method: str, path: str, headers: dict[str, str], digest: str, token: str | None
) -> None:
    mine = sign(method, "h.example:9000", path, {}, headers, digest, Credentials("k", "s", token), "eu-1", 1.7e9)
    request: Any = AWSRequest(method, f"https://h.example:9000{path}", headers=dict(headers))
    request.headers["X-Amz-Content-SHA256"] = digest
    request.context.update(timestamp="20231114T221320Z", payload_signing_enabled=True)
    auth = S3SigV4Auth(TheirCredentials("k", "s", token), "s3", "eu-1")
    monkeypatch.setattr(auth, "payload", lambda _: digest)
    moment = datetime(2023, 11, 14, 22, 13, 20, tzinfo=UTC)
    monkeypatch.setattr("botocore.auth.get_current_datetime", lambda *_, **__: moment)
    auth.add_auth(request)
    assert mine["authorization"] == request.headers["Authorization"]


@pytest.mark.slow
@shows("a server bounds and verifies the blobs that it keeps in a bucket")
async def test_a_server_verifies_the_blobs_of_its_bucket(shelf: Store, tmp_path: Path) -> None:
    import aiohttp

    from tests.served import memory_url
    from treadle.contrib.queuey.blobs import blob_routes

    blobs = shelf.make(2_000_000)
    url, sent = memory_url(None, protocols=[blob_routes(blobs)]), os.urandom(1_500_000)
    async with aiohttp.ClientSession() as session:
        async with session.put(f"{url}/blob", data=io.BytesIO(sent)) as answer:
            assert answer.status == 201
            address = await answer.text()
        async with session.get(f"{url}/blob/{address}") as answer:
            assert (answer.status, await answer.read()) == (200, sent)
        async with session.put(f"{url}/blob", data=io.BytesIO(sent + sent)) as answer:
            assert answer.status == 413
        await shelf.spoil(address, sent[:-1] + b"\0")
        for status in (500, 404):
            async with session.get(f"{url}/blob/{address}") as answer:
                assert answer.status == status
    from tests.served import host

    host().run(blobs.close())
