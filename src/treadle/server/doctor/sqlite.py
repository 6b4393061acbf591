"""Checks of a SQLite file for `treadle doctor`: schema, permissions, file system, locks, free space, log.

SQLite opens the file, read-only. This process may have it open as a storage too: if the check opened and closed the
file itself, the process would lose the locks of its connections, and confirmed jobs would be lost.
"""

from __future__ import annotations

import contextlib
import os
import shlex
import shutil
import sqlite3
import stat
import sys
from collections.abc import Iterator
from pathlib import Path

from treadle.core import file_urls
from treadle.core.words import plural, size
from treadle.server.doctor.common import Check, fail, of_risk, ok, warn

LITTLE, LEAST = 1024**3, 64 * 1024**2  # free bytes below which to warn, to fail
LONG_LOG = 256 * 1024**2  # bytes of write-ahead log above which to warn: long reads keep it from being truncated
GUARDED = (3, 51, 3)  # earlier versions may lose writes when two checkpoints overlap


def file_of(url: str | None) -> Path | None:
    """The file of a SQLite URL, which may be relative to the current directory; None for other URLs."""
    file = file_urls.read(url)
    return None if file is None else Path(file.path)


@contextlib.contextmanager
def looking(file: Path) -> Iterator[sqlite3.Connection]:
    """A read-only connection, which creates no file."""
    from treadle.storage import read_only_uri

    db = sqlite3.connect(read_only_uri(str(file))[0], uri=True, timeout=5)
    try:
        yield db
    finally:
        db.close()


def schema(file: Path) -> int | None:
    """The schema number of the file; None if there is none, or it cannot be read."""
    if not file.is_file():
        return None
    try:
        with looking(file) as db:
            number = db.execute("SELECT max(number) FROM migration").fetchone()[0]
            return number if isinstance(number, int) else None
    except sqlite3.Error:
        return None


def checks(url: str, file: Path, full: bool) -> Iterator[Check]:
    """The checks of the file, without opening it as a storage."""
    file = file.absolute()
    if not file.is_file():
        yield fail(
            "file", f"there is no database {file}", "give --url or --app, or create it: `treadle storage migrate`"
        )
        return
    yield _writable(file)
    yield _permissions(file)
    yield from _place(url, file)
    yield _room(file)
    yield _log(file)
    yield _library()
    yield from _inside(file, full)


def _writable(file: Path) -> Check:
    if not os.access(file, os.R_OK | os.W_OK):
        return fail("file", f"this user cannot read and write {file}", "give the worker's user both rights")
    if not os.access(file.parent, os.W_OK | os.X_OK):
        return fail(
            "file", f"this user cannot create files in {file.parent}", "make it writable: SQLite keeps its log there"
        )
    return ok("file", f"{file}, {size(file.stat().st_size)}; the file and its folder are writable")


def _permissions(file: Path) -> Check:
    """Whether other users can read the files: database and log contain the arguments and results of jobs."""
    loose = [f"{path.name} ({mode:04o})" for path, mode, _ in loose_files(file)]
    if loose:
        return warn(
            "privacy",
            f"other users of this machine can read {', '.join(loose)}",
            f"unless that is intended: `treadle doctor --repair`, or `chmod -R o-rwx {shlex.quote(str(file))}*`",
        )
    return ok("privacy", "other users of this machine cannot read the jobs")


def loose_files(file: Path) -> Iterator[tuple[Path, int, int]]:
    """Each file of the database that other users may access: path, permissions, and the permissions to set.

    The group keeps its permissions only if they exceed those of other users; otherwise nobody chose them: they come
    from the umask.
    """
    for path in (file, *(Path(f"{file}{end}") for end in ("-wal", "-shm", "-lock", "-wake"))):
        with contextlib.suppress(OSError):
            status = path.lstat()
            mode, others = stat.S_IMODE(status.st_mode), status.st_mode & 0o007
            group = status.st_mode & 0o070 if (status.st_mode & 0o070) >> 3 & ~others else 0
            if others and os.name == "posix" and not stat.S_ISLNK(status.st_mode):
                yield path, mode, mode & 0o700 | group


def _place(url: str, file: Path) -> Iterator[Check]:
    """The file system and its locks, and the promise of the URL."""
    from treadle.storage import file_system, risks_of_file

    known = file_urls.read(url)
    synchronous = "full" if known is None else known.options.get("synchronous", "full")
    risks = {risk.name: risk for risk in risks_of_file(str(file), synchronous)}
    yield from map(of_risk, risks.values())
    if "file system" not in risks:
        yield ok("file system", f"{file_system(file.parent) or 'unknown kind'}, not a known network file system")
    if "locks" not in risks and sys.platform != "win32":
        yield ok("locks", "flock works here")
    if "durability" not in risks:
        yield _promise(synchronous)


def _room(file: Path) -> Check:
    free, used = shutil.disk_usage(file.parent).free, file.stat().st_size
    text = f"{size(free)} free"
    if free < LEAST:
        return fail("room", text, "free some space: on a full disk no job can be enqueued or settled")
    if free < max(LITTLE, used):
        return warn("room", text, "a vacuum needs as much space as the file has now")
    return ok("room", text)


def _log(file: Path) -> Check:
    wal = Path(f"{file}-wal")
    length = wal.stat().st_size if wal.is_file() else 0
    if length > LONG_LOG:
        return warn(
            "log",
            f"the write-ahead log is {size(length)}",
            "a program keeps a read transaction open; find and close it",
        )
    return ok("log", f"the write-ahead log is {size(length)}")


def _promise(synchronous: str) -> Check:
    promises = {
        "full": "confirmed changes are on the disk and survive a power failure",
        "normal": "confirmed changes survive any crash of a process; a power failure may lose the latest ones",
    }
    return ok("durability", f"synchronous={synchronous}: {promises.get(synchronous, 'confirmed changes may be lost')}")


def _library() -> Check:
    text = f"SQLite {sqlite3.sqlite_version}"
    if sqlite3.sqlite_version_info < (3, 35):
        return fail("library", text, "install a newer Python: SQLite 3.35 or newer is needed")
    if sqlite3.sqlite_version_info < GUARDED:
        return ok(
            "library",
            f"{text}; its checkpoints may collide with a writer (fixed in 3.51.3); Treadle lets nobody write during "
            "its own. If the file has tables of your own, see 'SQLite in production' in the documentation",
        )
    return ok("library", text)


def _inside(file: Path, full: bool) -> Iterator[Check]:
    try:
        with looking(file) as db:
            db.execute("SELECT count(*) FROM sqlite_master").fetchone()  # raises if the file is not a database
            if full:
                problems = [text for (text,) in db.execute("PRAGMA integrity_check(20)")]
                if problems == ["ok"]:
                    yield ok("integrity", "all pages are intact")
                else:
                    yield fail(
                        "integrity",
                        f"{plural(len(problems), 'problem')}: {problems[0]}",
                        "stop all workers, copy the file, and recover it: sqlite3 FILE .recover",
                    )
    except sqlite3.Error as error:
        yield fail(
            "content",
            f"the file cannot be read: {error}",
            "if it is not a Treadle database, give another file as --url",
        )
