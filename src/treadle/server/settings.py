"""The settings of a server and their defaults."""

from __future__ import annotations

from typing import Final

from treadle.core.argument_names import Spelled
from treadle.core.errors import BadOption
from treadle.server.auth.callers import Auth
from treadle.server.auth.link import Link
from treadle.server.auth.live_tokens import LiveTokens
from treadle.server.auth.session import session_secret
from treadle.server.auth.tokens import Token
from treadle.server.origins import check_hosts, check_origins
from treadle.server.proxies import networks

PORT: Final = 7373
BODY: Final = 32 * 2**20  # bytes; twice the largest payload
WAIT: Final = 30.0  # s that a long poll may last; shorter than the timeouts of proxies
ANSWER: Final = 30.0  # s for one response, beyond the time that the request asks to wait
GRACE: Final = 10.0  # s for requests to end when the server stops
REQUESTS: Final = 512  # requests of one caller at once, including long polls


class Settings(Spelled, frozen=True, kw_only=True):
    """The settings of a server.

    tokens     the tokens that give access; none: every caller may do everything
    token_file a file of tokens besides `tokens`, read again after each edit; without any token, nobody has access
    max_body   bytes of one request body
    max_wait   seconds that a long poll may last
    timeout    seconds for one response, beyond the time that the request asks to wait; then 503
    hosts      names of the server for clients, besides IP addresses, localhost and the name of the machine;
               ".example.org" means every name below example.org
    origins    origins whose web pages may call it (CORS); none by default
    link       a sign-in link for a browser, besides the tokens
    rate       requests per second of one token, or of one address without tokens; None: no limit
    requests   requests of one token, or of one address without tokens, in progress at once; beyond that 429
    proxies    addresses and networks of proxies whose X-Forwarded-For, -Proto and -Prefix are believed
    docs       whether to serve /v1/openapi.json and the page that shows it
    redact     keys whose values answers hide, besides those of `treadle.core.payload_redaction`; compared without case
    reveal     keys whose values answers show although the list of `treadle.core.payload_redaction` has them
    pass_texts whether to store arguments that the app of this server cannot read, because its workers have the keys or
               the blob store
    auth       for a server within another application: the rights of a request, instead of `tokens`
    app        the name of the app as the dashboard shows it, such as "shop.py:app"
    """

    tokens: tuple[Token, ...] = ()
    token_file: LiveTokens | None = None
    max_body: int = BODY
    max_wait: float = WAIT
    timeout: float = ANSWER
    hosts: tuple[str, ...] = ()
    origins: tuple[str, ...] = ()
    link: Link | None = None
    rate: float | None = None
    requests: int = REQUESTS
    proxies: tuple[str, ...] = ()
    docs: bool = True
    redact: tuple[str, ...] = ()
    reveal: tuple[str, ...] = ()
    pass_texts: bool = False
    auth: Auth | None = None
    app: str | None = None

    def __post_init__(self) -> None:
        tokens: object = self.tokens
        if not isinstance(tokens, tuple | list) or not all(isinstance(token, Token) for token in tokens):
            raise BadOption(
                "tokens", "expected a tuple of treadle.server.Token; the file of `treadle token` is token_file="
            )
        is_open = not self.has_tokens and self.auth is None
        check_hosts(self.hosts, is_open)
        check_origins(self.origins, is_open)
        networks(self.proxies)

    @property
    def has_tokens(self) -> bool:
        """Whether only tokens give access, even if no token is left."""
        return bool(self.tokens) or self.token_file is not None

    def session_secret(self) -> bytes:
        """The secret that signs sessions. Raises BadOption."""
        return session_secret(None if self.token_file is None else self.token_file.file)

    def current(self) -> tuple[Token, ...]:
        """The tokens that are valid now."""
        return self.tokens if self.token_file is None else (*self.tokens, *self.token_file())

    def accepted(self) -> tuple[Token, ...]:
        """The tokens whose sessions are valid now, including the token of the link."""
        return self.current() if self.link is None else (*self.current(), self.link.token)
