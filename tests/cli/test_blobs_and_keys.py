"""`treadle storage blobs` and `keys`: what operators learn about texts in a blob store and about keys."""

from __future__ import annotations

import asyncio
import json
import os
from pathlib import Path

import pytest

from tests.served import host
from treadle import App, Keys
from treadle.blobs.objects import FolderObjects, digest_of
from treadle.cli.root import run
from treadle.core.clock import wall
from treadle.server import Settings
from treadle.storage.payloads.texts import name_of
from treadle.testing import drain
from treadle_testkit.shows import shows

URL = "sqlite:///jobs.db"
LARGE = "x" * 5_000


@pytest.fixture
def ids(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """A database in which one job has ended and one is queued, and two texts of a third that is gone -> their ids."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TREADLE_BLOBS", "texts")
    monkeypatch.setenv("TREADLE_OFFLOAD", "2000")
    monkeypatch.setenv("TREADLE_URL", URL)

    async def fill() -> list[str]:
        async with App(URL, blobs="texts", offload=2_000) as app:

            @app.task(name="echo")
            async def echo(text: str) -> str:
                return text

            ended = await echo.enqueue(LARGE + "1")
            await drain(app)
            queued = await echo.enqueue(LARGE + "2")
            for text in (b"payload", b"result"):
                await FolderObjects("texts").put(name_of("gone:1", digest_of(text)), text)
            return [ended.id, queued.id, "gone:1"]

    return asyncio.run(fill())


def texts_of(id: str) -> list[Path]:
    return [path for path in Path("texts").glob("??/*/*") if path.parent.name == id]


def make_old(id: str, age: float) -> None:
    for path in texts_of(id):
        os.utime(path, (wall() - age, wall() - age))


def said(capsys: pytest.CaptureFixture[str], *words: str, code: int = 0) -> tuple[str, str]:
    assert run(words) == code, capsys.readouterr()
    found = capsys.readouterr()
    return found.out, found.err


@shows("`treadle storage blobs` counts texts by age and use, and `clean` deletes those of no job, never a young one")
def test_blobs_are_counted_and_cleaned(ids: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    gone = ids[2]
    make_old(gone, 2 * 86_400)
    out, err = said(capsys, "storage", "blobs")
    assert [line.split()[:4] for line in out.splitlines()[1:]] == [
        ["under", "1", "h", "3"],
        ["1", "d", "to", "7"],
        ["all", "5", "14.7", "KiB"],
    ]
    assert "2 texts of no job" in err
    found = json.loads(said(capsys, "storage", "blobs", "--json")[0])
    assert found["total"] == {
        "age": "all", "texts": 5, "bytes": 15_026, "needed": 3, "unfinished": 0, "unused": 2, "unused_bytes": 13,
    }  # fmt: skip
    assert gone in said(capsys, "storage", "blobs", "unused")[0]
    assert "2 texts would be deleted" in said(capsys, "storage", "blobs", "clean", "--dry-run")[1]
    assert "0 texts deleted" in said(capsys, "storage", "blobs", "clean", "--older-than", "3d")[1]
    assert len(texts_of(gone)) == 2
    out, _ = said(capsys, "storage", "blobs", "clean", "--json")
    assert json.loads(out)["deleted"] == 2
    assert [len(texts_of(id)) for id in ids] == [2, 1, 0]


def test_no_text_of_less_than_an_hour_is_deleted(ids: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    make_old(ids[2], 3_000)
    assert "expected 1h or more" in said(capsys, "storage", "blobs", "clean", "--older-than", "59m", code=2)[1]
    assert "0 texts deleted" in said(capsys, "storage", "blobs", "clean")[1]
    assert len(texts_of(ids[2])) == 2


@shows("`treadle storage blobs missing` names the jobs whose texts are lost or damaged")
def test_missing_texts_are_listed(ids: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    ended, queued, _ = ids
    assert "no text is missing" in said(capsys, "storage", "blobs", "missing")[1]
    for path in texts_of(queued):
        path.unlink()
    for damaged in texts_of(ended):
        damaged.write_bytes(damaged.read_bytes()[:-9])
    out, err = said(capsys, "storage", "blobs", "missing", code=1)
    assert queued in out
    assert ended not in out
    assert "1 of ready jobs" in err
    found = json.loads(said(capsys, "storage", "blobs", "missing", "--read", "--json", code=1)[0])
    assert {(each["id"], each["field"], each["damaged"]) for each in found} == {
        (queued, "payload", False), (ended, "payload", True), (ended, "result", True),
    }  # fmt: skip


def test_the_commands_change_nothing_but_what_they_delete(ids: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    before = Path("jobs.db").read_bytes()
    for words in (["list"], ["unused"], ["missing"], ["clean", "--dry-run"]):
        said(capsys, "storage", "blobs", *words)
    assert Path("jobs.db").read_bytes() == before


def test_an_invalid_blob_option_is_named(
    ids: list[str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TREADLE_BLOBS", "ftp://x")
    assert "expected a folder" in said(capsys, "storage", "blobs", code=2)[1]
    monkeypatch.setenv("TREADLE_OFFLOAD", "much")
    assert "expected a number of bytes" in said(capsys, "storage", "blobs", code=2)[1]
    monkeypatch.delenv("TREADLE_OFFLOAD")
    monkeypatch.delenv("TREADLE_BLOBS")
    assert "set TREADLE_BLOBS" in said(capsys, "storage", "blobs", "clean", code=2)[1]


def test_no_text_is_deleted_through_a_server_that_reads_them(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its rows come with their texts, so no reference can be seen."""
    url = host().add(App("memory://", blobs=tmp_path / "texts", offload=2_000), Settings())
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TREADLE_BLOBS", "texts")
    assert "cannot be seen through a server" in said(capsys, "storage", "blobs", "clean", "--url", url, code=2)[1]
    assert (
        "give --url or --app of the storage itself" in said(capsys, "storage", "keys", "used", "--url", url, code=2)[1]
    )


# --- keys


def test_a_printed_key_can_be_used(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    out, err = said(capsys, "storage", "keys", "new", "2026b")
    assert Keys(out.strip()).names == ("2026b",)
    assert out.strip() not in err
    monkeypatch.setenv("TREADLE_KEYS", out.strip())
    assert Keys.from_environment().names == ("2026b",)
    assert len(said(capsys, "storage", "keys", "new")[0].partition(":")[0]) == len("2026-11")
    assert "expected an id" in said(capsys, "storage", "keys", "new", "no good", code=2)[1]


@shows(
    "`treadle storage keys used` counts the stored texts of each key, also those in the blob store, and prints no key"
)
def test_keys_in_use_are_counted(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    old, newer = Keys.make("2025"), Keys.make("2026")

    async def fill(keys: Keys | None, text: str) -> None:
        async with App(URL, keys=keys, blobs="texts", offload=2_000) as app:

            @app.task(name="echo")
            async def echo(text: str) -> str:
                return text

            await echo.enqueue(text)
            await drain(app)
            await echo.enqueue(text)

    asyncio.run(fill(Keys(old), LARGE))
    monkeypatch.setenv("TREADLE_URL", URL)
    out = said(capsys, "storage", "keys", "used", "2025", code=1)
    assert "(in the blob store, not read)" in out[0]
    assert "could not be read" in out[1]
    monkeypatch.setenv("TREADLE_BLOBS", "texts")
    monkeypatch.setenv("TREADLE_KEYS", f"{newer} {old}")
    assert "needed by 2 jobs (1 unfinished)" in said(capsys, "storage", "keys", "used", "2025", code=1)[1]
    asyncio.run(fill(Keys(newer, old), "small"))  # it runs the second job of before, too
    found = {each["key"]: each for each in json.loads(said(capsys, "storage", "keys", "used", "--json")[0])}
    assert (found["2025"]["jobs"], found["2025"]["unfinished"], found["2025"]["results"]) == (2, 0, 1)
    assert (found["2026"]["jobs"], found["2026"]["unfinished"], found["2026"]["results"]) == (3, 1, 2)
    assert "no stored text needs" in said(capsys, "storage", "keys", "used", "2024")[1]
    shown = "".join(said(capsys, "storage", "keys", "used"))
    assert old.partition(":")[2] not in shown
    assert newer.partition(":")[2] not in shown
