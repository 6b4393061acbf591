"""Stores jobs in a SQLite file on the local disk: durable without a server."""

from treadle.storage.sqlite.in_memory import make_tables_in_memory, within_memory
from treadle.storage.sqlite.migrate import newest
from treadle.storage.sqlite.opening import read_only_uri
from treadle.storage.sqlite.risks import file_system, risks_of_file
from treadle.storage.sqlite.storage import SqliteStorage

__all__ = [
    "SqliteStorage",
    "file_system",
    "make_tables_in_memory",
    "newest",
    "read_only_uri",
    "risks_of_file",
    "within_memory",
]
