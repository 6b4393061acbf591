"""Writes the planned files, all or none, and only where the old contents can be had back."""

from __future__ import annotations

import contextlib
import os
import subprocess
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Final

# Settings of the repository that name programs, which git would run.
NO_HOOKS: Final = ("-c", "core.fsmonitor=false", "-c", "core.hooksPath=/dev/null", "-c", "core.untrackedCache=false")


class NotWritten(Exception):
    """Nothing was changed; the text says why."""


def check_tree(path: Path) -> None:
    """Raise NotWritten if a file below `path` has changes that are not committed."""
    folder = path if path.is_dir() else path.parent
    try:
        done = subprocess.run(
            ["git", *NO_HOOKS, "-C", str(folder), "status", "--porcelain", "--", "."],
            capture_output=True,
            text=True,
            check=False,
        )
    except FileNotFoundError:
        raise NotWritten("git is not installed, so changes could not be undone; give --force") from None
    if done.returncode:
        raise NotWritten(f"{folder} is not in a git repository, so changes could not be undone; give --force")
    if done.stdout.strip():
        changed = done.stdout.splitlines()[0][3:]
        raise NotWritten(
            f"{folder} has changes that are not committed, such as {changed}: commit them, or give --force"
        )


def write(files: Mapping[Path, bytes], before: Mapping[Path, bytes]) -> None:
    """Replace the contents of these files. If one cannot be written, those written before get their old contents back.
    Raises NotWritten.

    before  the contents that the plan was made from; empty for a new file
    """
    for path, old in before.items():
        now = path.read_bytes() if path.exists() else b""
        if now != old:
            raise NotWritten(f"{path} has changed since it was read; run the command again")
        if (path.exists() and not os.access(path, os.W_OK)) or not os.access(path.parent, os.W_OK):
            raise NotWritten(f"{path} is read-only; nothing was changed")
    done: list[Path] = []
    try:
        for path, new in files.items():
            _replace(path, new)
            done.append(path)
    except OSError as error:
        for path in done:
            with contextlib.suppress(OSError):
                if before[path]:
                    _replace(path, before[path])
                else:
                    path.unlink()
        raise NotWritten(f"{error}; nothing was changed") from None


def _replace(path: Path, content: bytes) -> None:
    """Write a file next to the old one, with its mode, and put it in its place."""
    mode = path.stat().st_mode & 0o7777 if path.exists() else None
    number, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(number, "wb") as file:
            file.write(content)
        if mode is None:
            mask = os.umask(0)
            os.umask(mask)
            mode = 0o666 & ~mask
        os.chmod(name, mode)
        os.replace(name, path)
    except BaseException:
        os.unlink(name)
        raise
