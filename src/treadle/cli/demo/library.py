"""Lists the source files of the running interpreter's standard library."""

from __future__ import annotations

import os
import sysconfig
from pathlib import Path

SKIPPED = frozenset({"test", "tests", "idle_test", "site-packages", "dist-packages", "__pycache__", "lib-dynload"})


def modules() -> list[tuple[str, str]]:
    """(name, path) of each module except tests, sorted by name."""
    root = Path(sysconfig.get_path("stdlib"))
    names = []
    for folder, folders, files in os.walk(root):
        folders[:] = [name for name in folders if name not in SKIPPED]
        for file in files:
            if file.endswith(".py"):
                path = Path(folder, file)
                name = ".".join(path.relative_to(root).with_suffix("").parts)
                names.append((name.removesuffix(".__init__"), str(path)))
    return sorted(names)
