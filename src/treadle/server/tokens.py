"""Who may do what: tokens, kept as hashes, with scopes and queues.

Without it whoever reaches the port could read every payload and cancel every job.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
from collections.abc import Iterable, Sequence
from typing import Final

from msgspec import Struct

SCOPES: Final = ("enqueue", "work", "read", "operate")
PREFIX: Final = "trd_"  # so that a leaked one is found by those who scan for secrets


class Token(Struct, frozen=True, kw_only=True):
    """A right to use the server. The secret itself is never stored.

    name    how the access log calls its holder
    digest  SHA-256 of the secret, in hex: the secret is 256 random bits, so no slow hash is needed
    scopes  of enqueue (send jobs), work (claim, heartbeat, settle), read (look), operate (cancel, retry, limits)
    queues  only jobs of these; none: of all
    """

    name: str
    digest: str
    scopes: tuple[str, ...] = SCOPES
    queues: tuple[str, ...] = ()

    def may(self, scope: str) -> bool:
        return scope in self.scopes

    def serves(self, queues: Iterable[str]) -> str | None:
        """The first of the queues it has no right to; None if it may use all of them."""
        if not self.queues:
            return None
        return next((queue for queue in queues if queue not in self.queues), None)


ANYBODY: Final = Token(name="anybody", digest="")


def new_secret() -> str:
    """A fresh secret, for its holder only."""
    return PREFIX + secrets.token_urlsafe(32)


def digest(secret: str) -> str:
    return hashlib.sha256(secret.encode()).hexdigest()


def holder(secret: str, tokens: Sequence[Token]) -> Token | None:
    """Whose secret it is. Takes the same time whichever token matches, or none."""
    given, found = digest(secret), None
    for token in tokens:
        if hmac.compare_digest(given, token.digest):
            found = token
    return found
