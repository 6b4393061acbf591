"""The numbered scripts that bring a database to the schema of this Treadle."""

from __future__ import annotations

import functools
import re
from importlib.resources import files


@functools.cache
def scripts(package: str) -> tuple[tuple[int, str, str], ...]:
    """(number, name, script) of every migration of a package, in order."""
    migrations = []
    for entry in files(package).joinpath("migrations").iterdir():
        match = re.fullmatch(r"(\d{4})_(\w+)\.sql", entry.name)
        if match:
            migrations.append((int(match[1]), match[2], entry.read_text("utf-8")))
    return tuple(sorted(migrations))


def tables(package: str) -> list[str]:
    """The tables that the migrations of a package create."""
    return [name for _, _, script in scripts(package) for name in re.findall(r"CREATE TABLE (\w+)", script)]
