"""The file and the messages to systemd that report the health of a process."""

from __future__ import annotations

import asyncio
import os
import socket
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.waiting import Signal, patient
from treadle.errors import BadOption
from treadle.worker.probes import HealthReporter, Notifier, Probes, Verdict, first_problem, reporter
from treadle.worker.probes.reporter import HealthFile

READY = Verdict(None, None, "2 worker processes claim jobs")
AWAY = Verdict(None, "worker 1: the storage has been unavailable for 3 s", "")
STUCK = Verdict("worker 1: its event loop has not answered for 9 s", None, "")

linux_only = pytest.mark.skipif(sys.platform != "linux", reason="the service manager is systemd")


class Manager:
    """The socket of a service manager. `next` is the next message, by line."""

    def __init__(self, address: str) -> None:
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.bind(address)
        self._socket.setblocking(False)

    async def next(self) -> list[str]:
        async with patient("a message to the service manager"):
            return (await asyncio.get_running_loop().sock_recv(self._socket, 4096)).decode().split("\n")

    async def until(self, line: str) -> list[str]:
        """The first message with this line."""
        while line not in (found := await self.next()):
            pass
        return found

    def close(self) -> None:
        self._socket.close()


@contextmanager
def managed(patch: pytest.MonkeyPatch, address: str, bound: str, **more: str) -> Iterator[Manager]:
    """A service manager that is named in the environment."""
    manager = Manager(bound)
    for name, value in {"NOTIFY_SOCKET": address, **more}.items():
        patch.setenv(name, value)
    try:
        yield manager
    finally:
        manager.close()


class Health:
    """A process whose verdict a test sets."""

    def __init__(self, verdict: Verdict) -> None:
        self.verdict = verdict

    def __call__(self) -> Verdict:
        return self.verdict


@pytest.fixture(autouse=True)
def fast(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reporter, "BEAT", 0.001)


@linux_only
@pytest.mark.parametrize("is_abstract", [False, True])
async def test_systemd_is_notified_of_the_state_of_the_process(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, is_abstract: bool
) -> None:
    name = f"treadle-test-{os.getpid()}"
    address, bound = (f"@{name}", f"\0{name}") if is_abstract else (str(tmp_path / "n"), str(tmp_path / "n"))
    health = Health(AWAY)
    with managed(monkeypatch, address, bound, WATCHDOG_USEC="2000", WATCHDOG_PID=str(os.getpid())) as manager:
        async with HealthReporter(Probes(), health) as reporting:
            assert "NOTIFY_SOCKET" not in os.environ  # a child process must not speak for this one
            assert await manager.next() == [
                "WATCHDOG=1",
                "EXTEND_TIMEOUT_USEC=30000000",
                "STATUS=not ready: worker 1: the storage has been unavailable for 3 s",
            ]
            health.verdict = READY
            assert "STATUS=ready: 2 worker processes claim jobs" in await manager.until("READY=1")
            assert await manager.until("WATCHDOG=1") == ["WATCHDOG=1"]
            reporting.reloading()
            assert (await manager.until("RELOADING=1"))[1].startswith("MONOTONIC_USEC=")
            reporting.reloaded()
            await manager.until("READY=1")
            reporting.stopping(70.0)
            assert (await manager.until("STOPPING=1"))[1:] == ["EXTEND_TIMEOUT_USEC=70000000", "STATUS=stopping"]
            await manager.until("STATUS=not ready: stopping")


@linux_only
async def test_a_reload_is_over_only_when_the_process_is_ready(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A reload of a process that was never ready is no READY=1, and a process that stops reports no reload."""
    health, path = Health(AWAY), str(tmp_path / "n")
    with managed(monkeypatch, path, path) as manager:
        async with HealthReporter(Probes(), health) as reporting:
            await manager.until("EXTEND_TIMEOUT_USEC=30000000")
            reporting.reloading()
            await manager.until("RELOADING=1")
            reporting.reloaded()
            monkeypatch.setattr(reporter, "EXTEND", 40.0)  # a mark in the messages from here on
            assert "READY=1" not in await manager.until("EXTEND_TIMEOUT_USEC=40000000")
            health.verdict = READY
            await manager.until("READY=1")
            reporting.reloading()
            reporting.stopping(70.0)
            reporting.reloaded()
            reporting.reloading()
            reporting.reloaded()
            await manager.until("STOPPING=1")
            assert await manager.next() == ["STATUS=not ready: stopping"]


@linux_only
async def test_a_message_that_was_not_sent_is_sent_again(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The socket of the service manager appears late, or was full."""
    path, tries = str(tmp_path / "n"), Signal().after(monkeypatch, Notifier, "send")
    monkeypatch.setenv("NOTIFY_SOCKET", path)
    async with HealthReporter(Probes(), Health(READY)):
        await tries.again("messages that cannot be sent", 3)
        with managed(monkeypatch, path, path) as manager:
            assert "STATUS=ready: 2 worker processes claim jobs" in await manager.until("READY=1")


@linux_only
async def test_the_watchdog_gets_nothing_from_a_stuck_process(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    health, path = Health(STUCK), str(tmp_path / "n")
    with managed(monkeypatch, path, path, WATCHDOG_USEC="2000") as manager:
        async with HealthReporter(Probes(), health):
            assert await manager.next() == [f"STATUS=not alive: {STUCK.stuck}"]
            health.verdict = AWAY
            assert "WATCHDOG=1" in await manager.next()  # nothing came in between: a storage that is away is alive


@linux_only
def test_variables_of_the_service_manager_are_checked(tmp_path: Path) -> None:
    path = str(tmp_path / "n")
    other = {"NOTIFY_SOCKET": path, "WATCHDOG_USEC": "20000000", "WATCHDOG_PID": "1"}
    assert Notifier.take(other).watchdog is None  # meant for another process
    assert other == {}
    assert Notifier.take({"NOTIFY_SOCKET": path, "WATCHDOG_USEC": "20000000"}).watchdog == 20.0
    assert not Notifier.take({"NOTIFY_SOCKET": "vsock:2:9999"})
    assert not Notifier.take({"WATCHDOG_USEC": "20000000"})
    Notifier().send("READY=1")


@linux_only
def test_a_missing_manager_is_logged_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    found = Notifier(str(tmp_path / "nobody"))
    for _ in range(3):
        found.send("WATCHDOG=1")
    assert caplog.text.count("cannot notify the service manager") == 1


# --- the file


@pytest.fixture
def beats(monkeypatch: pytest.MonkeyPatch) -> Signal:
    """Sent after each beat of a health file."""
    return Signal().after(monkeypatch, HealthFile, "beat")


def text_of(path: Path) -> str:
    return path.read_text() if path.exists() else ""


async def test_the_file_is_replaced_while_the_process_is_alive(tmp_path: Path, beats: Signal) -> None:
    path, health = tmp_path / "alive", Health(READY)
    path.write_text("of the process before\n")
    async with HealthReporter(Probes(file=path, systemd=False), health):
        assert text_of(path) != "of the process before\n"
        await beats.until(lambda: text_of(path) == "ready: 2 worker processes claim jobs\n", "the first beat")
        before = os.stat(path).st_ino
        await beats.until(lambda: os.stat(path).st_ino != before, "another file")  # never written in place
        health.verdict = AWAY
        await beats.until(lambda: text_of(path).startswith("not ready: worker 1: the storage"), "the outage")
    assert os.listdir(tmp_path) == []


async def test_a_stuck_process_does_not_renew_its_file(tmp_path: Path, beats: Signal) -> None:
    path, health = tmp_path / "alive", Health(READY)
    async with HealthReporter(Probes(file=path, systemd=False), health):
        await beats.until(lambda: text_of(path), "the first beat")
        health.verdict = STUCK
        await beats.again("a beat of a stuck process")
        before = os.stat(path)
        await beats.again("more of them", 3)
        assert (os.stat(path).st_ino, os.stat(path).st_mtime_ns) == (before.st_ino, before.st_mtime_ns)


async def test_a_file_that_cannot_be_written_is_logged_once(
    tmp_path: Path, beats: Signal, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "none" / "alive"
    async with HealthReporter(Probes(file=path, systemd=False), Health(READY)):
        await beats.again("beats that fail", 3)
        assert caplog.text.count("cannot write the health file") == 1
        os.mkdir(path.parent)
        await beats.until(lambda: text_of(path).startswith("ready"), "a beat that succeeds")


@linux_only
async def test_a_link_in_place_of_the_new_file_is_not_followed(tmp_path: Path, beats: Signal) -> None:
    """In a folder that others can write, the name of the new file can be guessed."""
    path, other = tmp_path / "alive", tmp_path / "precious"
    other.write_text("kept")
    os.symlink(other, tmp_path / f".alive.{os.getpid()}")
    reporting = HealthReporter(Probes(file=path, systemd=False), Health(READY))
    reporting._file.remove = lambda: None  # type: ignore[union-attr, method-assign]  # the link is made after the start
    async with reporting:
        await beats.until(lambda: text_of(path).startswith("ready"), "the first beat")
    assert other.read_text() == "kept"


def test_the_first_problem_of_several_parts_is_shown() -> None:
    assert first_problem([READY, AWAY, STUCK]).line == f"not alive: {STUCK.stuck}"
    assert first_problem([READY, AWAY]).problem == AWAY.unready
    assert first_problem([READY, READY]) == READY


def test_a_wrong_address_is_refused_at_the_call() -> None:
    with pytest.raises(BadOption, match="expected a port"):
        Probes("nowhere")
