"""A queue in local files: messages survive the process, and each push costs the same.

Only one process at a time can have it open.
"""

from __future__ import annotations

import logging
import secrets
from collections.abc import Callable
from pathlib import Path
from typing import Literal

from treadle.concurrency import forks
from treadle.core import clock as clocks
from treadle.ports.changes import Change, Changes
from treadle.ports.contract import CorruptQueue, Pulled
from treadle.ports.disk import Disk, Files
from treadle.ports.journal import SEGMENT, Journal
from treadle.ports.leases import Held, Item, handle_of
from treadle.ports.memory import Dead

log = logging.getLogger("treadle")

Entries = list[Item | int]


class Content:
    """The messages in memory, and the entries of the journal that a group of changes adds."""

    __slots__ = ("entries", "held")

    def __init__(self, held: Held) -> None:
        self.held = held
        self.entries: Entries = []

    def store(self, item: Item) -> None:
        self.held.put(item)
        self.entries.append(item)

    def drop(self, number: int) -> None:
        self.held.drop(number)
        self.entries.append(number)


class FileQueue:
    """A queue in the files `<file>.0000000001` and so on; see `file_queue`."""

    outlives = True  # the process; see `ports.contract.three`

    def __init__(
        self,
        file: str | Path,
        *,
        clock: clocks.Clock = clocks.wall,
        fs: Files | None = None,
        on_error: Callable[[Exception], None] | None = None,
        corrupt: Literal["refuse", "aside"] = "refuse",
        segment: int = SEGMENT,
    ) -> None:
        self._path, self._now, self._files = Path(file), clock, fs or Disk()
        self._lock_file = self._path.with_name(f"{self._path.name}.lock")
        self._tell, self._corrupt, self._segment = on_error, corrupt, segment
        self._held: Held | None = None
        self._journal = Journal(self._files, self._path, segment)
        self._lock: int | None = None
        self._name = ""
        self._users: set[str] = set()
        # Calls that arrive during a write share the next write: one sync for many.
        self._changes = Changes[Content](str(self._path), self._step, left=self._reload)

    async def push(self, body: str, *, delay: float = 0.0, dedupe_key: str | None = None) -> None:
        for text in (body, dedupe_key or ""):
            text.encode()  # an unwritable text must fail here, not together with the whole group

        def change(content: Content, now: float) -> None:
            if not content.held.has_key(dedupe_key):
                visible_at = now + delay if delay > 0 else 0.0
                content.store(Item(content.held.next_number(), body, visible_at, dedupe_key))

        await self._changes.do(change)

    async def pop(self, limit: int, lease: float) -> list[Pulled]:
        def change(content: Content, now: float) -> list[Pulled]:
            taken = content.held.take(limit, lease, now, self._name)
            content.entries += taken
            return [Pulled(item.body, handle_of(item), item.attempt) for item in taken]

        return await self._changes.do(change)

    async def extend(self, handle: str, lease: float) -> bool:
        # Not stored in the journal: leases end with the process.
        return await self._of(handle, lambda item, content, now: content.held.put(item.extended(now + lease)))

    async def ack(self, handle: str) -> bool:
        return await self._of(handle, lambda item, content, now: content.drop(item.number))

    async def release(self, handle: str, delay: float = 0.0) -> bool:
        return await self._of(
            handle, lambda item, content, now: content.store(item.released(now + delay if delay > 0 else 0.0))
        )

    async def dead_letter(self, handle: str, reason: str) -> bool:
        text = reason.encode(errors="replace").decode()
        return await self._of(handle, lambda item, content, now: content.store(item.buried(text)))

    async def size(self) -> int:
        return await self._changes.do(lambda content, now: len(content.held))

    async def dead(self) -> list[Dead]:
        """The dead-lettered messages with their reasons."""
        return await self._changes.do(
            lambda content, now: [Dead(item.body, item.dead or "") for item in content.held.dead.values()]
        )

    async def alone(self, user: str) -> bool:
        """Lock the files against other processes. True at the first call for this user: whatever other processes held
        is theirs no longer. Raises BlockingIOError while another process has locked them."""

        def first(content: Content, now: float) -> bool:
            is_new = user not in self._users
            self._users.add(user)
            return is_new

        return await self._changes.do(first)

    async def close(self) -> None:
        """Close the queue, so that another process can open it. The next call opens it again."""
        await self._changes.idle()
        self._let_go()

    # --- one group at a time, and the disk in a thread

    async def _of(self, handle: str, change: Callable[[Item, Content, float], None]) -> bool:
        def checked(content: Content, now: float) -> bool:
            item = content.held.of(handle)
            if item is not None:
                change(item, content, now)
            return item is not None

        return await self._changes.do(checked)

    async def _step(self, group: list[Change[Content]]) -> None:
        if self._held is None:
            self._held = await self._changes.in_thread(self._load)
        content, now = Content(self._held), self._now()
        answers = [change.apply(content, now) for change in group]
        if content.entries:
            await self._store(content.entries, content.held)
        for change, answer in zip(group, answers, strict=True):
            change.reply(answer)

    async def _store(self, entries: Entries, held: Held) -> None:
        try:
            await self._changes.in_thread(lambda: self._write(entries, held))
        except Exception as error:
            self._reload()  # the disk may have less than memory
            self._report(error)
            raise

    def _load(self) -> Held:
        if self._lock is None:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            with forks.opening:
                self._lock = self._files.lock(self._lock_file)
                forks.register(self)
        self._journal, held = Journal(self._files, self._path, self._segment), Held()
        try:
            self._journal.load(held)
        except CorruptQueue as error:
            if self._corrupt == "refuse":
                raise
            self._report(error)
            self._journal.set_aside(secrets.token_hex(4))
            self._journal, held = Journal(self._files, self._path, self._segment), Held()
        for item in [item for item in held.items.values() if item.token is not None]:
            item.token, item.at = None, 0.0
            held.put(item)
        self._name = secrets.token_hex(4)  # leases of earlier processes have other names
        return held

    def _write(self, entries: Entries, held: Held) -> None:
        if self._lock is not None and not self._files.is_in_place(self._lock, self._lock_file):
            self._let_go()
            raise OSError(
                f"{self._lock_file} was deleted or replaced while this queue was in use, and perhaps its messages too: "
                "repeat the call, which continues with the present files"
            )
        self._journal.write(entries, held)

    def forked(self) -> None:
        """In a child the queue is closed; the parent has it open."""
        self._let_go()
        self._users.clear()
        self._changes.forget()

    def _reload(self) -> None:
        """Let the next step read the files again, because an event loop was closed during a write."""
        self._held = None

    def _let_go(self) -> None:
        self._reload()
        if self._lock is not None:
            self._files.unlock(self._lock)
            self._lock = None

    def _report(self, error: Exception) -> None:
        if self._tell is not None:
            try:
                self._tell(error)
            except Exception:
                log.exception("the on_error function of the queue %s failed", self._path)


def file_queue(
    file: str | Path,
    *,
    clock: clocks.Clock = clocks.wall,
    fs: Files | None = None,
    on_error: Callable[[Exception], None] | None = None,
    corrupt: Literal["refuse", "aside"] = "refuse",
) -> FileQueue:
    """A queue in files next to each other: `file_queue("queue.log")` writes `queue.log.0000000001` and so on.

    Pushes, acks and dead letters are on disk when the call returns. Leases end with the process: at the next opening,
    leased messages are visible again, and the attempt stays counted. The queue is opened at its first use, by one
    process at a time.

    fs        the file operations, for tests
    on_error  called with errors of the disk, in addition to the call that fails; and with the error of a renamed file
    corrupt   "refuse": content that no crash explains raises CorruptQueue at each call; "aside": files are renamed to
              `....corrupt-...`, and the queue starts empty
    """
    return FileQueue(file, clock=clock, fs=fs, on_error=on_error, corrupt=corrupt)
