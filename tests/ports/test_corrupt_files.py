"""Files of a queue that something has changed are refused or set aside; those that a crash leaves are complete."""

from __future__ import annotations

import os
import random
import re
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from treadle.ports import CorruptQueue, FileQueue
from treadle.ports.disk import Disk
from treadle.ports.head import read_head
from treadle_testkit.shows import shows

SEGMENT = 400  # bytes: some six messages a file


class Recording(Disk):
    """Remembers the files after each operation, and during an append also a part of it."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.states = folder, list[dict[str, bytes]]()

    def snapshot(self) -> dict[str, bytes]:
        return {path.name: path.read_bytes() for path in self.folder.iterdir() if path.suffix != ".lock"}

    def append(self, path: Path, data: bytes) -> None:
        before = self.snapshot()
        old = before.get(path.name, b"")
        for end in range(0, len(data), 7):
            self.states.append(before | {path.name: old + data[:end]})
            self.states.append(before | {path.name: old + data[:end] + b"\0" * (len(data) - end)})
        self.states.append(before | {path.name: old + b"\0" * 9 + data[9:]})
        super().append(path, data)
        self.states.append(self.snapshot())

    def overwrite(self, path: Path, data: bytes, sync: bool) -> None:
        super().overwrite(path, data, sync)
        self.states.append(self.snapshot())

    def delete(self, path: Path) -> None:
        super().delete(path)
        self.states.append(self.snapshot())


async def filled(
    folder: Path, disk: Disk | None = None, on_ack: Callable[[set[str]], None] = lambda left: None
) -> None:
    """A queue of several files, with messages that were acked, dead-lettered and copied."""
    queue = FileQueue(folder / "q", fs=disk or Disk(), segment=SEGMENT)
    left = set[str]()
    for number in range(40):
        body = f"message {number}"
        await queue.push(body)
        left.add(body)
        on_ack(left)
        if number % 3:
            [pulled] = await queue.pop(1, 1000)
            await queue.ack(pulled.handle)
            left.discard(pulled.body)
            on_ack(left)
    await queue.close()


async def contents(folder: Path) -> list[str]:
    queue = FileQueue(folder / "q", segment=SEGMENT)
    try:
        return sorted(pulled.body for pulled in await queue.pop(1000, 1000))
    finally:
        await queue.close()


async def opened(folder: Path) -> tuple[list[str], CorruptQueue | None]:
    try:
        return await contents(folder), None
    except CorruptQueue as error:
        return [], error


def copied(source: Path, to: Path) -> Path:
    shutil.rmtree(to, ignore_errors=True)
    return Path(shutil.copytree(source, to))


def changes(data: bytes, rng: random.Random) -> Iterator[tuple[str, bytes | None]]:
    """Every kind of change, at places all over the file."""
    yield "deleted", None
    yield "emptied", b""
    yield "zeroed", bytes(len(data))
    yield "garbage", b"garbage\n" * (len(data) // 8)
    yield "garbage without lines", b"\xfe" * len(data)
    yield "garbage at the end", data + b"garbage\n"
    places = sorted(
        {*range(0, len(data), 11), len(data) - 1, *(data.find(b"\n", at) + 1 for at in range(0, len(data), 50))}
    )
    for at in places:
        if at >= len(data):
            continue
        yield f"byte {at} flipped", data[:at] + bytes([data[at] ^ (1 << rng.randrange(8))]) + data[at + 1 :]
        yield f"cut at {at}", data[:at]
        yield f"zeros from {at}", data[:at] + bytes(min(16, len(data) - at)) + data[at + 16 :]
        yield f"a hole at {at}", data[:at] + data[at + 5 :]
        yield f"an insertion at {at}", data[:at] + b"x" + data[at:]


@pytest.mark.slow
@shows("a file queue of which any part was changed or deleted is refused with a sentence, or complete")
async def test_no_change_of_any_file_loses_a_message_silently(tmp_path: Path) -> None:
    whole, trial, rng = tmp_path / "whole", tmp_path / "trial", random.Random(7)
    whole.mkdir()
    await filled(whole)
    expected, refused, tried = await contents(copied(whole, trial)), 0, 0
    names = [path.name for path in whole.iterdir() if path.suffix != ".lock"]
    assert len(names) >= 4
    for name in sorted(names):
        for what, data in changes((whole / name).read_bytes(), rng):
            path = copied(whole, trial) / name
            path.unlink() if data is None else path.write_bytes(data)
            tried += 1
            messages, error = await opened(trial)
            assert error is not None or messages == expected, f"{name}: {what}"
            if error is not None:
                refused += 1
                assert re.search(rf"{trial}/q.*: .*expected .*, found .*corrupt='aside'", str(error)), (name, what)
    assert refused > tried * 0.9


@pytest.mark.slow
@shows("a file queue opens with all confirmed messages, at whatever byte of a write its process was killed")
async def test_each_state_that_a_kill_leaves_opens_with_what_was_confirmed(tmp_path: Path) -> None:
    live, trial = tmp_path / "live", tmp_path / "trial"
    live.mkdir()
    disk, confirmed = Recording(live), [(0, set[str]())]
    await filled(live, disk, lambda left: confirmed.append((len(disk.states), set(left))))
    disk.states.append(disk.snapshot())
    for index, state in enumerate(disk.states[::3]):
        shutil.rmtree(trial, ignore_errors=True)
        trial.mkdir()
        for name, data in state.items():
            (trial / name).write_bytes(data)
        before = [left for at, left in confirmed if at <= index * 3][-1]
        after = next((left for at, left in confirmed if at > index * 3), before)
        assert before & after <= set(await contents(trial)) <= before | after, state


async def test_a_head_that_a_power_failure_left_behind_is_no_damage(tmp_path: Path) -> None:
    heads = dict[int, list[bytes]]()

    class Heads(Disk):
        def overwrite(self, path: Path, data: bytes, sync: bool) -> None:
            super().overwrite(path, data, sync)
            if sync:
                heads.clear()
            heads.setdefault(0, []).append(data)

    whole, trial = tmp_path / "whole", tmp_path / "trial"
    whole.mkdir()
    await filled(whole, Heads())
    expected = await contents(copied(whole, trial))
    for data in heads[0]:
        assert read_head(data) is not None
        (copied(whole, trial) / "q.head").write_bytes(data)
        assert await contents(trial) == expected


@pytest.mark.parametrize("size", [0, 128])
async def test_a_power_failure_during_the_first_write_is_no_damage(tmp_path: Path, size: int) -> None:
    queue = FileQueue(tmp_path / "q")
    await queue.push("a")
    await queue.close()
    segment = tmp_path / "q.0000000001"
    whole = segment.read_bytes()
    for data, expected in ((whole, ["a"]), (whole[:-3], []), (b"\0" * len(whole), []), (b"", [])):
        segment.write_bytes(data)
        (tmp_path / "q.head").write_bytes(b"\0" * size)
        assert await contents(tmp_path) == expected
    segment.rename(tmp_path / "q.0000000002")
    (tmp_path / "q.head").write_bytes(b"\0" * size)
    with pytest.raises(CorruptQueue, match="expected the head of 1 files"):
        await contents(tmp_path)


@pytest.mark.parametrize("name", ["q.head", "q.0000000001"])
async def test_set_aside_a_damaged_queue_begins_empty_and_stays_usable(tmp_path: Path, name: str) -> None:
    queue = FileQueue(tmp_path / "q")
    await queue.push("a")
    await queue.close()
    (tmp_path / name).write_bytes(b"garbage")
    errors = list[Exception]()
    for body in ("b", "c"):
        queue = FileQueue(tmp_path / "q", corrupt="aside", on_error=errors.append)
        await queue.push(body)
        await queue.close()
    assert [type(error) for error in errors] == [CorruptQueue]
    assert await contents(tmp_path) == ["b", "c"]
    kept = {name.rpartition("-")[0] for name in os.listdir(tmp_path) if "corrupt" in name}
    assert kept == {"q.head.corrupt", "q.0000000001.corrupt"}
