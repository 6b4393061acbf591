"""Prepares the texts of statements: fills in the schema and parameters, and renames functions to those of this version.

The name of each function, and of each type that only functions use, ends in a hash of all their texts. So two versions
of Treadle can share a schema while one replaces the other. The texts in `functions/` and our statements use the plain
names.
"""

from __future__ import annotations

import functools
import hashlib
import itertools
import re
from importlib.resources import files
from typing import Final

from treadle.storage.constants import filled

_FUNCTION: Final = re.compile(r"\bCREATE FUNCTION (\w+)\(")
_TYPE: Final = re.compile(r"\bCREATE TYPE (\w+) AS")


@functools.cache
def function_texts() -> tuple[str, ...]:
    """The statements that create the types and the functions, sorted by file name, with plain names."""
    folder = files("treadle.storage.postgres").joinpath("functions")
    named = sorted((entry.name, entry.read_text("utf-8")) for entry in folder.iterdir() if entry.name.endswith(".sql"))
    return tuple(filled(text) for _, text in named)


@functools.cache
def revision() -> str:
    """The hash that distinguishes these functions from those of other versions."""
    return hashlib.blake2b("\0".join(function_texts()).encode(), digest_size=4).hexdigest()


@functools.cache
def _names() -> re.Pattern[str]:
    texts = "\n".join(function_texts())
    functions = "|".join(sorted({*_FUNCTION.findall(texts), "channel"}))
    return re.compile(rf"\b(?:(?:{functions})(?=\()|(?:{'|'.join(_TYPE.findall(texts))})\b)")


def renamed(text: str) -> str:
    """The text with each function and type under its name in the schema."""
    return _renamed(text, revision())


@functools.lru_cache(maxsize=1024)  # the texts are constants of the code; a new schema needs those of all functions
def _renamed(text: str, revision: str) -> str:
    return _names().sub(lambda name: f"{name[0]}_{revision}", text)


def quoted(name: str) -> str:
    """A name as an identifier."""
    return '"' + name.replace('"', '""') + '"'


def channel_of(schema: str, kind: str) -> str:
    """The channel for notifications of one kind: "say" (queues and workers) or "ends" (jobs)."""
    return f"treadle_{kind}_{hashlib.blake2b(schema.encode(), digest_size=8).hexdigest()}"


class Statements:
    """Turns statements as we write them into those that are sent: `{schema}` is the schema, each %s the next
    parameter."""

    def __init__(self, schema: str) -> None:
        self.schema = schema
        self._sent: dict[str, str] = {}

    def sent(self, template: str) -> str:
        """The statement as sent, with $1, $2 ... for the parameters."""
        statement = self._sent.get(template)
        if statement is None:
            numbers = itertools.count(1)
            text = re.sub(r"%s(::json|::\w+\[\])?", lambda at: _parameter(next(numbers), at[1]), renamed(template))
            statement = self._sent[template] = text.replace("{schema}", quoted(self.schema))
        return statement


def _parameter(number: int, kind: str | None) -> str:
    """JSON and arrays are sent as text: a user's connection may encode these types differently."""
    return f"${number}::text{kind}" if kind else f"${number}"
