"""The tokens of a file while a server runs: an edit of the file holds from the next request on."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from pathlib import Path

from treadle.server.auth.token_file import BadTokens, read
from treadle.server.auth.tokens import Token

log = logging.getLogger("treadle.server")

Version = tuple[int, int, int]


class LiveTokens:
    """The tokens of a file, read again when its time, size or inode differs. A look costs 2 us.

    read_file  reads it at first, as a command does that checks it

    While the file is missing or invalid, the tokens that were read last stay valid, and the log has the reason. Raises
    OSError and BadTokens if it cannot be read at first.
    """

    def __init__(self, file: Path, read_file: Callable[[Path], tuple[Token, ...]] | None = None) -> None:
        self.file = file
        self._version = _version(file) if file.exists() else None  # before reading, so that no edit is missed
        self._tokens = (read_file or _read)(file)

    def __call__(self) -> tuple[Token, ...]:
        """The tokens that are valid now; () gives nobody access."""
        try:
            version = _version(self.file)
            if version != self._version:
                self._version = version  # first, so that an invalid file is reported once
                self._tokens = _read(self.file)
                log.info("%s has changed: it contains %d tokens", self.file, len(self._tokens))
        except (OSError, ValueError, BadTokens) as error:
            if isinstance(error, OSError):
                if self._version is None:
                    return self._tokens
                self._version = None
            log.warning("%s: %s; the tokens that were read before stay valid", self.file, error)
        return self._tokens


def _version(file: Path) -> Version:
    found = os.stat(file)
    return found.st_mtime_ns, found.st_size, found.st_ino


def _read(file: Path) -> tuple[Token, ...]:
    return read(file.read_text())
