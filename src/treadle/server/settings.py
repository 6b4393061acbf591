"""What an operator decides about a server, each with its default."""

from __future__ import annotations

from typing import Final

from treadle.core.argument_names import Spelled
from treadle.server.auth.tokens import Token
from treadle.server.origins import check_hosts, check_origins

PORT: Final = 7373
PORTS: Final = {"queuey": (1717, 100), "delayed": (8080, 1)}  # of the faces; and ports to try
BODY: Final = 32 * 2**20  # bytes; twice the largest payload
WAIT: Final = 30.0  # s one long poll may last: below what proxies allow
ANSWER: Final = 30.0  # s for one answer, beyond the time a call asks to wait
GRACE: Final = 10.0  # s that requests get to end when the server stops
REQUESTS: Final = 512  # of one caller at once, with those that wait for work or for an ending


class Settings(Spelled, frozen=True, kw_only=True):
    """How a server behaves.

    tokens     who may do what; none: everybody may do everything, which is refused on any address but loopback
    max_body   bytes of one request
    max_wait   s one long poll may last
    timeout    s for one answer, beyond the time a call asks to wait; then 503
    hosts      names by which clients may call it, beside IP addresses, localhost and the name of the machine;
               ".example.org" is every name below example.org
    origins    web pages of these origins may call it (CORS); none by default
    rate       requests a second one token, or one address without tokens, may make; None: any number
    requests   requests one token, or one address without tokens, may have under way; then 429
    docs       serve /v1/openapi.json and the page that shows it
    """

    tokens: tuple[Token, ...] = ()
    max_body: int = BODY
    max_wait: float = WAIT
    timeout: float = ANSWER
    hosts: tuple[str, ...] = ()
    origins: tuple[str, ...] = ()
    rate: float | None = None
    requests: int = REQUESTS
    docs: bool = True

    def __post_init__(self) -> None:
        check_hosts(self.hosts, not self.tokens)
        check_origins(self.origins, not self.tokens)
