"""The versions of libraries that docs/compatibility.md names are those of the pins."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PINNED_AS = {"psycopg2": "psycopg2-binary"}


def test_the_page_names_the_versions_of_the_pins() -> None:
    pins: dict[str, set[str]] = {}
    for name, version in re.findall(
        r"^([\w-]+)==(\d+\.\d+)", (ROOT / "requirements/dev.txt").read_text(), re.MULTILINE
    ):
        pins.setdefault(name, set()).add(version)
    page = (ROOT / "docs/compatibility.md").read_text()
    rows = {row.split("|")[1].strip(): row.split("|")[3] for row in re.findall(r"^\|.*\|.*\|.*\|$", page, re.MULTILINE)}
    named = re.findall(
        r"([a-z][\w-]*) (\d+\.\d+)", f"{rows['sessions for `within=`']} {rows['web frameworks']} {rows['Django']}"
    )
    assert len(named) >= 9, rows
    for name, version in [*named, ("sqlalchemy", rows["SQLAlchemy"].strip())]:
        assert version in pins[PINNED_AS.get(name, name)], name
    assert pins["django"] == set(re.findall(r"(\d+\.\d+)(?: \(with|;)", rows["Django"]))
