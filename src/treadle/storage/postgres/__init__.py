"""Jobs in a PostgreSQL database, versions 14 to 18, by psycopg 3."""

from treadle.storage.postgres.health import PostgresHealth, Table
from treadle.storage.postgres.migrate import newest
from treadle.storage.postgres.storage import PostgresStorage

__all__ = ["PostgresHealth", "PostgresStorage", "Table", "newest"]
