"""The tokens of a file while a server runs: an edit of the file takes effect at the next request."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from time import monotonic
from typing import Final

from msgspec.structs import replace

from treadle.core.clock import wall
from treadle.server.auth.token_file import BadTokens, read
from treadle.server.auth.tokens import Token

log = logging.getLogger("treadle.server")

SETTLED: Final = 0.5  # s

Version = tuple[int, int, int]


class LiveTokens:
    """The tokens of a file, read again when its time, size or inode differs. A look costs 2 us.

    Rights that an edit removes end at once. Rights that it adds begin when the file has not changed for SETTLED
    seconds: a half-written file may lack a restriction of a token. Rights that half a file lacks return with the rest
    of it.

    read_file  reads the file the first time; a command passes a function that also checks it

    While the file is missing or invalid, the tokens that were read last stay valid, and the log has the reason. Raises
    OSError and BadTokens if it cannot be read at first.
    """

    def __init__(self, file: Path, read_file: Callable[[Path], tuple[Token, ...]] | None = None) -> None:
        self.file = file
        self._version = _version(file) if file.exists() else None  # before reading, so that no edit is missed
        self._tokens = self._settled = (read_file or _read)(file)
        self._added: tuple[tuple[Token, ...], float] | None = None  # the tokens of an edit, and when it was seen

    def __call__(self) -> tuple[Token, ...]:
        """The tokens that are valid now; (): no caller has access."""
        try:
            version = _version(self.file)
            if version != self._version:
                self._version = version  # first, so that an invalid file is reported once
                tokens = _read(self.file)
                self._tokens, self._added = narrowed(self._settled, tokens), (tokens, monotonic())
                log.info("%s has changed: it contains %d tokens", self.file, len(tokens))
            if self._added is not None:
                tokens, seen = self._added
                if monotonic() - seen >= SETTLED or wall() - version[0] / 1e9 >= SETTLED:
                    self._tokens = self._settled = tokens
                    self._added = None
        except (OSError, ValueError, BadTokens) as error:
            if isinstance(error, OSError):
                if self._version is None:
                    return self._tokens
                self._version = None
            self._added = None
            log.warning("%s: %s; the tokens that were read before stay valid", self.file, error)
        return self._tokens


def narrowed(before: Sequence[Token], after: Sequence[Token]) -> tuple[Token, ...]:
    """The tokens that both files contain, each with the rights that it has in both."""
    known = {token.digest: token for token in before}
    return tuple([both for token in after if (both := _in_both(known.get(token.digest), token)) is not None])


def _in_both(before: Token | None, after: Token) -> Token | None:
    if before is None:
        return None
    queues = tuple(queue for queue in after.queues or before.queues if before.sees(queue) and after.sees(queue))
    if not queues and (before.queues or after.queues):
        return None
    ends = [token.expires for token in (before, after) if token.expires is not None]
    return replace(
        after,
        scopes=tuple(scope for scope in after.scopes if scope in before.scopes),
        queues=queues,
        expires=min(ends, default=None),
        payloads=before.payloads and after.payloads,
    )


def _version(file: Path) -> Version:
    status = os.stat(file)
    return status.st_mtime_ns, status.st_size, status.st_ino


def _read(file: Path) -> tuple[Token, ...]:
    return read(file.read_text())
