"""`[HOST:]PORT`, where a process listens for probes."""

from __future__ import annotations

import re
from typing import NamedTuple, Self

from treadle.core.errors import BadOption

LOCAL = "127.0.0.1"
TEXT = re.compile(r"(?:(?P<host>\[[0-9A-Fa-f:.%\w]+\]|[^\[\]:\s]*):)?(?P<port>\d{1,5})", re.ASCII)


class Address(NamedTuple):
    """A host and a port. host: "" for every address of the machine; port: 0 for any free one."""

    host: str
    port: int

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read `8080` (this machine only), `:8080` (every address), `HOST:8080` or `[::1]:8080`. Raises BadOption."""
        match = TEXT.fullmatch(text.strip())
        if match is None or int(match["port"]) > 65_535:
            expected = "expected a port such as 8080, or :8080 for every address, 10.0.0.5:8080 or [::1]:8080"
            raise BadOption("health", f"{expected}; found {text!r}")
        host = LOCAL if match["host"] is None else match["host"].strip("[]")
        return cls(host, int(match["port"]))

    @property
    def url(self) -> str:
        """The URL of its root, for people: `http://HOST:PORT`."""
        host = self.host or "0.0.0.0"
        return f"http://{f'[{host}]' if ':' in host else host}:{self.port}"
