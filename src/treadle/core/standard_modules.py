"""Protects modules of the standard library from modules of the same name in a folder that is added to sys.path."""

from __future__ import annotations

import importlib
import os
from typing import Final

NEEDED: Final = (
    *("calendar", "configparser", "csv", "ctypes", "email", "getpass", "glob", "html"),
    *("json", "mimetypes", "multiprocessing", "pickle", "pkgutil", "platform", "quopri", "resource", "socketserver"),
    *("sqlite3", "statistics", "tempfile", "tomllib", "zipfile", "zoneinfo"),
)


def keep_from(folder: str | os.PathLike[str]) -> None:
    """Call this before sys.path gets the folder. It imports those modules that Treadle and its drivers import only
    later; others stay the user's to replace, as in a script."""
    for name in NEEDED:
        place = os.path.join(folder, name)
        if os.path.isfile(f"{place}.py") or os.path.isdir(place):
            importlib.import_module(name)
