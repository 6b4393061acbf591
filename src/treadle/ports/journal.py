"""What happened to the messages of a queue, line by line in files that only grow: written, read back, and given up.

Without it a queue in a file would be written anew at each push, at a cost that grows with its backlog. A line is a
checksum and JSON: what a message is now (`Item`), or the number of one that is gone. The last line about a message
counts. A file that has grown to `SEGMENT` is followed by the next; the oldest is deleted once nothing in it counts any
more, and so that this comes to pass, each write carries a few of its messages along.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable
from pathlib import Path
from typing import Final

import msgspec

from treadle.errors import UNREADABLE
from treadle.ports.contract import CorruptQueue
from treadle.ports.disk import Files
from treadle.ports.leases import Held, Item

SEGMENT: Final = 1 << 20  # bytes
STEP: Final = 4  # messages carried along with each that is written, while old files hold more than is alive

_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(Item | int).decode


def line(entry: Item | int) -> bytes:
    text = _encode(entry)
    return b"%08x %s\n" % (zlib.crc32(text), text)


class Journal:
    """The files of one queue, and in which of them the last word about each message stands."""

    def __init__(self, files: Files, path: Path, segment: int = SEGMENT) -> None:
        self._files, self._path, self._segment = files, path, segment
        self._segments: list[Path] = []
        self._sizes: dict[Path, int] = {}
        self._total = self._alive = 0  # bytes of all files, and of the lines that count
        self._where: dict[int, tuple[Path, int]] = {}  # message -> the file with its last word, and its length
        self._living: dict[Path, dict[int, None]] = {}  # the other way round

    # --- reading back

    def load(self, held: Held) -> None:
        """Everything that was written, into `held`. Raises CorruptQueue, OSError."""
        self._segments = self._files.list(self._path)
        for at, segment in enumerate(self._segments):
            self._living[segment] = {}
            data = self._files.read(segment)
            end = self._replay(segment, data, held, last=at == len(self._segments) - 1)
            if end < len(data):  # a write that was cut off: nobody was told that it was done
                self._files.truncate(segment, end)
            self._sizes[segment] = end
            self._total += end

    def _replay(self, segment: Path, data: bytes, held: Held, last: bool) -> int:
        """Answers where what is whole ends: before the end only in the last file, and only if nothing whole follows."""
        at = 0
        while at < len(data):
            end = data.find(b"\n", at) + 1
            entry = _read(data[at : end - 1]) if end else None
            if entry is None:
                if not last or any(_read(rest) is not None for rest in data[at:].split(b"\n")[1:]):
                    raise CorruptQueue(str(segment), f"what stands at byte {at} is not what was written there")
                return at
            self._take(segment, entry, end - at, held)
            at = end
        return at

    def _take(self, segment: Path, entry: Item | int, size: int, held: Held) -> None:
        if isinstance(entry, int):
            held.drop(entry)
            held.dead.pop(entry, None)
            self._forget(entry)
        else:
            held.put(entry)
            self._stands(entry.number, segment, size)

    # --- writing

    def write(self, entries: Iterable[Item | int], held: Held) -> None:
        """Put these on the disk, and carry a few old messages along. Raises OSError; then load anew."""
        entries = list(entries)
        known = {entry if isinstance(entry, int) else entry.number for entry in entries}
        entries += self._to_carry(held, len(entries), known)
        segment = self._current()
        lines = [line(entry) for entry in entries]
        data = b"".join(lines)
        self._files.append(segment, data)
        self._sizes[segment] += len(data)
        self._total += len(data)
        for entry, text in zip(entries, lines, strict=True):
            if isinstance(entry, int):
                self._forget(entry)
            else:
                self._stands(entry.number, segment, len(text))
        while len(self._segments) > 1 and not self._living[self._segments[0]]:
            # The oldest first: a file says what is gone of those before it, and must outlive them.
            oldest = self._segments[0]
            self._files.delete(oldest)
            del self._living[self._segments.pop(0)]
            self._total -= self._sizes.pop(oldest)

    def _current(self) -> Path:
        if not self._segments or self._sizes[self._segments[-1]] >= self._segment:
            number = int(self._segments[-1].suffix[1:]) + 1 if self._segments else 1
            self._segments.append(self._path.with_name(f"{self._path.name}.{number:010}"))
            self._living[self._segments[-1]], self._sizes[self._segments[-1]] = {}, 0
        return self._segments[-1]

    def _to_carry(self, held: Held, written: int, known: set[int]) -> list[Item]:
        """Some of the oldest file's, once less than half of all that is written counts."""
        if len(self._segments) < 2 or self._total < 2 * (self._alive + self._segment):
            return []
        oldest = self._living[self._segments[0]]
        found: list[Item] = []
        for number in oldest:
            if len(found) >= STEP * written:
                break
            item = held.items.get(number) or held.dead.get(number)
            if item is not None and number not in known:
                found.append(item)
        return found

    def _stands(self, number: int, segment: Path, size: int) -> None:
        self._forget(number)
        self._where[number] = segment, size
        self._living[segment][number] = None
        self._alive += size

    def _forget(self, number: int) -> None:
        before = self._where.pop(number, None)
        if before is not None:
            self._living[before[0]].pop(number, None)
            self._alive -= before[1]


def _read(text: bytes) -> Item | int | None:
    """A whole line; None if it is not."""
    try:
        if int(text[:8], 16) != zlib.crc32(text[9:]):
            return None
        entry: Item | int = _decode(text[9:])
    except UNREADABLE:
        return None
    return entry
