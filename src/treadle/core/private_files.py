"""Creates files and folders that only their owner can open.

The mode is set at creation: with a later chmod, others could open the file in between.
"""

from __future__ import annotations

import contextlib
import os
import stat
from typing import Final

FILE: Final = 0o600
FOLDER: Final = 0o700


def make_file(path: str | os.PathLike[str]) -> None:
    """Create an empty file, unless it exists.

    An existing file is never opened: closing it would release all locks that this process holds on it.
    """
    if os.path.lexists(path):
        return
    with contextlib.suppress(FileExistsError):
        try:
            os.mknod(path, stat.S_IFREG | FILE)
        except FileExistsError:
            raise
        except (
            AttributeError,
            OSError,
        ):  # missing on Windows, only for root on macOS, not supported by some file systems
            os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, FILE))


def make_folder(path: str | os.PathLike[str]) -> None:
    """Create a folder, unless it exists. Missing parents get the permissions of the umask."""
    with contextlib.suppress(FileExistsError):
        above = os.path.dirname(os.path.abspath(path))
        os.makedirs(above, exist_ok=True)
        os.mkdir(path, FOLDER)


def share(beside: str, path: str) -> None:
    """Give the file or folder `beside` the permissions of the file `path` and, where this process may, its owner and
    group, as SQLite does for its log."""
    if os.name != "posix":
        return
    with contextlib.suppress(OSError):  # the file belongs to another user
        ours = os.stat(path)
        owner = ours.st_uid if os.geteuid() == 0 else -1
        if owner >= 0 or ours.st_mode & 0o060:
            with contextlib.suppress(OSError):  # this user is not in that group
                os.chown(beside, owner, ours.st_gid)
        os.chmod(beside, beside_mode(ours.st_mode, os.path.isdir(beside)))


def beside_mode(mode: int, is_folder: bool) -> int:
    """The permissions of a file or folder next to a file with this mode. Everybody who may read a folder may enter
    it."""
    mode &= 0o666
    return mode | (mode & 0o444) >> 2 if is_folder else mode
