"""The sign-in link of `treadle dashboard`: a secret that can be exchanged for a session once."""

from __future__ import annotations

import hmac
import secrets
from collections.abc import Callable, Sequence
from typing import Final

from treadle.server.auth.tokens import Token, digest, new_secret

NAME: Final = "dashboard-link"


class Link:
    """One link. Its session has the rights of `token`, a token without a secret, so that no request can send it.

    taken    the tokens that exist already, whose names the token's own must not repeat
    on_used  called when it has been used
    """

    def __init__(self, scopes: Sequence[str], taken: Sequence[Token] = ()) -> None:
        self.on_used: Callable[[], None] = lambda: None
        self.secret = new_secret()
        self._digest = digest(self.secret)
        self._is_used = False
        name = NAME
        while any(token.name == name for token in taken):
            name = f"{NAME}-{secrets.token_hex(2)}"
        # A random digest: its session can be verified, and no text has this hash, so nobody can send it as a token.
        self.token = Token(name=name, digest=secrets.token_hex(32), scopes=tuple(scopes), groups=("*",))

    def take(self, secret: str) -> Token | None:
        """The token, for the first call with the right secret; None for every other one."""
        if self._is_used or not hmac.compare_digest(digest(secret), self._digest):
            return None
        self._is_used = True
        self.on_used()
        return self.token
