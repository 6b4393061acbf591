"""Empty schemas for tests: making one takes 0.1 s, so those a test is done with are emptied and given out again."""

from __future__ import annotations

import functools
import itertools
import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from urllib.parse import quote

import psycopg
from psycopg import sql

from tests.servers import postgres

_numbers = itertools.count()
_used: list[str] = []


@functools.cache
def admin() -> psycopg.Connection[Any]:
    """A connection of the tests' own to the database they share."""
    return psycopg.connect(postgres.url(), autocommit=True)


def url_of(schema: str, **options: object) -> str:
    words = "".join(f"&{name}={quote(str(value))}" for name, value in options.items())
    return f"{postgres.url()}?schema={quote(schema)}{words}"


def take_schema() -> str:
    """The name of an empty schema, or of one that is not there yet."""
    if not _used:
        return f"t{os.getpid()}_{next(_numbers)}"
    schema = _used.pop()
    found = admin().execute(
        "SELECT relname FROM pg_class WHERE relnamespace = %s::regnamespace AND relkind = 'r'"
        " AND relname NOT IN ('migration', 'function_set', 'meta')",
        (schema,),
    )
    for (table,) in found.fetchall():
        admin().execute(sql.SQL("DELETE FROM {}").format(sql.Identifier(schema, table)))
    return schema


def give_back(schema: str) -> None:
    _used.append(schema)


@contextmanager
def a_schema() -> Iterator[str]:
    schema = take_schema()
    yield schema
    give_back(schema)  # not after a failure: what is in it may be of interest
