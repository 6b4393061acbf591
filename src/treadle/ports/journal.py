"""The append-only journal of a queue in files.

The cost of a push does not depend on the backlog. A line is a checksum and JSON: the current state of a message
(`Item`), or the number of a deleted one. Only the last line about a message counts. When a file has `SEGMENT` bytes,
the next one begins; its first line is the size of the one before. The oldest file is deleted when it has no valid line
left; to get there, each write copies some of its messages. `ports/head.py` says which files must be there.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Iterable
from pathlib import Path
from typing import Final

import msgspec

from treadle.core.errors import UNREADABLE
from treadle.ports.contract import CorruptQueue
from treadle.ports.disk import Files
from treadle.ports.head import Head, read_head, write_head
from treadle.ports.leases import Held, Item

SEGMENT: Final = 1 << 20  # bytes
SHOWN: Final = 24  # bytes of unexpected data in an error
STEP: Final = 4  # messages copied per message written, while old files have more invalid bytes than valid ones

_TORN: Final = re.compile(rb"(?:[0-9a-f\0]{0,8}|[0-9a-f\0]{8}[ \0].*)\Z", re.DOTALL)  # the beginning of a line

Before = tuple[int]  # the size of the file before
Entry = Item | int | Before

_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(Entry).decode


def line(entry: Entry) -> bytes:
    text = _encode(entry)
    return b"%08x %s\n" % (zlib.crc32(text), text)


class Journal:
    """The files of one queue, and which of them has the valid line of each message."""

    def __init__(self, files: Files, path: Path, segment: int = SEGMENT) -> None:
        self._files, self._path, self._segment = files, path, segment
        self._head_file = path.with_name(f"{path.name}.head")
        self._segments: list[Path] = []
        self._sizes: dict[Path, int] = {}
        self._total = self._alive = 0  # bytes of all files, and of the valid lines
        self._where: dict[int, tuple[Path, int]] = {}  # message -> (file of its valid line, length of that line)
        self._living: dict[Path, dict[int, None]] = {}  # file -> the messages with a valid line in it

    # --- reading

    def load(self, held: Held) -> None:
        """Read all files into `held`. Raises CorruptQueue and OSError."""
        self._segments = self._files.list(self._path)
        head = self._read_head()
        for segment in self._segments:
            self._living[segment] = {}
            data = self._files.read(segment)
            end = self._replay(segment, data, held)
            if head is not None and number_of(segment) == head.last and end < head.size:
                raise _unexpected(segment, end, f"entries up to byte {head.size:,}", data)
            if end < len(data):
                if segment is not self._segments[-1] or not _is_torn(data[end:]):
                    raise _unexpected(segment, end, "an entry of the journal", data)
                self._files.truncate(segment, end)  # a torn write, which was never confirmed
            self._sizes[segment] = end
            self._total += end

    def _read_head(self) -> Head | None:
        """None: nothing is confirmed, because the first write never ended. Raises CorruptQueue if a file is missing."""
        path, numbers = self._head_file, [number_of(segment) for segment in self._segments]
        data = self._files.read(path) if path.exists() else b""
        if not data.strip(b"\0"):  # a crash during the first write may leave zeros
            if numbers not in ([], [1]):
                raise CorruptQueue(str(path), f"expected the head of {len(numbers)} files, found no such file")
            return None
        head = read_head(data)
        if head is None:
            raise _unexpected(path, 0, "the head of the journal", data)
        expected = range(min([head.first, *numbers]), max([head.last, *numbers]) + 1)
        if missing := sorted(set(expected) - set(numbers)):
            raise CorruptQueue(str(self._file_of(missing[0])), "expected a file of the journal, found no such file")
        return head

    def _replay(self, segment: Path, data: bytes, held: Held) -> int:
        """Returns the end of the valid content."""
        start = 0
        while start < len(data):
            end = data.find(b"\n", start) + 1
            entry = _read(data[start : end - 1]) if end else None
            if entry is None:
                break
            if isinstance(entry, tuple):
                self._check_before(segment, entry[0])
            else:
                self._take(segment, entry, end - start, held)
            start = end
        return start

    def _check_before(self, segment: Path, size: int) -> None:
        before = self._file_of(number_of(segment) - 1)
        if self._sizes.get(before, size) != size:
            problem = f"expected {size:,} bytes, found {self._sizes[before]:,}"
            raise CorruptQueue(str(before), problem)

    def _take(self, segment: Path, entry: Item | int, size: int, held: Held) -> None:
        if isinstance(entry, int):
            held.drop(entry)
            held.dead.pop(entry, None)
            self._forget(entry)
        else:
            held.put(entry)
            self._stands(entry.number, segment, size)

    def set_aside(self, name: str) -> None:
        """Rename the files, so that the next journal begins empty."""
        for file in [self._head_file, *self._files.list(self._path)]:
            if file.exists():
                self._files.rename(file, file.with_name(f"{file.name}.corrupt-{name}"))

    # --- writing

    def write(self, entries: Iterable[Item | int], held: Held) -> None:
        """Append these to the journal, and copy a few old messages. Raises OSError; the caller must then load it
        again."""
        entries = list(entries)
        known = {entry if isinstance(entry, int) else entry.number for entry in entries}
        entries += self._to_carry(held, len(entries), known)
        segment = self._current()
        lines = [line(entry) for entry in entries]
        is_first = not self._sizes[segment]
        start = line((self._sizes[self._segments[-2]],)) if is_first and len(self._segments) > 1 else b""
        data = start + b"".join(lines)
        self._files.append(segment, data)
        self._sizes[segment] += len(data)
        self._total += len(data)
        for entry, text in zip(entries, lines, strict=True):
            if isinstance(entry, int):
                self._forget(entry)
            else:
                self._stands(entry.number, segment, len(text))
        dead = 0  # in order: a file records deletions of messages in the files before it, and must outlive them
        while dead < len(self._segments) - 1 and not self._living[self._segments[dead]]:
            dead += 1
        head = Head(number_of(self._segments[dead]), number_of(segment), self._sizes[segment])
        self._files.overwrite(self._head_file, write_head(head), sync=is_first or dead > 0)
        for oldest in self._segments[:dead]:
            self._files.delete(oldest)
            del self._living[self._segments.pop(0)]
            self._total -= self._sizes.pop(oldest)

    def _current(self) -> Path:
        if not self._segments or self._sizes[self._segments[-1]] >= self._segment:
            self._segments.append(self._file_of(number_of(self._segments[-1]) + 1 if self._segments else 1))
            self._living[self._segments[-1]], self._sizes[self._segments[-1]] = {}, 0
        return self._segments[-1]

    def _file_of(self, number: int) -> Path:
        return self._path.with_name(f"{self._path.name}.{number:010}")

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


def number_of(segment: Path) -> int:
    return int(segment.suffix[1:])


def _is_torn(tail: bytes) -> bool:
    """Whether a crash explains it: some lines of one write, the last of them cut, and parts that the disk never wrote,
    which are read as zeros."""
    *lines, last = tail.split(b"\n")
    return all(b"\0" in text or _read(text) is not None for text in lines) and _TORN.match(last) is not None


def _unexpected(path: Path, at: int, expected: str, data: bytes) -> CorruptQueue:
    rest = data[at : at + SHOWN]
    shown = f"{rest!r}{'...' if len(data) > at + SHOWN else ''}" if rest else "the end of the file"
    return CorruptQueue(str(path), f"byte {at:,}: expected {expected}, found {shown}")


def _read(text: bytes) -> Entry | None:
    """The entry of a valid line, otherwise None."""
    try:
        if int(text[:8], 16) != zlib.crc32(text[9:]):
            return None
        entry: Entry = _decode(text[9:])
    except UNREADABLE:
        return None
    return entry
