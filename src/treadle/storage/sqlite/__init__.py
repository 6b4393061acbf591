"""Jobs in a SQLite file beside the program: durable without a server."""

from treadle.storage.sqlite.storage import SqliteStorage

__all__ = ["SqliteStorage"]
