"""Files and folders that are their owner's alone from the moment they are made.

The umask of a process does not matter here: a mode that is set afterwards leaves a moment in which others can open.
"""

from __future__ import annotations

import contextlib
import os
import stat
from typing import Final

FILE: Final = 0o600
FOLDER: Final = 0o700


def make_file(path: str | os.PathLike[str]) -> None:
    """Make an empty file, unless there is one.

    A file that is there is never opened: to close it would drop all locks that this process has on it.
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
        ):  # Windows has no such call, macOS leaves it to root, some file systems lack it
            os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, FILE))


def make_folder(path: str | os.PathLike[str]) -> None:
    """Make a folder, and those above it as the umask says, unless there is one."""
    with contextlib.suppress(FileExistsError):
        above = os.path.dirname(os.path.abspath(path))
        os.makedirs(above, exist_ok=True)
        os.mkdir(path, FOLDER)


def share(beside: str, path: str) -> None:
    """Give what was made beside a file the owner's decision on that file: its permissions and, as far as this process
    may, its owner and group, as SQLite does for its log."""
    if os.name != "posix":
        return
    with contextlib.suppress(OSError):  # it is another user's
        ours = os.stat(path)
        owner = ours.st_uid if os.geteuid() == 0 else -1
        if owner >= 0 or ours.st_mode & 0o060:
            with contextlib.suppress(OSError):  # this user is not in that group
                os.chown(beside, owner, ours.st_gid)
        os.chmod(beside, beside_mode(ours.st_mode, os.path.isdir(beside)))


def beside_mode(mode: int, is_folder: bool) -> int:
    """The permissions of what stands beside a file of this mode: a folder can be entered by those who may read."""
    mode &= 0o666
    return mode | (mode & 0o444) >> 2 if is_folder else mode
