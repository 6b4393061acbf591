"""Brings a file to the schema of this Treadle, and refuses a file that is not Treadle's or has a newer schema.

The caller holds the lock file, so two processes may open the same file at once.
"""

from __future__ import annotations

import sqlite3

from treadle.core.errors import NotADatabase, SchemaTooNew
from treadle.storage.migrations import scripts, tables

APPLICATION_ID = 0x54524444  # "TRDD"; `file` and other tools recognise the file by it


def known() -> tuple[tuple[int, str, str], ...]:
    """(number, name, script) of every migration, in order."""
    return scripts("treadle.storage.sqlite")


def newest() -> int:
    """The number of the newest schema, which this Treadle uses."""
    return known()[-1][0]


def schema_of(db: sqlite3.Connection, path: str, shared: bool = False) -> int:
    """The number of the last migration applied; 0 for an empty file. Raises NotADatabase for a file with other tables;
    if it may be `shared`, only if their names are those of our tables."""
    tables = {name for (name,) in db.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
    if not tables:
        return 0
    ours = db.execute("PRAGMA application_id").fetchone()[0] == APPLICATION_ID
    if not ours or "migration" not in tables:
        if not shared:
            raise NotADatabase(
                f"{path} is a SQLite database, but not Treadle's: it has other tables "
                f"({', '.join(sorted(tables)[:5])}); give Treadle a file of its own, or add ?shared=true to the URL"
            )
        taken = sorted(tables & _names())
        if taken:
            raise NotADatabase(
                f"{path} has other tables with names that Treadle needs: {', '.join(taken)}; give Treadle its own file"
            )
        return 0
    number: int = db.execute("SELECT coalesce(max(number), 0) FROM migration").fetchone()[0]
    return number


def _names() -> set[str]:
    """The tables that the migrations create."""
    return {"migration", "meta", *tables("treadle.storage.sqlite")}


def check(db: sqlite3.Connection, path: str, shared: bool = False) -> int:
    number = schema_of(db, path, shared)
    if number > newest():
        raise SchemaTooNew(number, newest())
    return number


def migrate(db: sqlite3.Connection, path: str, now: float, shared: bool = False) -> None:
    """Apply the missing migrations, each in a transaction of its own. The caller holds the lock file."""
    schema = check(db, path, shared)
    for number, name, script in known():
        if number > schema:
            start = "" if schema else _FRAME
            db.executescript(f"BEGIN IMMEDIATE; {start} {script}")
            try:
                if not schema:
                    db.execute("INSERT INTO meta (name, value) VALUES ('created_at', ?)", (repr(now),))
                db.execute("INSERT INTO migration (number, name, applied_at) VALUES (?, ?, ?)", (number, name, now))
                db.execute("INSERT OR REPLACE INTO meta (name, value) VALUES ('schema', ?)", (str(number),))
                db.execute("COMMIT")
            except BaseException:
                db.execute("ROLLBACK")
                raise
            schema = number


_FRAME = f"""
PRAGMA application_id = {APPLICATION_ID};
CREATE TABLE migration (number INTEGER PRIMARY KEY, name TEXT NOT NULL, applied_at REAL NOT NULL);
CREATE TABLE meta (name TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID;
"""
