"""Hides the secrets of stored rows from people: the one function that the command line, the server, the Django admin,
exports and logs use.

It returns a row whose texts have `***` in place of secrets, so what is shown needs no other care. The worker protocol
does not use it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final

import msgspec
from msgspec.structs import replace

from treadle.core.model import Record
from treadle.core.payload_redaction import Redaction
from treadle.core.redaction import HIDDEN
from treadle.core.stored_text import FORMS
from treadle.policy.retry import read_policy
from treadle.serialization.call_codec import Codec

LEAST: Final = 4  # characters of a secret that is looked for in texts: a shorter one would hide ordinary words
MOST: Final = 100  # secrets of a row that are looked for in its texts
_encode = msgspec.json.Encoder(enc_hook=str).encode


class Redactor:
    """The names whose values one app hides.

    tasks   the tasks of the app: the names of their parameters, and names of their own
    names   more names to hide than those that look like secrets, such as "iban" or "card.number"
    reveal  names that are shown although they look like secrets
    """

    def __init__(self, tasks: Mapping[str, Any], names: Iterable[str] = (), reveal: Iterable[str] = ()) -> None:
        self._tasks, self.names, self.reveal = tasks, tuple(names), tuple(reveal)
        self._made: dict[tuple[str, ...], Redaction] = {}

    def also(self, names: Iterable[str], reveal: Iterable[str] = ()) -> Redactor:
        """The same with more names."""
        return Redactor(self._tasks, (*self.names, *names), (*self.reveal, *reveal))

    def of(self, task: str) -> Redaction:
        """The names that are hidden in the jobs of this task."""
        found = self._tasks.get(task)
        own: tuple[str, ...] = () if found is None else found.declared.redact
        if own not in self._made:
            self._made[own] = Redaction((*self.names, *own), self.reveal)
        return self._made[own]

    @property
    def redaction(self) -> Redaction:
        """For answers of a server; it hides in whole rows as `row` does."""
        return Redaction(self.names, self.reveal, rows=self)

    def row(self, row: Record) -> Record:
        """The row as people may see it."""
        job, redaction = row.job, self.of(row.job.task)
        secrets = list[Any]()
        payload = self._part(redaction, job.task, job.payload, secrets, self._names(row))
        result, value = (self._part(redaction, job.task, text, secrets) for text in (row.result, row.value))
        checkpoints = tuple(
            [(name, self._checkpoint(redaction, name, text, secrets)) for name, text in row.checkpoints]
        )
        headers = tuple((name, HIDDEN if redaction.hides(name) else text) for name, text in job.headers)
        error, note = (self._words(redaction, text, secrets) for text in (row.error, row.note))
        if payload is not job.payload or headers != job.headers:
            job = replace(job, payload=payload or "", headers=headers)
        return replace(row, job=job, result=result, value=value, error=error, note=note, checkpoints=checkpoints)

    def text(self, text: str, row: Record) -> str:
        """A text about a job, such as a line of a log or a sentence of `explain`, without the secrets of its row."""
        return self.hiding(row)(text)

    def hiding(self, row: Record) -> Callable[[str], str]:
        """Returns `text` for many texts about one row."""
        secrets, task = list[Any](), row.job.task
        redaction = self.of(task)
        self._part(redaction, task, row.job.payload, secrets, self._names(row))
        self._part(redaction, task, row.result, secrets)
        return lambda text: self._words(redaction, text, secrets) or ""

    def _names(self, row: Record) -> Sequence[str]:
        """The names of the positional arguments in the payload."""
        found = self._tasks.get(row.job.task)
        if found is None:
            return ()
        names: Sequence[str] = found.signature.positional_names()
        return names[1:] if row.job.retry is not None and read_policy(row.job.retry).pass_result else names

    def _checkpoint(self, redaction: Redaction, name: str, text: str, secrets: list[Any]) -> str:
        """A step of a hidden name has no value that is shown. In other steps, attempts and logs, secrets are replaced
        within texts, which keeps them JSON."""
        if redaction.hides(name):
            return _encode({**_order(text), "value": HIDDEN}).decode()
        split = redaction.split(text)
        found, own = (text, []) if split is None else split
        secrets += own
        known = _leaves(secrets)
        if not any(secret in found for secret in known):
            return found
        try:
            return _encode(_without(msgspec.json.decode(found), known)).decode()
        except (msgspec.DecodeError, UnicodeError, RecursionError):
            return f'"{HIDDEN}"'

    def _part(
        self, redaction: Redaction, task: str, text: str | None, secrets: list[Any], names: Sequence[str] = ()
    ) -> str | None:
        if text is None or text.startswith(FORMS):
            return text
        found = self._tasks.get(task)
        if found is not None and found.signature._codec is not None:
            text = _as_json(found.signature._codec, text)
        split = redaction.split(text, names)
        if split is None:
            return text
        secrets += split[1]
        return split[0]

    def _words(self, redaction: Redaction, text: str | None, secrets: Sequence[Any]) -> str | None:
        found = redaction.text(text)
        if not found or not secrets:
            return found
        for secret in _leaves(secrets):
            found = found.replace(secret, HIDDEN)
        return found


def _order(text: str) -> dict[str, str]:
    """The part of a step that names the one before it: a test that replays an exported job needs it."""
    try:
        found = msgspec.json.decode(text)
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        return {}
    after = found.get("after") if isinstance(found, dict) else None
    return {"after": after} if isinstance(after, str) else {}


def _as_json(codec: Codec, text: str) -> str:
    """The text of a user's codec as JSON; the text itself if that is impossible."""
    try:
        return _encode(codec.decode(text)).decode()
    except Exception:  # codecs and values are user code
        return text


def _without(tree: Any, secrets: Sequence[str]) -> Any:
    if isinstance(tree, dict):
        return {name: _without(each, secrets) for name, each in tree.items()}
    if isinstance(tree, list):
        return [_without(each, secrets) for each in tree]
    if isinstance(tree, str):
        for secret in secrets:
            tree = tree.replace(secret, HIDDEN)
    return tree


def _leaves(values: Any) -> list[str]:
    """The texts and numbers within these values that are long enough to be found in a text, the longest first."""
    found, look = list[str](), [values]
    while look:
        value = look.pop()
        if isinstance(value, dict):
            look += value.values()
        elif isinstance(value, list):
            look += value
        elif isinstance(value, (str, int, float)) and not isinstance(value, bool) and len(str(value)) >= LEAST:
            found.append(str(value))
    return sorted(set(found), key=len, reverse=True)[:MOST]
