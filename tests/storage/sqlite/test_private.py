"""The files next to a database can be read only by users who may read the database, from the moment they are
created."""

from __future__ import annotations

import logging
import os
import socket
import stat
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.storage.sqlite.support import AS_NOBODY, ask, job, names, opened
from treadle import StorageUnavailable
from treadle.storage.sqlite import SqliteStorage
from treadle.storage.sqlite.socket_folder import folder_for

pytestmark = pytest.mark.skipif(os.name != "posix", reason="permissions of POSIX")

NOBODY = 65534


def mode(path: Path | str) -> int:
    return stat.S_IMODE(os.lstat(path).st_mode)


@pytest.fixture(params=[0o000, 0o022])
def loose(request: pytest.FixtureRequest) -> Iterator[None]:
    """A umask that would give other users access."""
    before = os.umask(request.param)
    yield
    os.umask(before)


@pytest.fixture
def no_window(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fail on any mode that is corrected later: it would be open for a moment."""
    chmod = os.chmod

    def checked(path: str, wanted: int) -> None:
        assert not mode(path) & ~wanted, f"{path} was {mode(path):o} before it was {wanted:o}"
        chmod(path, wanted)

    monkeypatch.setattr("os.chmod", checked)


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder with a path short enough for sockets; pytest's folder may be too long."""
    with tempfile.TemporaryDirectory(prefix="treadle-") as found:
        yield Path(found)


def inside(folder: Path | str) -> dict[str, int]:
    """The modes of everything in a folder."""
    return {str(each.relative_to(folder)): mode(each) for each in Path(folder).rglob("*")}


@pytest.fixture
def deep(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A database whose path is too long for sockets next to it, and a folder for temporary files."""
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(folder / "none"))
    (folder / ("long" * 40)).mkdir()
    return folder / ("long" * 40) / "jobs.db"


@pytest.mark.usefixtures("loose", "no_window")
async def test_only_the_owner_can_read_any_file(folder: Path) -> None:
    path = folder / "jobs.db"
    async with opened(path) as storage:
        await storage.watch(["queue:x"], 0.001)
        await storage.enqueue([job("a", payload="card 4111")])
        await storage.claim(ask())
        found = inside(folder)
    sockets = {name for name in found if name.startswith("jobs.db-wake/")}
    assert len(sockets) == 1
    assert found.pop("jobs.db-wake") == 0o700
    assert found.keys() == {"jobs.db", "jobs.db-wal", "jobs.db-shm", "jobs.db-lock", *sockets}
    assert set(found.values()) == {0o600}


@pytest.mark.usefixtures("loose")
async def test_a_database_that_a_group_may_read_stays_so(folder: Path) -> None:
    path = folder / "jobs.db"
    path.touch()
    path.chmod(0o660)
    async with opened(path) as storage:
        await storage.watch(["queue:x"], 0.001)
        await storage.enqueue([job("a")])
        found = {mode(f"{path}{end}") for end in ("", "-wal", "-shm", "-lock")}
        assert (found, mode(f"{path}-wake")) == ({0o660}, 0o770)


@pytest.mark.usefixtures("loose", "no_window")
async def test_only_the_owner_can_use_sockets_of_a_long_path(deep: Path) -> None:
    async with opened(deep) as storage:
        await storage.watch(["queue:x"], 0.001)
        own = Path(tempfile.gettempdir(), f"treadle-{os.geteuid()}")
        assert own == Path(storage._notifier._folder).parent
        assert [mode(own), *inside(own).values()] == [0o700, 0o700, 0o600]


def test_a_folder_of_the_session_comes_before_the_one_for_temporary_files(tmp_path: Path) -> None:
    path = f"/{'long/' * 40}jobs.db"
    assert os.path.dirname(folder_for(path, {"XDG_RUNTIME_DIR": "/run"})) == "/run/treadle"
    for useless in ("relative", str(tmp_path / "none"), f"/tmp/{'x' * 90}"):
        assert folder_for(path, {"XDG_RUNTIME_DIR": useless}).startswith(tempfile.gettempdir())


async def refused(path: Path, folder: Path | str, caplog: pytest.LogCaptureFixture, words: str) -> None:
    """The folder is named in a warning and not used; jobs are stored and found all the same."""
    with caplog.at_level(logging.WARNING, "treadle"):
        async with opened(path) as storage:
            assert await storage.watch(["queue:x"], 0.001) == set()
            await storage.enqueue([job("a", queue="payroll")])
            assert await storage.watch(["queue:x"], 0.001) == set()
    [told] = [each.getMessage() for each in caplog.records]
    assert told.startswith(f"{folder} is not used")
    assert words in told


async def test_a_symbolic_link_is_refused(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    path, elsewhere = folder / "jobs.db", folder / "elsewhere"
    os.mkdir(elsewhere)
    os.symlink(elsewhere, f"{path}-wake")
    await refused(path, f"{path}-wake", caplog, "a symbolic link")
    assert not os.listdir(elsewhere)


@pytest.mark.parametrize("there", [True, False], ids=["a file", "nothing"])
async def test_a_lock_that_is_a_symbolic_link_is_refused(folder: Path, there: bool) -> None:
    """Notes for waiting processes are written into it."""
    path, elsewhere = folder / "jobs.db", folder / "elsewhere"
    if there:
        elsewhere.write_text("mine")
    os.symlink(elsewhere, f"{path}-lock")
    with pytest.raises(StorageUnavailable, match="-lock is a symbolic link"):
        await SqliteStorage(str(path)).open()
    assert ("elsewhere" in names(folder)) == there


async def test_an_open_folder_under_a_long_path_is_refused(deep: Path, caplog: pytest.LogCaptureFixture) -> None:
    prepared = os.path.join(tempfile.gettempdir(), f"treadle-{os.geteuid()}")
    os.mkdir(prepared)
    os.chmod(prepared, 0o777)
    await refused(deep, prepared, caplog, "mode is 0777, expected 0700")


@pytest.mark.skipif(not AS_NOBODY, reason="needs two users")
async def test_a_folder_of_another_user_is_refused_and_gets_no_datagram(
    folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path, prepared = folder / "jobs.db", f"{folder}/jobs.db-wake"
    os.mkdir(prepared)
    os.chmod(prepared, 0o777)
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as spy:
        spy.bind(f"{prepared}/999-spy")
        os.chown(prepared, NOBODY, NOBODY)
        spy.setblocking(False)
        await refused(path, prepared, caplog, f"it belongs to user {NOBODY}")
        with pytest.raises(BlockingIOError):
            spy.recv(65_536)


@pytest.mark.usefixtures("loose")
async def test_a_folder_that_was_left_open_is_closed(folder: Path) -> None:
    os.mkdir(folder / "jobs.db-wake", 0o777)
    async with opened(folder / "jobs.db") as storage:
        await storage.watch(["queue:x"], 0.001)
        assert mode(folder / "jobs.db-wake") == 0o700
