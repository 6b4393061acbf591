"""Loads the statements by name from the `.sql` files of this folder."""

from __future__ import annotations

import re
from importlib.resources import files


def load(file: str) -> dict[str, str]:
    """The statements of one file by name. Each begins with a line `-- name: ...`; comments are dropped."""
    text = files("treadle.storage.sqlite").joinpath(f"{file}.sql").read_text("utf-8")
    statements = {}
    for part in re.split(r"^-- name: *", text, flags=re.MULTILINE)[1:]:
        name, _, body = part.partition("\n")
        statements[name.strip()] = " ".join(re.sub(r"--.*", "", body).split()).rstrip(";")
    return statements
