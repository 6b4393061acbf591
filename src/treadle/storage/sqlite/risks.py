"""The file systems and settings with which a SQLite file may lose jobs. The file itself is not opened."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from treadle.storage.optional_parts import Risk

_NETWORK = (
    "nfs nfs4 cifs smb3 smbfs afpfs webdav davfs fuse.sshfs fuse.s3fs fuse.rclone 9p ceph fuse.ceph glusterfs "
    "fuse.glusterfs lustre afs ncpfs ocfs2 gpfs beegfs"
)
NETWORK: Final = frozenset(_NETWORK.split())


def risks_of_file(path: str, synchronous: str) -> Iterator[Risk]:
    """The risks of the file at this path. Blocks the thread."""
    folder = Path(path).parent
    kind = file_system(folder)
    if kind in NETWORK:
        yield Risk(
            "fail",
            "file system",
            f"{kind} is a network file system, where SQLite's locks are unreliable",
            "put the file on a local disk, or use a storage with a server",
        )
    if (error := lock_error(folder)) is not None:
        yield Risk("fail", "locks", f"flock does not work here: {error}", "put the file on a local disk")
    if synchronous == "off":
        text = "synchronous=off: a power failure may lose confirmed changes, or destroy the file"
        yield Risk("fail", "durability", text, "use synchronous=full")


def lock_error(folder: Path) -> OSError | None:
    """Why flock does not work in a folder; None: it works, or the folder cannot be opened."""
    if sys.platform == "win32":
        return None
    import fcntl

    try:
        fd = os.open(folder, os.O_RDONLY)
    except OSError:
        return None
    try:
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:  # another process holds a lock
        return None
    except OSError as error:
        return error
    finally:
        os.close(fd)
    return None


def file_system(folder: Path) -> str:
    """The type of file system of a folder, by the longest mount point above it; "" if unknown."""
    try:
        lines = Path("/proc/mounts").read_text("utf-8", "replace").splitlines()
    except OSError:
        return ""
    best, kind = "", ""
    real = f"{folder.resolve()}/".replace("//", "/")
    for line in lines:
        parts = line.split(" ")
        if len(parts) < 3:
            continue
        point = parts[1].replace("\\040", " ").rstrip("/") + "/"
        if real.startswith(point) and len(point) >= len(best):
            best, kind = point, parts[2]
    return kind
