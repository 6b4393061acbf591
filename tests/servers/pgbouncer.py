"""A real PgBouncer in front of a PostgreSQL, which lends its connections for one transaction each.

It is the system's, or the one that TEST_PGBOUNCER_BIN names: no package index has it.
"""

from __future__ import annotations

import os
import pwd
import shutil
import socket
from collections.abc import Sequence

from tests.servers.process import VERSIONS, Process

CONFIG = """
[databases]
* = host=127.0.0.1 port={postgres} user=postgres
[pgbouncer]
listen_addr = 127.0.0.1
listen_port = {port}
unix_socket_dir =
auth_type = any
pool_mode = transaction
default_pool_size = 3
server_reset_query_always = 0
ignore_startup_parameters = extra_float_digits
"""


def binary() -> str | None:
    return os.environ.get("TEST_PGBOUNCER_BIN") or shutil.which("pgbouncer", path=f"{os.environ['PATH']}:/usr/sbin")


class PgBouncer(Process):
    """A PgBouncer in front of the server at this port."""

    name = "pgbouncer"

    def __init__(self, postgres: int) -> None:
        super().__init__()
        self.folder.chmod(0o755)
        path = self.folder / "ini"
        path.write_text(CONFIG.format(port=self.port, postgres=postgres))
        path.chmod(0o644)
        VERSIONS.add("PgBouncer")

    def command(self) -> Sequence[str]:
        found = binary()
        assert found is not None
        other = ["-u", "nobody"] if os.geteuid() == 0 and pwd.getpwnam("nobody") else []
        return [found, "-q", *other, str(self.folder / "ini")]

    def answers(self) -> bool:
        try:
            socket.create_connection(("127.0.0.1", self.port), 0.2).close()
        except OSError:
            return False
        return True
