"""A server of Amazon's protocols (SQS), shared by all tests of a process."""

from __future__ import annotations

import atexit
import functools
import importlib.metadata
import sys
import urllib.request
from collections.abc import Sequence

from tests.servers.process import VERSIONS, Process


class Moto(Process):
    """One server; its data is lost when it ends."""

    name = "moto"
    patience = 90.0  # it imports half of the Amazon services first

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def command(self) -> Sequence[str]:
        VERSIONS.add(f"moto {importlib.metadata.version('moto')}")
        return sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(self.port)

    def answers(self) -> bool:
        try:
            with urllib.request.urlopen(f"{self.url}/moto-api/data.json", timeout=5):
                return True
        except OSError:
            return False


@functools.cache
def shared() -> Moto:
    """The server that all tests of this process share; each makes queues of its own."""
    server = Moto().start()
    atexit.register(server.close)
    return server
