"""The secret that signs sessions. No file of tokens holds it, so nobody who reads that file can make a session.

Every process that serves the same tokens needs the same secret, or a session is valid at one of them only.
"""

from __future__ import annotations

import functools
import hashlib
import logging
import os
import re
import secrets
from contextlib import suppress
from pathlib import Path
from typing import Final

from treadle.core.errors import BadOption
from treadle.server.auth.token_file import exposed

log = logging.getLogger("treadle.server")

VARIABLE: Final = "TREADLE_SESSION_SECRET"
SHORTEST: Final = 32  # characters of a secret that is given
SECRET: Final = re.compile(r"[0-9a-f]{64}")


def session_secret(token_file: Path | None) -> bytes:
    """The secret of the environment, or of the file next to the file of tokens, which is created if it is missing.
    Tokens that are given in code, or a folder that cannot be written to, get one that ends with the process. Raises
    BadOption."""
    secret = os.environ.get(VARIABLE)
    if secret is not None:
        if len(secret) < SHORTEST:
            raise BadOption(VARIABLE, f"expected at least {SHORTEST} random characters, found {len(secret)}")
        return hashlib.sha256(secret.encode()).digest()
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
