"""Reads the file of tokens strictly, and adds tokens to it.

An error in a hand-edited file must not grant rights: an unknown word is an error, and no default grants a right, so
`scopes` is required.
"""

from __future__ import annotations

import difflib
import errno
import json
import os
import re
import stat
import tomllib
from collections.abc import Iterable, Mapping
from contextlib import suppress
from datetime import UTC, date, datetime, time
from pathlib import Path
from secrets import token_hex
from typing import Any, Final

from treadle.core import defaults
from treadle.core.errors import BadOption
from treadle.server.auth.tokens import SCOPES, Token
from treadle.tasks.options import name_of
from treadle.workflow.approvals import GROUP, check_by

WORDS: Final = ("name", "digest", "scopes", "queues", "expires", "payloads", "groups")
DIGEST: Final = re.compile(r"[0-9a-f]{64}")
# Errors of a rename for which the file itself may be writable.
IN_PLACE: Final = (errno.EBUSY, errno.EACCES, errno.EPERM, errno.EROFS)
NAME: Final = re.compile(r"[A-Za-z0-9._:@-]{1,64}")  # prefix of the names of its workers, followed by "/"


class BadTokens(Exception):
    """An invalid file of tokens. The error names the wrong word, the expected value, and the nearest known word."""


def read(text: str) -> tuple[Token, ...]:
    """The tokens of a file. Raises BadTokens."""
    try:
        content = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise BadTokens(str(error)) from None
    _known(content, ("token",), "the file")
    tables = content.get("token", [])
    if not isinstance(tables, list) or not all(isinstance(table, dict) for table in tables):
        raise BadTokens("expected tables that begin with [[token]], found another kind of value under `token`")
    tokens = tuple(_token(table, number) for number, table in enumerate(tables, 1))
    names, digests = dict[str, int](), dict[str, str]()
    for token in tokens:
        names[token.name] = names.get(token.name, 0) + 1
        other = digests.setdefault(token.digest, token.name)
        if names[token.name] > 1:
            raise BadTokens(
                f"two tokens are named {token.name!r}: rename one, or they would share a rate and idempotency keys"
            )
        if other != token.name:
            raise BadTokens(
                f"tokens {other!r} and {token.name!r} have the same digest: make a new token for one of them"
            )
    return tokens


def _token(table: Mapping[str, Any], number: int) -> Token:
    name = table.get("name")
    who = f"token {name!r}" if isinstance(name, str) else f"token number {number}"
    _known(table, WORDS, who)
    for word in ("name", "digest", "scopes"):
        if word not in table:
            raise BadTokens(f"{who}: `{word}` is missing")
    if not isinstance(name, str) or not NAME.fullmatch(name):
        raise BadTokens(f"{who}: name: expected 1-64 characters A-Z a-z 0-9 . _ : @ -, found {name!r}")
    digest = table["digest"]
    if not isinstance(digest, str) or not DIGEST.fullmatch(digest):
        raise BadTokens(f"{who}: digest: expected a SHA-256 as 64 characters 0-9 a-f, found {_short(digest)}")
    scopes = _texts(table["scopes"], f"{who}: scopes")
    for scope in scopes:
        if scope not in SCOPES:
            raise BadTokens(f"{who}: unknown scope {scope!r}{meant(scope, SCOPES)}; expected {', '.join(SCOPES)}")
    return Token(
        name=name,
        digest=digest,
        scopes=scopes,
        queues=_queues(table, who),
        expires=_expires(table, who),
        payloads=_payloads(table, scopes, who),
        groups=_groups(table, who),
    )


def _payloads(table: Mapping[str, Any], scopes: tuple[str, ...], who: str) -> bool:
    payloads = table.get("payloads", True)
    if not isinstance(payloads, bool):
        raise BadTokens(f"{who}: payloads: expected true or false without quotes, found {_short(payloads)}")
    if not payloads and "work" in scopes:
        raise BadTokens(f"{who}: payloads = false contradicts the scope 'work', because a worker reads arguments")
    return payloads


def _queues(table: Mapping[str, Any], who: str) -> tuple[str, ...]:
    if "queues" not in table:
        return ()
    queues = _texts(table["queues"], f"{who}: queues")
    if not queues:
        raise BadTokens(f"{who}: queues = [] contains no queue: name some, or remove it for a token of every queue")
    for queue in queues:
        try:
            name_of(queue, "queues")
        except BadOption as error:
            raise BadTokens(f"{who}: {error}") from None
        if queue == defaults.SYSTEM_QUEUE:
            raise BadTokens(f"{who}: queues: {queue!r} is Treadle's own queue, which a token cannot be bound to")
    return queues


def _groups(table: Mapping[str, Any], who: str) -> tuple[str, ...]:
    groups = _texts(table.get("groups", []), f"{who}: groups")
    for group in groups:
        if group != "*":
            try:
                check_by(f"{GROUP}{group}")
            except BadOption as error:
                raise BadTokens(f"{who}: groups: {error.problem}") from None
    return groups


def _expires(table: Mapping[str, Any], who: str) -> float | None:
    """The expiry time. A time without a zone is in UTC; a date means its first second."""
    expires = table.get("expires")
    if expires is None:
        return None
    if isinstance(expires, datetime):
        return (expires if expires.tzinfo is not None else expires.replace(tzinfo=UTC)).timestamp()
    if isinstance(expires, date):
        return datetime.combine(expires, time(), UTC).timestamp()
    raise BadTokens(
        f"{who}: expires: expected a day or a time such as 2027-01-31T12:00:00Z without quotes, found {expires!r}"
    )


def _texts(value: object, what: str) -> tuple[str, ...]:
    if not isinstance(value, list) or not all(isinstance(text, str) for text in value):
        raise BadTokens(f'{what}: expected a list such as ["read"], found {value!r}')
    return tuple(dict.fromkeys(value))


def _known(table: Mapping[str, Any], words: Iterable[str], where: str) -> None:
    for word in table:
        if word not in words:
            raise BadTokens(f"{where}: unknown field {word!r}{meant(word, words)}; expected {', '.join(words)}")


def meant(word: str, words: Iterable[str]) -> str:
    """`; did you mean ...?` for the nearest known word, or "" """
    close = difflib.get_close_matches(word, list(words), 1)
    return f"; did you mean {close[0]!r}?" if close else ""


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:40]}... of {len(text) - 2} characters"


def exposed(file: Path) -> str | None:
    """A warning about the permissions of the file; None if only its owner can access it."""
    mode = stat.S_IMODE(file.stat().st_mode)
    if mode & 0o022:
        return f"other users can write to {file} (mode {mode:04o}) and give themselves any token: chmod 600 {file}"
    if mode & 0o044:
        return f"other users can read {file} (mode {mode:04o}): chmod 600 {file}"
    return None


def as_toml(token: Token) -> str:
    """One token as text for the file."""
    lines = ["[[token]]", f"name = {_text(token.name)}"]
    if token.queues:
        lines.append(f"queues = [{', '.join(map(_text, token.queues))}]")
    if token.expires is not None:
        lines.append(f"expires = {datetime.fromtimestamp(token.expires, UTC):%Y-%m-%dT%H:%M:%SZ}")
    if not token.payloads:
        lines.append("payloads = false")
    if token.groups:
        lines.append(f"groups = [{', '.join(map(_text, token.groups))}]")
    lines.append(f"scopes = [{', '.join(map(_text, token.scopes))}]")
    lines.append(f"digest = {_text(token.digest)}")  # written last: in a truncated file no token lacks a restriction
    return "\n".join(lines) + "\n\n"


def _text(value: str) -> str:
    """A TOML basic string; TOML reads JSON's escapes."""
    return json.dumps(value)


def add(file: Path, token: Token) -> None:
    """Add a token: write a new file and rename it, so that a server never reads half of one. Raises OSError and
    BadTokens.

    A file that is mounted by itself, or whose folder cannot be written to, gets the token at its end: its last line is
    the digest, without which a server reads no token.
    """
    import fcntl  # Windows has none

    place, text = Path(os.path.realpath(file)), as_toml(token)
    folder = os.open(place.parent, os.O_RDONLY)
    try:
        fcntl.flock(folder, fcntl.LOCK_EX)  # another command would write the tokens of before
        before = place.read_text() if place.exists() else ""
        read(before + text)
        try:
            _replace(place, before + text)
        except OSError as error:
            if error.errno not in IN_PLACE or not before:
                raise
            with place.open("a") as out:
                out.write(text)
                out.flush()
                os.fsync(out.fileno())
    finally:
        os.close(folder)


def _replace(place: Path, text: str) -> None:
    """Replace a file by a new one with the same owner and mode."""
    new = place.with_name(f".{place.name}.{token_hex(8)}")
    try:
        with open(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as out:
            if place.exists():
                status = place.stat()
                os.fchmod(out.fileno(), stat.S_IMODE(status.st_mode))
                with suppress(PermissionError):
                    os.fchown(out.fileno(), status.st_uid, status.st_gid)
            out.write(text)
            out.flush()
            os.fsync(out.fileno())
        os.rename(new, place)
    finally:
        new.unlink(missing_ok=True)
