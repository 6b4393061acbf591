"""Tokens: rights to use the server, stored as hashes, with scopes, queues and an expiry time."""

from __future__ import annotations

import hashlib
import hmac
import secrets
from collections.abc import Iterable, Mapping, Sequence
from typing import Final, Literal

from msgspec import Struct

from treadle.core.clock import moment

ScopeName = Literal["enqueue", "work", "read", "operate"]
SCOPES: Final[Mapping[ScopeName, str]] = {
    "enqueue": "send jobs",
    "work": "claim and settle jobs",
    "read": "list and show jobs",
    "operate": "cancel, retry, signal and pause",
}
PREFIX: Final = "trd_"  # lets secret scanners find leaked tokens


class Token(Struct, frozen=True, kw_only=True):
    """A right to use the server. The secret itself is never stored.

    name     the name of its holder in the access log
    digest   SHA-256 of the secret in hex; the secret has 256 random bits, so a fast hash is safe
    scopes   of enqueue (send jobs), work (claim, heartbeat, settle), read (list, show), operate (cancel, retry, limits)
    queues   the queues whose jobs it may access; none: all queues
    expires  its expiry time in seconds since 1970; None: never
    payloads whether it may read arguments, results, errors and logs; False: only their shapes, as `text(17)`
    groups   for the decisions of requests: `by="group:finance"` of a request names "finance"; "*": it may decide all
    """

    name: str
    digest: str
    scopes: tuple[str, ...]
    queues: tuple[str, ...] = ()
    expires: float | None = None
    payloads: bool = True
    groups: tuple[str, ...] = ()

    def may(self, *scopes: str) -> bool:
        """Whether the token has one of these scopes."""
        return not set(scopes).isdisjoint(self.scopes)

    def sees(self, queue: str) -> bool:
        """Whether the token may see rows of this queue."""
        return not self.queues or queue in self.queues

    def serves(self, queues: Iterable[str]) -> str | None:
        """The first of the queues that the token has no right to; None if it may use all of them."""
        if not self.queues:
            return None
        return next((queue for queue in queues if queue not in self.queues), None)

    def ended(self, now: float) -> bool:
        """Whether the token has expired."""
        return self.expires is not None and self.expires <= now


ANYBODY: Final = Token(name="anybody", digest="", scopes=tuple(SCOPES), groups=("*",))


def new_secret() -> str:
    """A new secret."""
    return PREFIX + secrets.token_urlsafe(32)


def digest(secret: str) -> str:
    return hashlib.sha256(secret.encode()).hexdigest()


def holder(secret: str, tokens: Sequence[Token]) -> Token | None:
    """The token with this secret, or None, in constant time. It may have expired."""
    sent, owner = digest(secret), None
    for token in tokens:
        if hmac.compare_digest(sent, token.digest):
            owner = token
    return owner


def rights(token: Token) -> str:
    """The scopes of the token as text."""
    words = "; ".join(words for scope, words in SCOPES.items() if token.may(scope)) or "do nothing"
    return words if token.payloads else f"{words}; without payloads"


def place(token: Token) -> str:
    """The queues of the token as text."""
    return ", ".join(token.queues) or "every queue"


def end(token: Token, now: float) -> str:
    """The expiry time of the token as text."""
    if token.expires is None:
        return "never"
    return f"{'expired ' if token.ended(now) else ''}{moment(token.expires):%Y-%m-%d %H:%M} UTC"


def in_short(token: Token) -> str:
    """The name, scopes and queues of the token, for the first output of a server."""
    queues = f" in {', '.join(token.queues)}" if token.queues else " in every queue"
    payloads = "" if token.payloads else " without payloads"
    return f"{token.name} may {', '.join(token.scopes) or 'nothing'}{queues + payloads if token.scopes else ''}"
