"""The append-only journal of a queue in files.

The cost of a push does not depend on the backlog. A line is a checksum and JSON: the current state of a message
(`Item`), or the number of a deleted one. Only the last line about a message counts. When a file has `SEGMENT` bytes,
the next one begins. The oldest file is deleted when it has no valid line left; to get there, each write copies some of
its messages.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable
from pathlib import Path
from typing import Final

import msgspec

from treadle.core.errors import UNREADABLE
from treadle.ports.contract import CorruptQueue
from treadle.ports.disk import Files
from treadle.ports.leases import Held, Item

SEGMENT: Final = 1 << 20  # bytes
STEP: Final = 4  # messages copied per message written, while old files have more invalid bytes than valid ones

_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(Item | int).decode


def line(entry: Item | int) -> bytes:
    text = _encode(entry)
    return b"%08x %s\n" % (zlib.crc32(text), text)


class Journal:
    """The files of one queue, and which of them has the valid line of each message."""

    def __init__(self, files: Files, path: Path, segment: int = SEGMENT) -> None:
        self._files, self._path, self._segment = files, path, segment
        self._segments: list[Path] = []
        self._sizes: dict[Path, int] = {}
        self._total = self._alive = 0  # bytes of all files, and of the valid lines
        self._where: dict[int, tuple[Path, int]] = {}  # message -> (file of its valid line, length of that line)
        self._living: dict[Path, dict[int, None]] = {}  # file -> the messages with a valid line in it

    # --- reading

    def load(self, held: Held) -> None:
        """Read all files into `held`. Raises CorruptQueue and OSError."""
        self._segments = self._files.list(self._path)
        for index, segment in enumerate(self._segments):
            self._living[segment] = {}
            data = self._files.read(segment)
            end = self._replay(segment, data, held, last=index == len(self._segments) - 1)
            if end < len(data):  # a torn write, which was never confirmed
                self._files.truncate(segment, end)
            self._sizes[segment] = end
            self._total += end

    def _replay(self, segment: Path, data: bytes, held: Held, last: bool) -> int:
        """Returns the end of the valid content. Only the last file may end early, and only if no valid line follows."""
        start = 0
        while start < len(data):
            end = data.find(b"\n", start) + 1
            entry = _read(data[start : end - 1]) if end else None
            if entry is None:
                if not last or any(_read(rest) is not None for rest in data[start:].split(b"\n")[1:]):
                    raise CorruptQueue(
                        str(segment), f"byte {start}: expected an entry of the journal, found other data"
                    )
                return start
            self._take(segment, entry, end - start, held)
            start = end
        return start

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
        """Append these to the journal, and copy a few old messages. Raises OSError; the caller must then load it
        again."""
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
            # In order: a file records deletions of messages in the files before it, and must outlive them.
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
        """Messages of the oldest file, once less than half of all bytes is valid."""
        if len(self._segments) < 2 or self._total < 2 * (self._alive + self._segment):
            return []
        oldest = self._living[self._segments[0]]
        carried: list[Item] = []
        for number in oldest:
            if len(carried) >= STEP * written:
                break
            item = held.items.get(number) or held.dead.get(number)
            if item is not None and number not in known:
                carried.append(item)
        return carried

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
    """The entry of a valid line, otherwise None."""
    try:
        if int(text[:8], 16) != zlib.crc32(text[9:]):
            return None
        entry: Item | int = _decode(text[9:])
    except UNREADABLE:
        return None
    return entry
