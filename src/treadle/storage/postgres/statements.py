"""The texts that are sent: functions by the names this Treadle gave them, statements with schema and parameters.

Without it two versions of Treadle could not share a schema while one is replaced by the other: each has functions of
its own, whose names end in a hash of all their texts. In `functions/` and in our statements they are called plainly.
"""

from __future__ import annotations

import functools
import hashlib
import itertools
import re
from importlib.resources import files
from typing import Final

from treadle.storage.constants import filled

_DEFINED: Final = re.compile(r"\bCREATE (?:OR REPLACE )?FUNCTION (\w+)\(")


@functools.cache
def function_texts() -> tuple[str, ...]:
    """What makes the functions, in the order of the files' names; the functions called plainly."""
    folder = files("treadle.storage.postgres").joinpath("functions")
    named = sorted((entry.name, entry.read_text("utf-8")) for entry in folder.iterdir() if entry.name.endswith(".sql"))
    return tuple(filled(text) for _, text in named)


@functools.cache
def revision() -> str:
    """What tells these functions from those of another Treadle."""
    return hashlib.blake2b("\0".join(function_texts()).encode(), digest_size=4).hexdigest()


@functools.cache
def _calls() -> re.Pattern[str]:
    names = {name for text in function_texts() for name in _DEFINED.findall(text)}
    return re.compile(rf"\b({'|'.join(sorted(names | {'channel'}))})\(")


def renamed(text: str) -> str:
    """Each function by the name it has in the schema."""
    return _calls().sub(lambda found: f"{found[1]}_{revision()}(", text)


def quoted(name: str) -> str:
    """A name as an identifier."""
    return '"' + name.replace('"', '""') + '"'


def channel_of(schema: str, kind: str) -> str:
    """The channel notifications of one kind travel on: "say" (queues and workers) or "ends" (jobs)."""
    return f"treadle_{kind}_{hashlib.blake2b(schema.encode(), digest_size=8).hexdigest()}"


class Statements:
    """Statements as they are written -> as they are sent: `{schema}` is the schema, each %s the next parameter."""

    def __init__(self, schema: str) -> None:
        self.schema = schema
        self._sent: dict[str, str] = {}

    def sent(self, template: str) -> str:
        """With $1, $2 ... where the parameters go."""
        found = self._sent.get(template)
        if found is None:
            numbers = itertools.count(1)
            text = re.sub(r"%s(::json|::\w+\[\])?", lambda at: _parameter(next(numbers), at[1]), renamed(template))
            found = self._sent[template] = text.replace("{schema}", quoted(self.schema))
        return found


def _parameter(number: int, kind: str | None) -> str:
    """JSON and arrays go as text: a user's connection may have ideas of its own of how to write them."""
    return f"${number}::text{kind}" if kind else f"${number}"
