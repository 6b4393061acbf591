"""The folder in which the processes at a file have their sockets: only users who may read the file have access to it.

A folder that another user prepared could hold sockets of that user, and what is sent there names queues and jobs.
"""

from __future__ import annotations

import hashlib
import logging
import os
import stat
import tempfile
from collections.abc import Mapping
from typing import Final

from treadle.core.private_files import FOLDER, beside_mode, share

log = logging.getLogger("treadle")

LONGEST: Final = 102  # bytes of a unix socket's path (the kernel's limit is 108, or 104)
NAME: Final = 20  # bytes of a socket's name, with the slash
POSIX: Final = os.name == "posix"


class Refused(OSError):
    """The folder is not used; the message says why."""


class SocketFolder:
    """The folder for one database; it may not exist yet."""

    def __init__(self, path: str) -> None:
        self._file = path
        self.path = folder_for(path)
        self.beside = self.path == f"{path}-wake"  # then all processes that can read in it may also read the file
        self._checked: tuple[int, int, int] | None = None  # inode, owner and mode that passed the check
        self._is_logged = False

    def make(self) -> None:
        """Create the folder if it is missing. Raises OSError if there can be none."""
        try:
            if not self.beside:
                _make_own(os.path.dirname(self.path))
            try:
                os.mkdir(self.path, FOLDER)
            except FileExistsError:
                self._tighten()
            else:
                if self.beside:
                    share(self.path, self._file)
            self.changed()
        except Refused as refused:
            if not self._is_logged:
                self._is_logged = True
                log.warning("%s", refused)
            raise

    def changed(self) -> int:
        """When it was last changed, in nanoseconds. Raises OSError if there is none, Refused if another user may have
        prepared it."""
        status = os.lstat(self.path)
        if (status.st_ino, status.st_uid, status.st_mode) != self._checked:
            if POSIX:
                _check(self.path, status, *self._allowed(status.st_gid))
            self._checked = status.st_ino, status.st_uid, status.st_mode
        return status.st_mtime_ns

    def _allowed(self, group: int) -> tuple[int, bool, frozenset[int]]:
        """The permissions that users other than the owner may have there, whether any user may own it, and which users
        otherwise."""
        if not self.beside:
            return 0, False, frozenset((os.geteuid(),))
        file = os.stat(self._file)
        any_user = bool(file.st_mode & 0o002) or bool(file.st_mode & 0o020 and file.st_gid == group)
        return beside_mode(file.st_mode, True), any_user, frozenset((os.geteuid(), file.st_uid))

    def _tighten(self) -> None:
        """Remove permissions that an older Treadle or a loose umask left."""
        status = os.lstat(self.path)
        if POSIX and stat.S_ISDIR(status.st_mode) and status.st_uid == os.geteuid():
            allowed = self._allowed(status.st_gid)[0] | FOLDER
            if stat.S_IMODE(status.st_mode) & ~allowed:
                os.chmod(self.path, stat.S_IMODE(status.st_mode) & allowed)


def folder_for(path: str, environment: Mapping[str, str] = os.environ) -> str:
    """The folder next to the file; if that path is too long for a socket, a folder of this user."""
    beside = f"{path}-wake"
    if not POSIX or len(os.fsencode(beside)) + NAME <= LONGEST:
        return beside
    name = hashlib.blake2b(os.fsencode(os.path.realpath(path)), digest_size=12).hexdigest()
    own = environment.get("XDG_RUNTIME_DIR") or f"/run/user/{os.geteuid()}"
    if os.path.isabs(own) and os.path.isdir(own):
        private = os.path.join(own, "treadle", name)
        if len(os.fsencode(private)) + NAME <= LONGEST:
            return private
    return os.path.join(tempfile.gettempdir(), f"treadle-{os.geteuid()}", name)


def _make_own(folder: str) -> None:
    try:
        os.mkdir(folder, FOLDER)
    except FileExistsError:
        _check(folder, os.lstat(folder), 0, False, frozenset((os.geteuid(),)))


def _check(path: str, status: os.stat_result, allowed: int, any_user: bool, users: frozenset[int]) -> None:
    """Raise Refused for a folder that another user may have prepared."""
    mode, expected = stat.S_IMODE(status.st_mode), FOLDER | allowed
    if not stat.S_ISDIR(status.st_mode):
        what = f"it is {'a symbolic link' if stat.S_ISLNK(status.st_mode) else 'not a folder'}, expected a folder"
    elif status.st_uid not in users and not any_user:
        what = f"it belongs to user {status.st_uid}, expected user {' or '.join(map(str, sorted(users)))}"
    elif mode & 0o777 & ~expected:
        what = f"its mode is {mode & 0o777:04o}, expected {expected:04o} or less"
    else:
        return
    raise Refused(
        f"{path} is not used to wake other processes: {what}. Delete it; until then processes poll the "
        "database five times a second"
    )
