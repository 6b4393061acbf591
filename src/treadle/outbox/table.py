"""The tables of an outbox and every statement on them, in the SQL of each kind of database.

`treadle_outbox` has one row for each job; the rows of one call have the same `call_id` and are delivered together.
`treadle_relay` has one row: the mark of this database, the lease of the relay, and the storage that it delivers to.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import msgspec

from treadle.outbox.address import Dialect

ROWS: Final = "treadle_outbox"
RELAY: Final = "treadle_relay"
CHANNEL: Final = "treadle_outbox"  # on which PostgreSQL notifies the relay
SCHEMA: Final = 1  # version of these tables
LEASE: Final = 5.0  # s without a renewal after which another relay takes over

NOW: Final[dict[Dialect, str]] = {  # seconds since 1970 by the database's clock, when the statement began
    "postgresql": "extract(epoch FROM statement_timestamp())::float8",
    "mysql": "TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6)) / 1e6",
    "sqlite": "(julianday('now') - 2440587.5) * 86400.0",
}

# A row lives for a second, so a few thousand dead rows are many: vacuum early and without pauses, like our own tables.
AUTOVACUUM: Final = (
    "autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 2000, autovacuum_vacuum_cost_delay = 0"
)

DDL: Final[dict[Dialect, tuple[str, ...]]] = {
    "postgresql": (
        """CREATE TABLE {rows} (
    seq bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    id text NOT NULL,
    call_id text,
    job text NOT NULL,
    made double precision NOT NULL,
    due double precision,
    tries integer NOT NULL DEFAULT 0,
    error text,
    became text
) WITH ("""
        + AUTOVACUUM
        + ")",
        f"CREATE INDEX {ROWS}_due ON {{rows}} (due, seq) WHERE due IS NOT NULL",
        f"CREATE INDEX {ROWS}_id ON {{rows}} (id)",
        f"CREATE INDEX {ROWS}_call ON {{rows}} (call_id) WHERE call_id IS NOT NULL",
        """CREATE TABLE {relay} (
    one integer PRIMARY KEY,
    version integer NOT NULL,
    mark text NOT NULL,
    holder text,
    storage text,
    until double precision NOT NULL DEFAULT 0
)""",
        f"INSERT INTO {{relay}} (one, version, mark) VALUES (1, {SCHEMA}, gen_random_uuid()::text)",
    ),
    "mysql": (
        f"""CREATE TABLE {{rows}} (
    seq BIGINT NOT NULL AUTO_INCREMENT PRIMARY KEY,
    id VARCHAR(255) NOT NULL,
    call_id VARCHAR(32),
    job LONGTEXT NOT NULL,
    made DOUBLE NOT NULL,
    due DOUBLE,
    tries INT NOT NULL DEFAULT 0,
    error TEXT,
    became VARCHAR(255),
    INDEX {ROWS}_due (due, seq),
    INDEX {ROWS}_id (id),
    INDEX {ROWS}_call (call_id)
) ENGINE=InnoDB DEFAULT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin""",
        """CREATE TABLE {relay} (
    one INT NOT NULL PRIMARY KEY,
    version INT NOT NULL,
    mark VARCHAR(64) NOT NULL,
    holder VARCHAR(255),
    storage TEXT,
    until DOUBLE NOT NULL DEFAULT 0
) ENGINE=InnoDB DEFAULT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin""",
        f"INSERT INTO {{relay}} (one, version, mark) VALUES (1, {SCHEMA}, UUID())",
    ),
    "sqlite": (
        """CREATE TABLE {rows} (
    seq INTEGER PRIMARY KEY AUTOINCREMENT,
    id TEXT NOT NULL,
    call_id TEXT,
    job TEXT NOT NULL,
    made REAL NOT NULL,
    due REAL,
    tries INTEGER NOT NULL DEFAULT 0,
    error TEXT,
    became TEXT
)""",
        f"CREATE INDEX {ROWS}_due ON {{rows}} (due, seq) WHERE due IS NOT NULL",
        f"CREATE INDEX {ROWS}_id ON {{rows}} (id)",
        f"CREATE INDEX {ROWS}_call ON {{rows}} (call_id) WHERE call_id IS NOT NULL",
        """CREATE TABLE {relay} (
    one INTEGER PRIMARY KEY,
    version INTEGER NOT NULL,
    mark TEXT NOT NULL,
    holder TEXT,
    storage TEXT,
    until REAL NOT NULL DEFAULT 0
)""",
        f"INSERT INTO {{relay}} (one, version, mark) VALUES (1, {SCHEMA}, lower(hex(randomblob(16))))",
    ),
}

COLUMNS: Final = "seq, call_id, job, {now} - made, tries, became"
FRESH: Final = "seq, call_id, job, {now} - made"  # columns of a row never tried: a third less work for a driver


class New(msgspec.Struct, frozen=True, gc=False):
    """A row to be written."""

    id: str
    job: str
    call: str | None


Sent = tuple[str, Sequence[Any]]
"""A statement, and its values in the order of its placeholders."""


class Statements:
    """The statements for one outbox. Placeholders are $1 (PostgreSQL), ?1 (SQLite) and %s (MySQL)."""

    def __init__(self, dialect: Dialect, schema: str | None, notify: bool) -> None:
        self.dialect, self.schema, self._notify = dialect, schema, notify
        place = f'"{schema}".' if schema else ""
        self._names = {"rows": place + ROWS, "relay": place + RELAY, "now": NOW[dialect]}

    def ddl(self) -> list[str]:
        """The statements that create the tables, for a migration."""
        return [text.format(**self._names) for text in DDL[self.dialect]]

    def creation(self) -> list[str]:
        """The same statements for a database that may already have some of the tables: MySQL commits after each
        statement. A test may also have emptied all tables."""
        statements = [text.replace("CREATE TABLE", "CREATE TABLE IF NOT EXISTS") for text in self.ddl()]
        if self.dialect == "mysql":
            return [text.replace("INSERT INTO", "INSERT IGNORE INTO") for text in statements]
        statements = [text.replace("CREATE INDEX", "CREATE INDEX IF NOT EXISTS") for text in statements]
        statements = [f"{text} ON CONFLICT DO NOTHING" if text.startswith("INSERT") else text for text in statements]
        return ["BEGIN", *statements, "COMMIT"]

    def _sent(self, text: str, *values: Any) -> Sent:
        """Number the placeholders, which are written as ?."""
        fresh, columns = FRESH.format(**self._names), COLUMNS.format(**self._names)
        text = text.format(fresh=fresh, columns=columns, **self._names)
        if self.dialect == "mysql":
            return text.replace("?", "%s"), values
        sign, parts = ("$" if self.dialect == "postgresql" else "?"), text.split("?")
        numbered = "".join(f"{part}{sign}{n}" for n, part in enumerate(parts[:-1], 1))
        return numbered + parts[-1], values

    def _among(self, column: str, values: Sequence[Any], kind: str = "bigint") -> tuple[str, Any]:
        """A condition: the column has one of the values; and the value of its one placeholder."""
        if self.dialect == "postgresql":
            return f"{column} = ANY(?::{kind}[])", list(values)
        if self.dialect == "sqlite":
            return f"{column} IN (SELECT value FROM json_each(?))", msgspec.json.encode(list(values)).decode()
        return f"{column} IN ?", list(values)

    # --- for the user's own transaction

    def insert(self, rows: Sequence[New]) -> Sent:
        """Write the rows, in order; on PostgreSQL also notify the relay at the commit."""
        if self.dialect == "mysql":
            some = ", ".join(["(%s, %s, %s, {now}, 0)".format(**self._names)] * len(rows))
            text = f"INSERT INTO {self._names['rows']} (id, call_id, job, made, due) VALUES {some}"
            return text, [value for row in rows for value in (row.id, row.call, row.job)]
        packed = msgspec.json.encode(rows).decode()
        if self.dialect == "sqlite":
            return self._sent(
                "INSERT INTO {rows} (id, call_id, job, made, due) SELECT json_extract(value, '$.id'),"
                " json_extract(value, '$.call'), json_extract(value, '$.job'), {now}, 0 FROM json_each(?) ORDER BY key",
                packed,
            )
        # clock_timestamp: a transaction may be open for long before it enqueues.
        # text::json: a user's connection may encode json differently.
        text = (
            "INSERT INTO {rows} (id, call_id, job, made, due) SELECT id, call, job,"
            " extract(epoch FROM clock_timestamp())::float8, 0"
            " FROM json_to_recordset(?::text::json) AS new (id text, call text, job text)"
        )
        if self._notify:
            text = f"WITH written AS ({text}) SELECT pg_notify('{CHANNEL}', '')"
        return self._sent(text, packed)

    def exists(self) -> Sent:
        """One row if both tables exist, for the connection that it runs on."""
        if self.dialect == "postgresql":
            return self._sent(
                "SELECT 1 WHERE to_regclass(?) IS NOT NULL AND to_regclass(?) IS NOT NULL",
                self._names["rows"],
                self._names["relay"],
            )
        tables = (
            "main.sqlite_master WHERE type = 'table' AND name IN (?, ?)"
            if self.dialect == "sqlite"
            else "information_schema.tables WHERE table_schema = DATABASE() AND table_name IN (?, ?)"
        )
        return self._sent(f"SELECT 1 FROM (SELECT count(*) AS found FROM {tables}) AS t WHERE found = 2", ROWS, RELAY)

    def mark(self) -> Sent:
        """(mark, version) of this database."""
        return self._sent("SELECT mark, version FROM {relay} WHERE one = 1")

    def jobs(self, ids: Sequence[str]) -> Sent:
        """(id, job) of these jobs."""
        condition, value = self._of_users(ids)
        return self._sent(f"SELECT id, job FROM {{rows}} WHERE {condition} AND became IS NULL ORDER BY seq", value)

    def without(self, ids: Sequence[str]) -> Sent:
        """Delete the rows of these jobs."""
        condition, value = self._of_users(ids)
        return self._sent(f"DELETE FROM {{rows}} WHERE {condition} AND became IS NULL", value)

    def _of_users(self, ids: Sequence[str]) -> tuple[str, Any]:
        if self.dialect != "postgresql":
            return self._among("id", ids)
        # as one text, because not every driver has arrays
        condition = "id IN (SELECT json_array_elements_text(?::text::json))"
        return condition, msgspec.json.encode(list(ids)).decode()

    # --- for the relay

    def page(self, limit: int) -> Sent:
        """The first rows that are due, oldest first. Rows that failed come after those that were never tried."""
        return self._sent("SELECT {columns} FROM {rows} WHERE due <= {now} ORDER BY due, seq LIMIT ?", limit)

    def further(self, after: int, limit: int) -> Sent:
        """The next rows that were never tried. Rows that are committed late may have a lower number, so each pass
        begins with `page` again."""
        text = "SELECT {fresh} FROM {rows} WHERE due = 0 AND seq > ? ORDER BY seq LIMIT ?"
        return self._sent(text, after, limit)

    def calls(self, calls: Sequence[str]) -> Sent:
        """All rows of these calls."""
        condition, value = self._among("call_id", calls, "text")
        return self._sent(f"SELECT {{columns}} FROM {{rows}} WHERE {condition} AND became IS NULL ORDER BY seq", value)

    def of(self, ids: Sequence[str]) -> Sent:
        """The rows of these jobs that were never tried."""
        condition, value = self._among("id", ids, "text")
        return self._sent(f"SELECT {{fresh}} FROM {{rows}} WHERE {condition} AND due = 0 ORDER BY seq", value)

    def delete(self, seqs: Sequence[int]) -> Sent:
        condition, value = self._among("seq", seqs)
        return self._sent(f"DELETE FROM {{rows}} WHERE {condition}", value)

    def failed(self, seqs: Sequence[int], error: str, delay: float | None) -> Sent:
        """Count a failed try; the next one is after `delay` s, or None: never."""
        condition, value = self._among("seq", seqs)
        due = "NULL" if delay is None else f"{{now}} + {delay!r}"
        text = f"UPDATE {{rows}} SET tries = tries + 1, error = ?, due = {due} WHERE {condition} AND became IS NULL"
        return self._sent(text, error, value)

    def became(self, seq: int, id: str, keep: float) -> Sent:
        """Remember for `keep` s that another job was returned for this one."""
        return self._sent(
            f"UPDATE {{rows}} SET became = ?, job = '', call_id = NULL, due = {{now}} + {keep!r} WHERE seq = ?", id, seq
        )

    def lead(self, holder: str, lease: float) -> Sent:
        """Take or renew the lease, if it is free or this holder's. A lease that ends later than any does was written
        before the clock was set back."""
        far = 2 * max(lease, LEASE)
        return self._sent(
            f"UPDATE {{relay}} SET holder = ?, until = {{now}} + {lease!r}"
            f" WHERE one = 1 AND (holder = ? OR holder IS NULL OR until <= {{now}} OR until > {{now}} + {far!r})",
            holder,
            holder,
        )

    def storage(self) -> Sent:
        """(storage) that the last relay delivers to; None: it is not known."""
        return self._sent("SELECT storage FROM {relay} WHERE one = 1")

    def delivers_to(self, storage: str) -> Sent:
        return self._sent("UPDATE {relay} SET storage = ? WHERE one = 1", storage)

    def leave(self, holder: str) -> Sent:
        return self._sent("UPDATE {relay} SET holder = NULL, until = 0 WHERE one = 1 AND holder = ?", holder)

    # --- for people

    def newest(self, id: str) -> Sent:
        """(became, tries, error) of the newest row of this job."""
        text = "SELECT became, tries, error FROM {rows} WHERE id = ? ORDER BY seq DESC LIMIT 1"
        return self._sent(text, id)

    def counts(self) -> Sent:
        """(rows that wait, age of the oldest, rows that are given up) and of the relay: (holder, seconds left,
        storage)."""
        return self._sent(
            "SELECT count(*), max({now} - made), coalesce(sum(CASE WHEN due IS NULL THEN 1 ELSE 0 END), 0),"
            " coalesce(sum(CASE WHEN tries > 0 THEN 1 ELSE 0 END), 0),"
            " (SELECT holder FROM {relay} WHERE one = 1), (SELECT until - {now} FROM {relay} WHERE one = 1),"
            " (SELECT storage FROM {relay} WHERE one = 1)"
            " FROM {rows} WHERE became IS NULL"
        )

    def listed(self, limit: int, failing: bool) -> Sent:
        """(id, job, age, tries, seconds until the next try, error)"""
        where = " AND tries > 0" if failing else ""
        return self._sent(
            "SELECT id, job, {now} - made, tries, due - {now}, error FROM {rows}"
            f" WHERE became IS NULL{where} ORDER BY seq LIMIT ?",
            limit,
        )

    def undelivered(self, after: int, limit: int) -> Sent:
        """(seq, id, job) of the next rows that wait, including those that were given up."""
        return self._sent(
            "SELECT seq, id, job FROM {rows} WHERE became IS NULL AND seq > ? ORDER BY seq LIMIT ?", after, limit
        )

    def whole(self, ids: Sequence[str] | None) -> Sent:
        """(seq) of the rows of these jobs and of the other jobs of their calls; without ids, of every row that was
        given up."""
        if ids is None:
            return self._sent("SELECT seq FROM {rows} WHERE due IS NULL AND became IS NULL")
        condition, value = self._among("id", ids, "text")
        of_call = f"call_id IN (SELECT call_id FROM {{rows}} WHERE {condition})"
        return self._sent(f"SELECT seq FROM {{rows}} WHERE became IS NULL AND ({condition} OR {of_call})", value, value)

    def again(self, seqs: Sequence[int]) -> Sent:
        condition, value = self._among("seq", seqs)
        return self._sent(f"UPDATE {{rows}} SET tries = 0, due = 0 WHERE {condition} AND became IS NULL", value)
