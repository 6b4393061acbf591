"""Who may do what: tokens, kept as hashes, with scopes, queues and an end.

Without it whoever reaches the port could read every payload and cancel every job.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from msgspec import Struct

from treadle.core.clock import moment, wall
from treadle.server.errors import Refused

SCOPES: Final[Mapping[str, str]] = {
    "enqueue": "send jobs",
    "work": "claim and settle jobs",
    "read": "look at jobs",
    "operate": "cancel, retry, signal and pause",
}
PREFIX: Final = "trd_"  # so that a leaked one is found by those who scan for secrets


class Token(Struct, frozen=True, kw_only=True):
    """A right to use the server. The secret itself is never stored.

    name     how the access log calls its holder
    digest   SHA-256 of the secret, in hex: the secret is 256 random bits, so no slow hash is needed
    scopes   of enqueue (send jobs), work (claim, heartbeat, settle), read (look), operate (cancel, retry, limits)
    queues   only jobs of these; none: of all
    expires  when it ends, in seconds since 1970; None: never
    """

    name: str
    digest: str
    scopes: tuple[str, ...]
    queues: tuple[str, ...] = ()
    expires: float | None = None

    def may(self, *scopes: str) -> bool:
        """Whether it has one of these scopes."""
        return any(scope in self.scopes for scope in scopes)

    def sees(self, queue: str) -> bool:
        """Whether rows of this queue are shown to it."""
        return not self.queues or queue in self.queues

    def serves(self, queues: Iterable[str]) -> str | None:
        """The first of the queues it has no right to; None if it may use all of them."""
        if not self.queues:
            return None
        return next((queue for queue in queues if queue not in self.queues), None)

    def ended(self, now: float) -> bool:
        """Whether its time is over."""
        return self.expires is not None and self.expires <= now


ANYBODY: Final = Token(name="anybody", digest="", scopes=tuple(SCOPES))


def new_secret() -> str:
    """A fresh secret, for its holder only."""
    return PREFIX + secrets.token_urlsafe(32)


def digest(secret: str) -> str:
    return hashlib.sha256(secret.encode()).hexdigest()


def holder(secret: str, tokens: Sequence[Token]) -> Token | None:
    """Whose secret it is. Takes the same time whichever token matches, or none. Raises Refused (401) for a token whose
    time is over: only its holder is told so."""
    given, found = digest(secret), None
    for token in tokens:
        if hmac.compare_digest(given, token.digest):
            found = token
    if found is not None and found.ended(wall()):
        words = (
            f"the token {found.name!r} expired on {moment(found.expires or 0.0):%Y-%m-%d %H:%M} UTC: ask for a new one"
        )
        raise Refused(401, "expired", words, {"WWW-Authenticate": 'Bearer error="invalid_token"'})
    return found


def rights(token: Token) -> str:
    """What it may do, in words."""
    return "; ".join(words for scope, words in SCOPES.items() if token.may(scope)) or "do nothing"


def place(token: Token) -> str:
    """Where it may do it, in words."""
    return ", ".join(token.queues) or "every queue"


def end(token: Token, now: float) -> str:
    """Until when, in words."""
    if token.expires is None:
        return "never"
    return f"{'ended ' if token.ended(now) else ''}{moment(token.expires):%Y-%m-%d %H:%M} UTC"


def in_short(token: Token) -> str:
    """Its name, scopes and queues, as a server that starts says them."""
    queues = f" in {', '.join(token.queues)}" if token.queues else " in every queue"
    return f"{token.name} may {', '.join(token.scopes) or 'nothing'}{queues if token.scopes else ''}"
