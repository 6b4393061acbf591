"""Commits of one process reach another: by a datagram at once, otherwise by polling the file."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import pytest

from tests.storage.sqlite.support import AS_NOBODY, ask, child, done, job, line, names, open_folder, opened, swept, tell
from tests.waiting import Signal
from treadle.core.model import Presence
from treadle.storage.sqlite import notifier
from treadle_testkit.shows import shows

SENDER = """
    await storage.enqueue([NewJob(id="first", task="t", queue="other")])
    say("ready")
    while sys.stdin.readline():
        await storage.enqueue([NewJob(id=f"j{time.monotonic_ns()}", task="t")])
        say("sent")
"""


async def hears(storage: object, topic: str, act: object, within: float = 5.0) -> float:
    """Seconds until the other process is notified."""
    loop = asyncio.get_running_loop()
    waiting = asyncio.ensure_future(storage.watch([topic], within))  # type: ignore[attr-defined]
    await asyncio.sleep(0)
    begun = loop.time()
    act()  # type: ignore[operator]
    assert await waiting == {topic}
    return loop.time() - begun


async def test_a_datagram_wakes_another_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(notifier, "POLL", 60.0)  # only the datagram is fast enough
    path = tmp_path / "jobs.db"
    async with opened(path) as storage:
        with child(path, SENDER) as sender:
            assert line(sender) == "ready"
            for _ in range(3):
                await hears(storage, "queue:default", lambda: tell(sender))
                assert line(sender) == "sent"


async def test_without_datagrams_changes_are_polled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The folder of the sockets was deleted; polling the version of the file shows the change within moments."""
    monkeypatch.setattr(notifier, "POLL", 0.05)
    path = tmp_path / "jobs.db"
    async with opened(path) as storage:
        with child(path, SENDER) as sender:
            assert line(sender) == "ready"
            assert await storage.watch(["queue:nothing"], 0.01) == set()
            swept(storage._notifier._folder)
            await hears(storage, "queue:default", lambda: tell(sender))
            await hears(storage, "queue:default", lambda: tell(sender))


async def test_storages_of_one_process_notify_each_other(tmp_path: Path) -> None:
    path = tmp_path / "jobs.db"
    async with opened(path) as one, opened(path) as two:
        waiting = asyncio.ensure_future(two.watch(["job:a", "queue:default"], 5))
        await asyncio.sleep(0)
        await one.enqueue([job("a")])
        assert await waiting == {"queue:default"}
        [row] = (await one.claim(ask())).records
        waiting = asyncio.ensure_future(two.watch(["job:a"], 5))
        await asyncio.sleep(0)
        await one.settle([done(row)])
        assert await waiting == {"job:a"}


async def test_a_call_that_ends_while_the_storage_is_closed_leaves_no_socket_open(tmp_path: Path) -> None:
    """Its commit is published, which opens the socket to send from."""
    path = tmp_path / "jobs.db"
    async with opened(path) as other, opened(path, "full") as storage:
        waiting = asyncio.ensure_future(other.watch(["queue:default"], 5))
        await asyncio.sleep(0)
        call = asyncio.ensure_future(storage.enqueue([job("a")]))
        await asyncio.sleep(0)  # its commit waits for the disk, in a thread
        await storage.close()
        assert (call.done(), await waiting) == (True, {"queue:default"})
        assert storage._notifier._sender is None


async def test_own_commits_do_not_look_like_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(notifier, "POLL", 0.01)
    looks = Signal().after(monkeypatch, notifier.Notifier, "_poll")
    async with opened(tmp_path / "jobs.db") as storage:
        waiting = asyncio.ensure_future(storage.watch(["queue:other", "queue:last"], 60))
        for number in range(20):
            await storage.enqueue([job(f"j{number}")])
            await looks.again("a look at the file")
        await storage.enqueue([job("last", queue="last")])
        assert await waiting == {"queue:last"}


@shows("heartbeats of other processes at a SQLite file do not make a worker send one")
async def test_a_heartbeat_causes_no_heartbeats_of_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(notifier, "POLL", 0.01)
    path = tmp_path / "jobs.db"
    async with opened(path) as mine, opened(path) as other:
        looks = Signal().after(monkeypatch, notifier.Notifier, "_poll")
        waiting = asyncio.ensure_future(mine.watch(["worker:w"], 60))
        for _ in range(4):
            await other.heartbeat(Presence(worker="o", host="h", pid=1), [], 10)
            for _ in range(4):  # a look that saw the commit, and the next one
                await looks.again("a look at the file")
        assert not waiting.done()
        mine._waiters.wake(["worker:w"])
        assert await waiting == {"worker:w"}


async def test_sockets_of_dead_processes_are_removed(tmp_path: Path) -> None:
    path = tmp_path / "jobs.db"
    async with opened(path) as storage:
        with child(
            path,
            "task = asyncio.ensure_future(storage.watch(['queue:x'], 60))\nawait asyncio.sleep(0)\n"
            "say('listens')\nsys.stdin.readline()\nos._exit(1)",
        ) as process:
            assert line(process) == "listens"
            assert len(names(storage._notifier._folder)) == 1
            tell(process)
            process.wait()
        await storage.enqueue([job("a")])
        assert names(storage._notifier._folder) == []


async def test_an_enqueue_succeeds_although_no_process_can_be_notified(tmp_path: Path) -> None:
    """The folder cannot be read: it belongs to another user, or was deleted between two checks."""
    async with opened(tmp_path / "jobs.db") as storage:
        os.close(os.open(storage._notifier._folder, os.O_CREAT))  # it exists, and cannot be listed
        for call in (storage.enqueue([job("a")]), storage.enqueue([job("b"), job("c")])):
            assert await call
        assert await storage.watch(["queue:x"], 0.001) == set()


@pytest.mark.skipif(not AS_NOBODY, reason="needs two users")
async def test_two_users_with_access_to_the_file_notify_each_other(monkeypatch: pytest.MonkeyPatch) -> None:
    """The umask of the process that came first does not restrict the others."""
    monkeypatch.setattr(notifier, "POLL", 60.0)  # by datagram, not by polling
    before = os.umask(0o077)
    try:
        with open_folder(0o777) as folder:
            path = folder / "jobs.db"
            path.touch()
            path.chmod(0o666)
            async with opened(path) as storage:
                await storage.watch(["queue:x"], 0.001)
                with child(path, SENDER, AS_NOBODY) as sender:
                    assert line(sender) == "ready"
                    await hears(storage, "queue:default", lambda: tell(sender))
                    assert line(sender) == "sent"
    finally:
        os.umask(before)


async def test_a_closed_storage_leaves_no_socket(tmp_path: Path) -> None:
    path = tmp_path / "jobs.db"
    async with opened(path) as storage:
        await storage.watch(["queue:x"], 0.001)
        assert len(names(storage._notifier._folder)) == 1
    assert names(storage._notifier._folder) == []
    assert names(tmp_path) == ["jobs.db", "jobs.db-lock"]


async def test_a_path_too_long_for_a_socket(tmp_path: Path) -> None:
    folder = tmp_path / ("deep" * 25)
    folder.mkdir()
    path = folder / "jobs.db"
    async with opened(path) as one, opened(path) as two:
        waiting = asyncio.ensure_future(two.watch(["queue:default"], 5))
        await asyncio.sleep(0)
        await one.enqueue([job("a")])
        assert await waiting == {"queue:default"}


def test_many_topics_become_a_kind() -> None:
    few = notifier._few({"queue:a", *(f"job:{n}" for n in range(200))})
    assert sorted(few) == ["job:*", "queue:a"]


@pytest.mark.skipif(os.name != "posix", reason="POSIX has both")
async def test_udp_where_there_are_no_unix_sockets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(notifier, "UNIX", False)
    monkeypatch.setattr(notifier, "POLL", 60.0)
    path = tmp_path / "jobs.db"
    async with opened(path) as one, opened(path) as two:
        waiting = asyncio.ensure_future(two.watch(["queue:default"], 5))
        await asyncio.sleep(0)
        await one.enqueue([job("a")])
        assert await waiting == {"queue:default"}
