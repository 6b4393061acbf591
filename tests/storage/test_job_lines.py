"""`treadle storage export` and `import`: every storage into every other one, bad files, interrupted imports."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from tests.storage.moving_kit import OUTSIDE, PLACES, made, populate
from tests.storage.test_moving import Cut, Unplugged, _goes_on, places, treadle
from treadle.admin.storage_file import JobFile, abort, export, load
from treadle.admin.storage_move import OpenStorage
from treadle.core.clock import wall
from treadle.core.limit_model import Limit
from treadle.core.model import Claim, NewJob, Outcome, State
from treadle.core.query_model import MetricsRow
from treadle.errors import MoveFailed, StorageUnavailable, Unsupported
from treadle.storage import handed_over
from treadle.storage.contract import Storage
from treadle.storage.job_lines import lines_of, read_line
from treadle.storage.transfer import Carried, Chunk

ODD = ("", "plain", '{"$text":"x"}', "[1, 2.0,  1e2]", "null", '{"a":"\\u00e9\\n"}', "[\n1]", " 1", "treadle:key:AAAA")


async def exported(storage: Storage, step: int = 300) -> bytes:
    out = io.BytesIO()
    assert not (await export(OpenStorage(storage, "old"), out.write, step=step)).changed
    return out.getvalue()


def file_of(text: bytes) -> JobFile:
    return JobFile(io.BytesIO(text), "jobs.jsonl")


def content(text: bytes) -> list[bytes]:
    """The lines but the first one, sorted; running jobs as the ready jobs that an import stores."""
    return sorted(map(_arrived, text.splitlines(keepends=True)[1:]))


def _arrived(line: bytes) -> bytes:
    value = read_line(line)
    if not isinstance(value, Carried):
        return line
    record = handed_over(value.record)
    position = None if record.blocked_on is not None else record.queue_position  # queued anew when the target opens
    return line if record == value.record and position else _of(value, queue_position=position, record=record)


def _of(value: Carried, record: Any, queue_position: float | None) -> bytes:
    from msgspec.structs import replace

    [line] = lines_of(Chunk((replace(value, record=replace(record, queue_position=queue_position)),)))
    return line


@pytest.mark.parametrize(("one", "other"), [(one, other) for one in PLACES for other in PLACES])
async def test_an_export_is_the_same_after_an_import(tmp_path: Path, one: str, other: str) -> None:
    async with places(one, other, tmp_path) as (source, target):
        await populate(source, 110)
        odd = [NewJob(id=f"odd-{number}", task="odd", payload=text) for number, text in enumerate(ODD)]
        await source.enqueue([*odd, NewJob(id="promise", headers=(("a", "é"),), labels=("l",))])
        await source.store_metrics([MetricsRow(at=wall() // 60 * 60, span=60.0, source="w", data=b"\x00\xff")])
        text = await exported(source)
        done = await load(file_of(text), OpenStorage(target, "new"), step=40)
        assert (done.jobs, done.known) == (done.exported, 0)
        assert content(await exported(target)) == content(text)
        await _goes_on(target)


async def test_lines_are_readable(tmp_path: Path) -> None:
    storage = await made("redis", tmp_path)
    try:
        await storage.set_limits([Limit("smtp", slots=2)])
        await storage.enqueue([NewJob(id="a", task="mail.send", payload='[["Ada"], {"n": 1}]')])
        [row] = (await storage.claim(Claim(worker="w#1"))).records
        checkpoints = (("step", '{"paid":true}'), ("note", "no json"))
        settled = Outcome(id="a", version=row.version, state=State.SUCCEEDED, result="null", checkpoints=checkpoints)
        await storage.settle([settled])
        lines = [json.loads(line) for line in (await exported(storage)).splitlines()]
    finally:
        await storage.close()
    assert [line["kind"] for line in lines] == ["export", "limit", "job", "end"]
    assert lines[0].keys() == {"kind", "version", "storage", "began_at"}
    job = lines[2]
    assert job["job"] == {"id": "a", "task": "mail.send", "queue": "default", "payload": [["Ada"], {"n": 1}]}
    assert (job["state"], job["result"], job["attempt"]) == ("succeeded", None, 0)
    assert job["checkpoints"] == {"step": {"paid": True}, "note": {"$text": "no json"}}
    assert lines[3] == {"kind": "end", "jobs": 1, "changed": False}


async def some_lines() -> list[bytes]:
    storage = await made("memory", Path())
    await storage.enqueue([NewJob(id=f"j{number}", task="t") for number in range(3)])
    return (await exported(storage)).splitlines(keepends=True)


@pytest.mark.parametrize(
    ("number", "line", "reason"),
    [
        (0, b'{"kind":"export","version":2,"storage":"x","began_at":1}\n', r"line 1: expected version 1 .*, found 2"),
        (0, b"", r"line 1: expected the first line"),
        (0, b"SQLite format 3\0", r"line 1: JSON is malformed"),
        (2, b'{"kind":"job"\n', r"line 3: "),
        (2, b'{"kind":"jobs"}\n', r"line 3: expected the kind job"),
        (2, b'{"kind":"job","job":{"id":"x"},"version":1,"state":"lost"}\n', r"line 3: Invalid enum value"),
        (2, b'{"kind":"job","job":{"id":"x","tsk":"t"},"version":1,"state":"ready"}\n', r"unknown field 'tsk'"),
        (2, b'{"kind":"job","job":{"id":"x","keep":-1},"version":1,"state":"ready"}\n', r"line 3: option 'keep'"),
        (
            2,
            b'{"kind":"job","job":{"id":"x"},"version":9223372036854775808,"state":"ready"}\n',
            r"line 3: option 'version'",
        ),
        (2, b'{"kind":"job","job":{"id":"x"},"version":1,"state":"ready","attempt":-1}\n', r"line 3: option 'attempt'"),
        (
            2,
            b'{"kind":"job","job":{"id":"x"},"version":1,"state":"ready","due_at":1e308}\n',
            r"line 3: option 'due_at'",
        ),
        (
            2,
            b'{"kind":"job","job":{"id":"x"},"version":1,"state":"ready","edges":'
            b'[{"up":"a","version":4294967296,"open":true}]}\n',
            r"line 3: option 'edges'",
        ),
        (
            2,
            b'{"kind":"job","job":{"id":"x"},"version":1,"state":"ready","holds_key":true}\n',
            r"line 3: expected a key",
        ),
        (2, b'{"kind":"rate","key":"r","starts":[[1e308,1]]}\n', r"line 3: option 'starts'"),
        (2, b'{"kind":"rate","key":"r","tokens":1e308}\n', r"line 3: option 'tokens'"),
        (2, b'{"kind":"limit","name":"l","set":{"name":"l","slots":-1}}\n', r"line 3: .*limit 'l'.*: slots"),
        (2, b'{"kind":"metrics","at":1e308,"span":1,"source":"w"}\n', r"line 3: option 'at'"),
        (-1, b'{"kind":"end","jobs":-1,"changed":false}\n', r"line 5: option 'jobs'"),
        (2, b'{"kind":"end","jobs":0,"changed":false}\n', r"line 4: a line after the end"),
        (2, b"[" * 2_000 + b"\n", r"line 3: "),
        (2, b"\xff\n", r"line 3: "),
        (-1, b"", r"no last line"),
        (-1, b'{"kind":"end","jobs":3,"changed":true}\n', r"changed while jobs.jsonl was written"),
    ],
)
async def test_a_bad_file_is_refused_with_its_line(number: int, line: bytes, reason: str) -> None:
    lines = await some_lines()
    lines[number] = line
    with pytest.raises(MoveFailed, match=reason) as refused:
        file_of(b"".join(lines))
    assert "nothing was imported" in str(refused.value) or "export again" in str(refused.value)


@pytest.mark.parametrize("kind", PLACES)
async def test_an_interrupted_import_resumes(tmp_path: Path, kind: str) -> None:
    source, target = await made("memory", tmp_path), await made(kind, tmp_path)
    try:
        await populate(source, 220)
        text = await exported(source)
        cut = Cut(target, (2, "after"), (4, "before"))
        for _ in range(2):
            with pytest.raises(Unplugged):
                await load(file_of(text), OpenStorage(cut, "new"), step=50)  # type: ignore[arg-type]
            with pytest.raises(StorageUnavailable, match=r"receives the jobs of the file jobs\.jsonl"):
                await target.enqueue([NewJob(id="early", task="t")])
        other = file_of(b"".join(await some_lines()))
        with pytest.raises(MoveFailed, match=r"has some of the jobs of the file jobs\.jsonl"):
            await load(other, OpenStorage(target, "new"), add=True)
        done = await load(file_of(text), OpenStorage(target, "new"), step=50)
        assert 0 < done.known < done.jobs
        assert content(await exported(target)) == content(text)
        assert not await abort(OpenStorage(target, "new"))
    finally:
        await target.close()


@pytest.mark.parametrize("kind", PLACES)
@pytest.mark.parametrize("add", [True, False])
async def test_an_import_resumes_only_as_it_began_and_under_any_file_name(tmp_path: Path, kind: str, add: bool) -> None:
    source, target = await made("memory", tmp_path), await made(kind, tmp_path)
    try:
        await source.set_limits([Limit("smtp", slots=1)])
        await source.enqueue([NewJob(id=f"j{number}", task="t") for number in range(9)])
        await target.set_limits([Limit("smtp", slots=7)])
        text = await exported(source)
        with pytest.raises(Unplugged):
            await load(file_of(text), OpenStorage(Cut(target, (2, "after")), "new"), add=add, step=4)  # type: ignore[arg-type]
        words = "without" if not add else "with"
        with pytest.raises(MoveFailed, match=rf"import that file again {words} --add, or open"):
            await load(file_of(text), OpenStorage(target, "new"), add=not add)
        renamed = JobFile(io.BytesIO(text), "renamed.jsonl")
        done = await load(renamed, OpenStorage(target, "new"), add=add, step=4)
        assert done.jobs == 9
        [use] = await target.limits(use=False)
        assert use.rule.slots == (7 if add else 1)
    finally:
        await target.close()


async def test_a_file_from_an_editor_is_read(tmp_path: Path) -> None:
    text = b"".join(await some_lines())
    edited = file_of(b"\xef\xbb\xbf" + text.replace(b"\n", b"\r\n") + b"\r\n\n")
    assert edited.jobs == 3
    target = await made("memory", tmp_path)
    assert (await load(edited, OpenStorage(target, "new"))).jobs == 3


@pytest.mark.parametrize("kind", PLACES)
async def test_an_aborted_import_opens_the_storage(tmp_path: Path, kind: str) -> None:
    target = await made(kind, tmp_path)
    try:
        text = b"".join(await some_lines())
        with pytest.raises(Unplugged):
            await load(file_of(text), OpenStorage(Cut(target, (2, "before")), "new"), step=2)  # type: ignore[arg-type]
        with pytest.raises(StorageUnavailable):
            await exported(target)
        assert await abort(OpenStorage(target, "new"))
        assert len((await target.claim(Claim(worker="w#1", queues=(("default", 9),), limit=9))).records) == 2
        done = await load(file_of(text), OpenStorage(target, "new"), add=True)
        assert (done.jobs, done.known) == (3, 2)
    finally:
        await target.close()


@pytest.mark.parametrize("kind", PLACES)
async def test_jobs_are_added_once_and_only_where_they_fit(tmp_path: Path, kind: str) -> None:
    source, target = await made("memory", tmp_path), await made(kind, tmp_path)
    old, new = OpenStorage(source, "old"), OpenStorage(target, "new")
    try:
        await target.enqueue([NewJob(id="own", task="t", key="taken")])
        await source.set_limits([Limit("smtp", slots=1)])
        await source.enqueue([NewJob(id="first", task="t", key="free"), NewJob(id="then", task="t", after=("first",))])
        text = await exported(source)
        with pytest.raises(MoveFailed, match="already holds 1 job"):
            await load(file_of(text), new)
        twice = text.splitlines(keepends=True)
        twice.insert(3, twice[2])
        for known in (1, 3):  # the repeated job, then all of them
            done = await load(file_of(b"".join(twice)), new, add=True)
            assert (done.jobs, done.known) == (3, known)
        assert await target.limits(use=False) == await (await made("memory", tmp_path)).limits(use=False)
        [again] = await target.enqueue([NewJob(id="x", task="t", key="free")])
        assert again.job.id == "first"
        await source.enqueue([NewJob(id="second", task="t", key="taken")])
        with pytest.raises(MoveFailed, match="job second has the key 'taken', which job own of new holds"):
            await load(file_of(await exported(source)), new, add=True)
        # A job that waits for one that has ended at the target would wait forever.
        claimed = await target.claim(Claim(worker="w#1", limit=9, queues=(("default", 9),)))
        assert {row.job.id for row in claimed.records} == {"own", "first"}
        ended = [Outcome(id=row.id, version=row.version, state=State.SUCCEEDED) for row in claimed.records]
        await target.settle(ended)
        [then] = await target.get(["then"])
        assert then is not None
        assert then.state is State.READY
        late = await made("memory", tmp_path)
        await late.enqueue([NewJob(id="first", task="t"), NewJob(id="late", task="t", after=("first",))])
        with pytest.raises(MoveFailed, match="job late waits for job first, which has ended in new"):
            await load(file_of(await exported(late)), new, add=True)
        assert await target.get(["second", "late"]) == [None, None]
        assert old.name == "old"
    finally:
        await target.close()


@pytest.mark.parametrize("kind", OUTSIDE)
async def test_an_export_reports_that_jobs_changed(tmp_path: Path, kind: str) -> None:
    storage, out = await made(kind, tmp_path), io.BytesIO()
    try:
        await storage.enqueue([NewJob(id=f"j{number}", task="t") for number in range(9)])

        class Busy(Cut):
            async def unload(self, cursor: str | None, limit: int) -> Any:
                chunk = await storage.unload(cursor, limit)  # type: ignore[attr-defined]
                await storage.claim(Claim(worker=f"w#{cursor}"))
                return chunk

        end = await export(OpenStorage(Busy(storage), "old"), out.write, step=3)  # type: ignore[arg-type]
        assert end.changed
        with pytest.raises(MoveFailed, match="changed while"):
            file_of(out.getvalue())
    finally:
        await storage.close()


async def test_a_storage_behind_http_names_what_to_give(tmp_path: Path) -> None:
    from tests.kit import Spy
    from treadle.storage.memory import MemoryStorage

    with pytest.raises(Unsupported):
        await export(OpenStorage(Spy(MemoryStorage()), "http"), io.BytesIO().write)


# --- the command


@pytest.mark.slow
def test_the_commands(tmp_path: Path) -> None:
    source, target, file = f"sqlite:///{tmp_path}/a.db", f"sqlite:///{tmp_path}/b.db", tmp_path / "jobs.jsonl"
    assert treadle("enqueue", "mail.send", "ada", "--url", source).returncode == 0
    done = treadle("storage", "export", str(file), "--url", source)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "exported 1 job\n")
    assert file.stat().st_mode & 0o777 == 0o600
    assert treadle("storage", "export", str(file), "--url", source).returncode == 2  # never overwritten
    plain = treadle("storage", "export", "--url", source)
    assert content(plain.stdout.encode()) == content(file.read_bytes())
    cut = plain.stdout.rpartition('{"kind":"end"')[0]
    refused = piped(cut, "storage", "import", "-", "--url", target)
    assert refused.returncode == 1
    assert "standard input has no last line" in refused.stderr
    assert not (tmp_path / "b.db").exists()
    arrived = piped(plain.stdout, "storage", "import", "-", "--url", target)
    assert (arrived.returncode, arrived.stdout) == (0, "imported  1 job\n"), arrived.stderr
    again = treadle("storage", "import", str(file), "--url", target)
    assert again.returncode == 1
    assert "already holds 1 job: give an empty storage, or --add" in again.stderr
    added = treadle("storage", "import", str(file), "--add", "--url", target)
    assert "known     1 job, left unchanged" in added.stdout
    assert "was interrupted" in treadle("storage", "import", "--abort", "--url", target).stderr


@pytest.mark.skipif(sys.platform == "win32", reason="needs named pipes and sh")
@pytest.mark.slow
def test_an_import_reads_a_pipe_and_names_a_closed_stream(tmp_path: Path) -> None:
    source, target, pipe = f"sqlite:///{tmp_path}/a.db", f"sqlite:///{tmp_path}/b.db", tmp_path / "pipe"
    assert treadle("enqueue", "mail.send", "ada", "--url", source).returncode == 0
    text = treadle("storage", "export", "--url", source).stdout
    os.mkfifo(pipe)
    with ThreadPoolExecutor() as pool:
        written = pool.submit(pipe.write_text, text)
        arrived = treadle("storage", "import", str(pipe), "--url", target)
        assert (arrived.returncode, arrived.stdout) == (0, "imported  1 job\n"), arrived.stderr
        assert written.result() == len(text)
    for words, redirection, stream in (("export", ">&-", "stdout"), ("import -", "<&-", "stdin")):
        command = f'"{sys.executable}" -m treadle storage {words} --url {source} {redirection}'
        done = subprocess.run(["sh", "-c", command], check=False, stderr=subprocess.PIPE, text=True, timeout=600)
        assert done.returncode == 2
        assert f"{stream} is closed: give the name of a" in done.stderr


def test_the_commands_refuse_wrong_arguments(tmp_path: Path) -> None:
    url = ("--url", f"sqlite:///{tmp_path}/a.db")
    assert piped("", "storage", "migrate", *url).returncode == 0
    for words in (
        ("import", *url),
        ("import", "--abort", "file", *url),
        ("import", "nowhere.jsonl", *url),
        ("export", "--url", "memory://"),
        ("export", "nowhere/jobs.jsonl", *url),
    ):
        assert treadle("storage", *words).returncode == 2, words


def piped(text: str, *words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "treadle", *words]
    return subprocess.run(command, check=False, capture_output=True, text=True, timeout=600, input=text)
