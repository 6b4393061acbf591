"""The queue in a file: what a crash leaves, what a disk refuses, and files that are not a queue."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from treadle.ports import CorruptQueue, FileQueue, file_queue
from treadle.ports.disk import Disk
from treadle.testing import HandClock
from treadle_testkit.ports.queue import *  # noqa: F403
from treadle_testkit.shows import shows


class Making:
    """Makes a new queue each time; `reopen` opens the files of the last one again."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.made = folder, 0

    def __call__(self, clock: HandClock) -> FileQueue:
        self.made += 1
        return self.reopen(clock)

    def reopen(self, clock: HandClock) -> FileQueue:
        return file_queue(self.folder / f"q{self.made}", clock=clock)


@pytest.fixture
def make_queue(tmp_path: Path) -> Any:
    return Making(tmp_path)


def files(path: Path) -> list[Path]:
    return Disk().list(path)


def write(path: Path, data: bytes) -> None:
    path.write_bytes(data)


def aside(folder: Path) -> list[bytes]:
    return [each.read_bytes() for each in folder.glob("*.0000000001.corrupt-*")]


async def bodies(queue: FileQueue) -> list[str]:
    found = []
    while more := await queue.pop(100, 1000):
        found += [one.body for one in more]
    return found


async def numbers(path: Path) -> list[int]:
    queue = file_queue(path)
    found = sorted(int(body.partition(":")[0]) for body in await bodies(queue))
    await queue.close()
    return found


async def test_leases_do_not_outlive_the_process_but_their_count_does(tmp_path: Path) -> None:
    path = tmp_path / "q"
    for life in range(1, 4):
        queue = file_queue(path)
        if life == 1:
            await queue.push("a")
        [pulled] = await queue.pop(5, 10_000)
        assert pulled.attempt == life
        await queue.close()


async def test_acked_delayed_and_dead_messages_are_the_same_after_a_reopening(tmp_path: Path) -> None:
    clock, path = HandClock(), tmp_path / "q"
    queue = file_queue(path, clock=clock)
    for body in ("gone", "dead"):
        await queue.push(body)
    gone, dead = await queue.pop(2, 10)
    await queue.ack(gone.handle)
    await queue.dead_letter(dead.handle, "why")
    await queue.push("later", delay=60, dedupe_key="k")
    await queue.close()
    queue = file_queue(path, clock=clock)
    assert await queue.pop(5, 10) == []
    assert [tuple(one) for one in await queue.dead()] == [("dead", "why")]
    await queue.push("later again", dedupe_key="k")
    clock.advance(60)
    assert await bodies(queue) == ["later"]
    await queue.close()


@pytest.mark.parametrize("cut", [1, 9, 20])
async def test_a_torn_tail_is_given_up_and_nothing_else(tmp_path: Path, cut: int) -> None:
    path, head = tmp_path / "q", tmp_path / "q.head"
    queue = file_queue(path)
    for body in "ab":
        await queue.push(body)
    before = head.read_bytes()
    await queue.push("c")
    await queue.close()
    [segment] = files(path)
    segment.write_bytes(segment.read_bytes()[:-cut])
    head.write_bytes(before)  # the process died before the push was confirmed
    queue = file_queue(path)
    assert await bodies(queue) == ["a", "b"]
    await queue.push("d")
    await queue.close()
    queue = file_queue(path)
    assert sorted(await bodies(queue)) == ["a", "b", "d"]
    await queue.close()


async def test_a_corrupt_file_is_refused_at_each_call_and_left_as_it_is(tmp_path: Path) -> None:
    path = tmp_path / "q"
    queue = file_queue(path)
    for body in "abc":
        await queue.push(body)
    await queue.close()
    [segment] = files(path)
    broken = segment.read_bytes().replace(b'"b"', b'"B"')
    segment.write_bytes(broken)
    queue = file_queue(path)
    for _ in range(2):
        with pytest.raises(CorruptQueue, match="corrupt='aside'") as caught:
            await queue.pop(1, 1)
        assert caught.value.where == str(segment)
    assert segment.read_bytes() == broken
    await queue.close()


async def test_with_the_option_aside_a_corrupt_file_is_renamed_and_reported(tmp_path: Path) -> None:
    path = tmp_path / "q"
    write(Path(f"{path}.0000000001"), b"not a queue\nat all\n")
    write(Path(f"{path}.0000000002"), b"")
    told: list[Exception] = []
    queue = file_queue(path, corrupt="aside", on_error=told.append)
    assert await queue.size() == 0
    assert [type(one) for one in told] == [CorruptQueue]
    assert aside(tmp_path) == [b"not a queue\nat all\n"]
    await queue.push("a")
    await queue.close()
    assert await bodies(queue) == ["a"]
    await queue.close()


class Failing(Disk):
    """A disk that is full, or loses power, at the write after `left` more writes."""

    def __init__(self, left: int, tear: int | None = None) -> None:
        self.left, self.tear = left, tear

    def append(self, path: Path, data: bytes) -> None:
        self.left -= 1
        if self.left == -1:
            if self.tear is not None:
                super().append(path, data[: self.tear])
            raise OSError(28, "No space left on device")
        super().append(path, data)


@pytest.mark.parametrize("tear", [None, 0, 5, 30, 10_000])
async def test_a_failed_write_raises_and_the_queue_continues_from_the_disk(tmp_path: Path, tear: int | None) -> None:
    told: list[Exception] = []
    queue = file_queue(tmp_path / "q", fs=Failing(1, tear), on_error=told.append)
    await queue.push("a")
    with pytest.raises(OSError, match="No space"):
        await queue.push("b")
    assert [type(one) for one in told] == [OSError]
    await queue.push("c")
    assert sorted(await bodies(queue)) == (["a", "b", "c"] if tear == 10_000 else ["a", "c"])
    await queue.close()


async def test_a_function_for_errors_that_fails_is_logged_and_stops_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(error: Exception) -> None:
        raise LookupError("this function fails")

    queue = file_queue(tmp_path / "q", fs=Failing(1), on_error=fail)
    await queue.push("a")
    with pytest.raises(OSError, match="No space"):
        await queue.push("b")
    await queue.push("c")
    assert sorted(await bodies(queue)) == ["a", "c"]
    assert [str(record.exc_info[1]) for record in caplog.records if record.exc_info] == ["this function fails"]
    await queue.close()


async def test_a_foreign_file_of_a_similar_name_is_left_alone(tmp_path: Path) -> None:
    for ending in ("²", "txt"):
        write(tmp_path / f"q.{ending}", b"mine")
    queue = file_queue(tmp_path / "q")
    await queue.push("a")
    assert await bodies(queue) == ["a"]
    await queue.close()
    assert (tmp_path / "q.²").read_bytes() == b"mine"


async def test_a_second_process_cannot_open_the_queue(tmp_path: Path) -> None:
    queue, other = file_queue(tmp_path / "q"), file_queue(tmp_path / "q")
    await queue.push("a")
    with pytest.raises(BlockingIOError, match="has locked"):
        await other.push("b")
    await queue.close()
    await other.push("b")
    assert await bodies(other) == ["a", "b"]
    await other.close()


@shows("a file queue removes finished messages from the disk in small writes")
async def test_finished_messages_leave_the_disk_in_small_writes(tmp_path: Path) -> None:
    """However many messages passed, and even if an old one stays: the files stay small, and every write is small."""

    class Counting(Disk):
        largest = 0

        def append(self, path: Path, data: bytes) -> None:
            self.largest = max(self.largest, len(data))
            super().append(path, data)

    disk, path = Counting(), tmp_path / "q"
    queue = FileQueue(path, fs=disk, segment=4000)
    await queue.push("stays", delay=10_000)
    for n in range(250):
        await queue.push(f"{n:05}" * 20)
        [pulled] = await queue.pop(1, 100)
        await queue.ack(pulled.handle)
    assert sum(each.stat().st_size for each in files(path)) < 20_000
    assert disk.largest < 2000
    await queue.close()
    assert await queue.size() == 1
    await queue.close()


@pytest.mark.parametrize("seed", range(6))
async def test_a_queue_that_is_reopened_at_any_time_is_the_same(tmp_path: Path, seed: int) -> None:
    """Random pushes, pops and ends, with small files, compared with a plain model of the expected contents."""
    rng, clock, path = random.Random(seed), HandClock(), tmp_path / "q"
    queue = FileQueue(path, clock=clock, segment=700)
    there: set[str] = set()
    for n in range(250):
        kind = rng.random()
        if kind < 0.5:
            await queue.push(f"m{n}", delay=rng.choice([0, 0, 3]))
            there.add(f"m{n}")
        elif kind < 0.9:
            for pulled in await queue.pop(2, 5):
                end = rng.choice(["ack", "release", "dead", "leave"])
                if (end == "ack" and await queue.ack(pulled.handle)) or (
                    end == "dead" and await queue.dead_letter(pulled.handle, "x")
                ):
                    there.discard(pulled.body)
                elif end == "release":
                    await queue.release(pulled.handle, rng.choice([0, 2]))
        elif kind < 0.95:
            clock.advance(4)
        else:
            await queue.close()
            queue = FileQueue(path, clock=clock, segment=700)
        assert await queue.size() == len(there)
    await queue.close()
    queue = FileQueue(path, clock=clock, segment=700)
    clock.advance(100)
    assert set(await bodies(queue)) == there
    await queue.close()


async def test_pushes_made_at_once_share_their_flushes(tmp_path: Path) -> None:
    class Counting(Disk):
        flushes = 0

        def append(self, path: Path, data: bytes) -> None:
            self.flushes += 1
            super().append(path, data)

    disk = Counting()
    queue = file_queue(tmp_path / "q", fs=disk)
    await asyncio.gather(*(queue.push(str(n)) for n in range(500)))
    assert disk.flushes < 10
    assert await queue.size() == 500
    await queue.close()


@shows("a file queue whose process is killed keeps each message that it acknowledged")
def test_a_queue_killed_during_a_push_has_all_acknowledged_messages(tmp_path: Path) -> None:
    path, said = tmp_path / "q", [0]
    for life in range(5):
        command = [sys.executable, str(Path(__file__).with_name("pushing.py")), str(path), str(said[-1] + 1)]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as child:
            assert child.stdout is not None
            said += [int(child.stdout.readline()) for _ in range(20 + 7 * life)]
            child.kill()
            said += [int(line) for line in child.stdout.read().split("\n")[:-1]]
    found = asyncio.run(numbers(path))
    # All that was confirmed is stored. Of the rest, only the message that was being written at each crash may be stored
    # too.
    assert set(said[1:]) <= set(found)
    assert len(found) - len(set(said[1:])) <= 5


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork here")
async def test_a_forked_child_does_not_keep_the_queue_of_a_killed_parent(tmp_path: Path) -> None:
    script = """
import asyncio, os, signal, sys
from treadle.ports import file_queue
async def main(path):
    queue = file_queue(path)
    await queue.push("a")
    if not os.fork():
        print(os.getpid(), flush=True)
    signal.pause()
asyncio.run(main(sys.argv[1]))
"""
    path = tmp_path / "q"
    parent = subprocess.Popen([sys.executable, "-c", script, str(path)], stdout=subprocess.PIPE, text=True)  # noqa: ASYNC220 - short
    with parent:
        assert parent.stdout is not None
        orphan = int(parent.stdout.readline())
        try:
            with pytest.raises(BlockingIOError):
                await file_queue(path).size()
            parent.kill()
            parent.wait()
            queue = file_queue(path)
            assert await bodies(queue) == ["a"]
            await queue.close()
        finally:
            os.kill(orphan, signal.SIGKILL)


async def test_a_queue_that_was_deleted_is_noticed(tmp_path: Path) -> None:
    """Messages written after that would be lost, or end up in a second queue."""
    queue = file_queue(tmp_path / "q")
    await queue.push("a")
    for name in os.listdir(tmp_path):
        os.unlink(tmp_path / name)
    other = file_queue(tmp_path / "q")
    await other.push("b")
    with pytest.raises(OSError, match="deleted or replaced"):
        await queue.push("c")
    with pytest.raises(BlockingIOError):
        await queue.push("c")
    await other.close()
    await queue.push("c")
    assert await bodies(queue) == ["b", "c"]
    await queue.close()
