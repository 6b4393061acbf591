"""Credentials for S3: from the environment, otherwise from botocore's chain, renewed when they expire."""

from __future__ import annotations

import builtins
import json
import sys
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from treadle import App
from treadle.blobs.credentials import Chain, source_of
from treadle.blobs.signing import Credentials
from treadle.errors import BadUrl, StorageUnavailable
from treadle_testkit.shows import shows


@pytest.fixture(autouse=True)
def empty(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A machine without any credentials, and without the metadata of a cloud."""
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "credentials"))
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "config"))


async def test_the_environment_comes_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "key")
    with pytest.raises(BadUrl, match="AWS_SECRET_ACCESS_KEY"):
        source_of()
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    assert await source_of().current() == Credentials("key", "secret")


@shows("Blobs in a bucket use the credentials of a profile or a program, and renew those that expire")
async def test_credentials_of_a_profile_are_renewed_when_they_expire(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    soon = (datetime.now(UTC) + timedelta(seconds=30)).isoformat()
    text = {"Version": 1, "AccessKeyId": "K", "SecretAccessKey": "s", "SessionToken": "t", "Expiration": soon}
    program = tmp_path / "program.py"
    counted = tmp_path / "counted"
    program.write_text(
        f"import json, pathlib\np = pathlib.Path({str(counted)!r})\n"
        "n = len(p.read_text()) + 1 if p.exists() else 1\np.write_text('x' * n)\n"
        f"print(json.dumps({{**json.loads({json.dumps(text)!r}), 'AccessKeyId': f'K{{n}}'}}))\n"
    )
    (tmp_path / "config").write_text(f"[profile mine]\ncredential_process = {sys.executable} {program}\n")
    monkeypatch.setenv("AWS_PROFILE", "mine")
    source = source_of()
    first, second = await source.current(), await source.current()
    assert (first.secret, first.token) == ("s", "t")
    assert first.key.startswith("K")
    assert second.key > first.key  # they expire within ten minutes, so each use renews them


async def test_an_app_without_credentials_for_its_bucket_is_refused() -> None:
    with pytest.raises(BadUrl, match="AWS_PROFILE"):
        App("memory://", blobs="s3://bucket")


async def test_a_missing_profile_is_refused_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_PROFILE", "nobody")
    with pytest.raises(BadUrl, match="nobody"):
        source_of()


async def test_credentials_are_found_without_botocore(monkeypatch: pytest.MonkeyPatch) -> None:
    real = builtins.__import__

    def imports(
        name: str, space: Any = None, local: Any = None, names: Sequence[str] | None = (), level: int = 0
    ) -> Any:
        if name.startswith("botocore"):
            raise ImportError(name)
        return real(name, space, local, names or (), level)

    monkeypatch.setattr(builtins, "__import__", imports)
    with pytest.raises(BadUrl, match="pip install botocore"):
        source_of()


async def test_a_renewal_that_fails_is_an_outage() -> None:
    class Broken:
        def get_frozen_credentials(self) -> Any:
            raise OSError("no route")

    with pytest.raises(StorageUnavailable, match="no route"):
        await Chain(Broken()).current()
