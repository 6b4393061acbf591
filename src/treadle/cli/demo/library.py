"""The modules of the standard library of the running interpreter, as files. Without it there would be no input."""

from __future__ import annotations

import os
import sysconfig
from pathlib import Path

SKIPPED = frozenset({"test", "tests", "idle_test", "site-packages", "dist-packages", "__pycache__", "lib-dynload"})


def modules() -> list[tuple[str, str]]:
    """(name, path) of each, packages of tests left out, in the order of their names."""
    root = Path(sysconfig.get_path("stdlib"))
    found = []
    for folder, folders, files in os.walk(root):
        folders[:] = [name for name in folders if name not in SKIPPED]
        for file in files:
            if file.endswith(".py"):
                path = Path(folder, file)
                name = ".".join(path.relative_to(root).with_suffix("").parts)
                found.append((name.removesuffix(".__init__"), str(path)))
    return sorted(found)
