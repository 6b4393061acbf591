"""Hides the secrets of stored rows from people: the one function that the command line, the server, the Django admin,
exports and logs use.

It returns a row whose texts have `***` in place of secrets, so what is shown needs no other care. The worker protocol
does not use it.
"""

from __future__ import annotations

import re
from bisect import insort
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Any, Final

import msgspec
from msgspec import Raw
from msgspec.structs import replace

from treadle.core.model import ARGUMENTS_NOW, PUBLISHED, Record
from treadle.core.payload_redaction import Redaction
from treadle.core.redaction import HIDDEN, Effort, TooMuch
from treadle.core.stored_text import FORMS
from treadle.policy.retry import read_policy
from treadle.serialization.call_codec import Codec

LEAST: Final = 4  # characters of a secret that is looked for in texts: a shorter one would hide ordinary words
MOST: Final = 100  # secrets of a row that are looked for in its texts
SEARCHED: Final = 1_000  # characters of a text that are searched for one secret in a unit of Effort
_OF_MAILBOX: Final = re.compile(r"^(?:receive|wait|answer|publish|approve):|(?:#p?\d+)+$")  # around a name
_encode = msgspec.json.Encoder(enc_hook=str).encode
_decode = msgspec.json.Decoder(float_hook=Raw).decode


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
        core = self._tasks.get(task)
        own: tuple[str, ...] = () if core is None else core.declared.redact
        if own not in self._made:
            self._made[own] = Redaction((*self.names, *own), self.reveal)
        return self._made[own]

    @property
    def redaction(self) -> Redaction:
        """For answers of a server; it hides in whole rows as `row` does."""
        return Redaction(self.names, self.reveal, rows=self)

    def row(self, row: Record) -> Record:
        """The row as people may see it. A part that exceeds the effort for a row of this size is hidden whole."""
        job, redaction = row.job, self.of(row.job.task)
        effort, secrets = Effort(_size(row)), Secrets()
        payload = self._part(redaction, job.task, job.payload, effort, secrets, self._names(row))
        result, value = (self._part(redaction, job.task, text, effort, secrets) for text in (row.result, row.value))
        checkpoints = tuple(
            [(name, self._checkpoint(redaction, name, text, effort, secrets, row)) for name, text in row.checkpoints]
        )
        headers = tuple(
            [
                (name, HIDDEN if redaction.hides(name) else redaction.text(text, effort) or "")
                for name, text in job.headers
            ]
        )
        error, note = (_words(redaction, text, effort, secrets) for text in (row.error, row.note))
        if payload is not job.payload or headers != job.headers:
            job = replace(job, payload=payload or "", headers=headers)
        return replace(row, job=job, result=result, value=value, error=error, note=note, checkpoints=checkpoints)

    def text(self, text: str, row: Record) -> str:
        """A text about a job, such as a line of a log or a sentence of `explain`, without the secrets of its row."""
        return self.hiding(row)(text)

    def hiding(self, row: Record) -> Callable[[str], str]:
        """Returns `text` for many texts about one row."""
        secrets, task = Secrets(), row.job.task
        redaction, effort = self.of(task), Effort(_size(row))
        for payload in (row.job.payload, *(text for name, text in row.checkpoints if name == ARGUMENTS_NOW)):
            self._part(redaction, task, payload, effort, secrets, self._names(row))
        self._part(redaction, task, row.result, effort, secrets)
        if effort.room < 0:  # some of its secrets are not known
            return lambda _: HIDDEN
        return lambda text: _words(redaction, text, Effort(len(text)), secrets) or ""

    def _names(self, row: Record) -> Sequence[str]:
        """The names of the positional arguments in the payload."""
        core = self._tasks.get(row.job.task)
        if core is None:
            return ()
        names: Sequence[str] = core.signature.positional_names()
        return names[1:] if row.job.retry is not None and read_policy(row.job.retry).pass_result else names

    def _checkpoint(
        self, redaction: Redaction, name: str, text: str, effort: Effort, secrets: Secrets, row: Record
    ) -> str:
        """The value of a step with a hidden name is not shown. In other steps, attempts and logs, secrets are replaced
        within texts, which keeps them JSON."""
        if name == ARGUMENTS_NOW:
            return self._part(redaction, row.job.task, text, effort, secrets, self._names(row)) or ""
        if name.startswith(PUBLISHED):
            if redaction.hides(name[len(PUBLISHED) :]):
                return f'"{HIDDEN}"'
        elif redaction.hides(name) or redaction.hides(_OF_MAILBOX.sub("", name)):
            return _encode({**_order(text), "value": HIDDEN}).decode()
        split = redaction.split(text, effort)
        shown = text
        try:
            if split is not None:
                shown = split[0]
                secrets.add(split[1], effort)
            if not secrets.are_in(shown, effort):
                return shown
            return _encode(_without(_decode(shown), secrets, effort)).decode()
        except (TooMuch, msgspec.DecodeError, UnicodeError, RecursionError):
            return f'"{HIDDEN}"'

    def _part(
        self,
        redaction: Redaction,
        task: str,
        text: str | None,
        effort: Effort,
        secrets: Secrets,
        names: Sequence[str] = (),
    ) -> str | None:
        if text is None or text.startswith(FORMS):
            return text
        core = self._tasks.get(task)
        if core is not None and core.signature._codec is not None:
            text = _as_json(core.signature._codec, text)
        split = redaction.split(text, effort, names)
        if split is None:
            return text
        with suppress(TooMuch):  # the next text that is searched raises it again, and is hidden
            secrets.add(split[1], effort)
        return split[0]


class Secrets:
    """The hidden texts and numbers of a row that are long enough to be found in its other texts, the longest first."""

    __slots__ = ("_all", "_known")

    def __init__(self) -> None:
        self._known, self._all = list[str](), set[str]()

    def add(self, values: Sequence[Any], effort: Effort) -> None:
        """Raises TooMuch."""
        look = list(values)
        while look:
            value = look.pop()
            effort.spend(1)
            if isinstance(value, dict):
                look += value.values()
            elif isinstance(value, list):
                look += value
            elif isinstance(value, (str, int, Raw)) and not isinstance(value, bool):
                secret = bytes(value).decode() if isinstance(value, Raw) else str(value)
                if len(secret) >= LEAST and secret not in self._all:
                    effort.spend(2)
                    self._insert(secret)

    def _insert(self, secret: str) -> None:
        if len(self._known) == MOST:
            if len(secret) <= len(self._known[-1]):
                return
            self._all.remove(self._known.pop())
        self._all.add(secret)
        insort(self._known, secret, key=lambda secret: -len(secret))

    def are_in(self, text: str, effort: Effort) -> bool:
        """Raises TooMuch."""
        effort.spend(self._cost(text))
        return any(secret in text for secret in self._known)

    def without(self, text: str, effort: Effort) -> str:
        """The text without them. Raises TooMuch."""
        effort.spend(self._cost(text))
        for secret in self._known:
            text = text.replace(secret, HIDDEN)
        return text

    def _cost(self, text: str) -> int:
        return len(self._known) * (1 + len(text) // SEARCHED)


def _size(row: Record) -> int:
    """The characters of its texts."""
    texts = (row.job.payload, row.result, row.value, row.error, row.note)
    named = (*row.checkpoints, *row.job.headers)
    return sum(len(text) for text in texts if text) + sum(len(name) + len(text) for name, text in named)


def _words(redaction: Redaction, text: str | None, effort: Effort, secrets: Secrets) -> str | None:
    shown = redaction.text(text, effort)
    try:
        return secrets.without(shown, effort) if shown else shown
    except TooMuch:
        return HIDDEN


def _order(text: str) -> dict[str, Any]:
    """The part of a step that names the step before it, which a test that replays an exported job needs, and the part
    that tells a wait from a function."""
    try:
        tree = _decode(text)
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        return {}
    kinds = {"after": str, "turn": int, "until": Raw, "gave_up": bool}
    fields = tree if isinstance(tree, dict) else {}
    return {name: fields[name] for name, kind in kinds.items() if isinstance(fields.get(name), kind)}


def _as_json(codec: Codec, text: str) -> str:
    """The text of a user's codec as JSON; the text itself if that is impossible."""
    try:
        return _encode(codec.decode(text)).decode()
    except Exception:  # codecs and values are user code
        return text


def _without(tree: Any, secrets: Secrets, effort: Effort) -> Any:
    if isinstance(tree, dict):
        effort.spend(len(tree) + 1)
        return {name: _without(part, secrets, effort) for name, part in tree.items()}
    if isinstance(tree, list):
        effort.spend(len(tree) + 1)
        return [_without(part, secrets, effort) for part in tree]
    return secrets.without(tree, effort) if isinstance(tree, str) else tree
