"""Sessions of a browser: a signed cookie in place of the token, so that no page has to keep the token itself.

Nothing is stored. The key of the signature is made of the server's secret and of the digest of the token: a reader of
the digests cannot sign, and removing or replacing the token ends all of its sessions.
"""

from __future__ import annotations

import functools
import hashlib
import hmac
import logging
import os
import re
import secrets
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final
from urllib.parse import quote, unquote

from msgspec import Struct
from msgspec.structs import replace

from treadle.admin.approval_links import VARIABLE, secret_in_environment
from treadle.server.auth.token_file import exposed
from treadle.server.auth.tokens import Token

NAME: Final = "treadle"
LASTS: Final = 12 * 3_600.0  # s
SKEW: Final = 60.0  # s that the clock of another server may be ahead
MOST: Final = 200  # cookies of this name that are tried, as many as browsers keep: a neighbour may set some too
VALUE: Final = re.compile(r"([A-Za-z0-9._~%-]{1,800})\.(\d{1,12})\.([0-9a-f]{64})", re.ASCII)


class Mount(Struct, frozen=True):
    """Where the cookie is valid: the path of the server, "/" or "/ops/jobs", and whether the page came over TLS."""

    path: str
    secure: bool

    @property
    def name(self) -> str:
        """The name of the cookie. Browsers accept the two prefixes only over TLS, and `__Host-` only for the path /."""
        if not self.secure:
            return NAME
        return f"__Host-{NAME}" if self.path == "/" else f"__Secure-{NAME}"


NAMES: Final = (f"__Host-{NAME}", f"__Secure-{NAME}", NAME)  # what only TLS can set comes first


def mount_of(root_path: str, secure: bool) -> Mount:
    """The mount of a site that its host serves below this path."""
    return Mount(quote(root_path.rstrip("/"), safe="/~!$&'()*+,=:@") or "/", secure)


def issue(token: Token, now: float, secret: bytes) -> tuple[str, int]:
    """The value of a new session's cookie, and its whole seconds. A session does not outlast its token."""
    ends = int(now + LASTS if token.expires is None else min(now + LASTS, token.expires))
    head = f"{quote(token.name, safe='')}.{ends}"
    return f"{head}.{_signature(token, head, secret)}", max(0, ends - int(now))


def set_cookie(mount: Mount, value: str, seconds: int) -> str:
    """The Set-Cookie header of a session; with an empty value it removes the cookie."""
    secure = "; Secure" if mount.secure else ""
    return f"{mount.name}={value}; Path={mount.path}; Max-Age={seconds}; HttpOnly; SameSite=Strict{secure}"


def holder_of(cookies: str, tokens: Sequence[Token], now: float, secret: bytes) -> Token | None:
    """The token of the first valid session among the cookies of a request; of an expired session only if no other is
    valid; None without a session. Its `expires` is the end of the session. A session that would last longer than one
    that is issued now is not valid.
    """
    over: Token | None = None
    for value in _values(cookies):
        parts = VALUE.fullmatch(value)
        if parts is None or float(parts[2]) > now + LASTS + SKEW:
            continue
        name, sent = unquote(parts[1]), parts[3]
        for token in tokens:  # names are no secret: their comparison may take any time
            if token.name == name and hmac.compare_digest(sent, _signature(token, f"{parts[1]}.{parts[2]}", secret)):
                ends = float(parts[2])
                holder = replace(token, expires=ends if token.expires is None else min(ends, token.expires))
                if not holder.ended(now):
                    return holder
                over = over or holder
    return over


def _values(cookies: str) -> Iterator[str]:
    values_of: dict[str, list[str]] = {name: [] for name in NAMES}
    for cookie in cookies.split(";"):
        name, equals, value = cookie.strip().partition("=")
        if equals and name in values_of and len(values_of[name]) < MOST and value not in values_of[name]:
            values_of[name].append(value)
    for values in values_of.values():
        yield from values


def _signature(token: Token, head: str, secret: bytes) -> str:
    key = hmac.digest(secret, f"session{token.digest}".encode(), "sha256")
    return hmac.new(key, head.encode(), hashlib.sha256).hexdigest()


log = logging.getLogger("treadle.server")


# --- the secret of sessions
#
# The secret that signs sessions. No file of tokens holds it, so nobody who reads that file can make a session.
#
# Every process that serves the same tokens needs the same secret, or a session is valid at one of them only.


SECRET: Final = re.compile(r"[0-9a-f]{64}")

# --- the secret of sessions


def session_secret(token_file: Path | None) -> bytes:
    """The secret of the environment, or of the file next to the file of tokens, which is created if it is missing.
    Tokens that are given in code, or a folder that cannot be written to, get one that ends with the process. Raises
    BadOption."""
    if (secret := secret_in_environment()) is not None:
        return secret
    if token_file is None:
        return of_process()
    file = token_file.with_name(f"{token_file.name}.sessions")
    try:
        return bytes.fromhex(_read(file) or _made(file))
    except (OSError, ValueError) as error:
        message = f"sessions end with this process, and are not valid at other ones; {VARIABLE} gives them a secret"
        log.warning("%s: %s: %s", file, error, message)
        return of_process()


@functools.cache
def of_process() -> bytes:
    return secrets.token_bytes(32)


def _read(file: Path) -> str | None:
    """The secret of a file; None if there is no file. Raises ValueError for another content."""
    try:
        text = file.read_text().strip()
    except FileNotFoundError:
        return None
    if not SECRET.fullmatch(text):
        raise ValueError("expected 64 characters 0-9 a-f: remove the file, and it is made again")
    if (warning := exposed(file)) is not None:
        log.warning("%s", warning)
    return text


def _made(file: Path) -> str:
    """Write a new secret, whole or not at all, unless another process was faster. Returns the one in the file."""
    own = file.with_name(f".{file.name}.{secrets.token_hex(8)}")
    descriptor = os.open(own, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        with os.fdopen(descriptor, "w") as out:
            out.write(f"{secrets.token_hex(32)}\n")
        with suppress(FileExistsError):
            os.link(own, file)  # unlike a rename, this does not replace the secret of another process
    finally:
        own.unlink()
    text = _read(file)
    if text is None:
        raise OSError("removed as soon as it was made")
    return text
