"""Decodes and encodes long lists in slices, because one call of the decoder or encoder blocks the whole process.

100,000 rows took 0.2 s to decode and 0.4 s to encode, during which the server answered no other request.
"""

from __future__ import annotations

import functools
import typing
from collections.abc import Callable
from typing import Annotated, Any, Final, NamedTuple

import msgspec
from msgspec import UNSET, Raw, Struct
from msgspec.structs import fields, replace

from treadle.serialization import Content, beyond
from treadle.server.errors import Refused
from treadle.server.row_checks import given_in, misfit
from treadle.server.time_slices import TimeSlices, in_turns

LONG: Final = 200  # rows; shorter lists are encoded in one call
ROWS: Final = 10  # rows per call of the encoder: each may have 16 MiB

_encode = msgspec.json.Encoder().encode


class Misfit(msgspec.ValidationError):
    """A row of the wrong shape, with the text for the response."""


class _Listing(NamedTuple):
    """A type with a list of rows, and its decoders."""

    name: str
    outer: msgspec.json.Decoder[Any]  # decodes the type with its rows as text
    row: msgspec.json.Decoder[Any]
    make: Callable[[list[Any]], Any]


@functools.cache
def _listing(kind: Any) -> _Listing | None:
    """The first list of rows of a type; None if it has none."""
    if not (isinstance(kind, type) and issubclass(kind, Struct)):
        return None
    for field in fields(kind):
        base, *meta = typing.get_args(field.type) if typing.get_origin(field.type) is Annotated else (field.type,)
        make, rows = typing.get_origin(base), typing.get_args(base)
        if make in (tuple, list) and isinstance(rows[0], type) and issubclass(rows[0], Struct):
            raw: Any = list[Raw]
            for constraint in meta:
                raw = Annotated[raw, constraint]
            outer = msgspec.defstruct(
                kind.__name__,
                [_raw(other, raw) if other.name == field.name else _same(other) for other in fields(kind)],
                forbid_unknown_fields=kind.__struct_config__.forbid_unknown_fields,
                kw_only=True,
            )
            return _Listing(field.name, msgspec.json.Decoder(outer), msgspec.json.Decoder(rows[0]), make)
    return None


def _raw(field: msgspec.structs.FieldInfo, kind: Any) -> Any:
    """The definition of the list of rows as undecoded text; empty if it is optional and left out."""
    return (field.name, kind) if field.required else (field.name, kind, msgspec.field(default_factory=list))


def _same(field: msgspec.structs.FieldInfo) -> Any:
    if field.required:
        return field.name, field.type
    if field.default is not msgspec.NODEFAULT:
        return field.name, field.type, field.default
    return field.name, field.type, msgspec.field(default_factory=field.default_factory)


async def decoded(content: bytes | bytearray, kind: Any) -> Any:
    """Decode as a decoder of `kind` does; None if `kind` has no list of rows.

    Raises Misfit, ValidationError or DecodeError. Errors outside the rows are reported before those in rows. If the
    list occurs twice, only the last one is checked.
    """
    listing = _listing(kind)
    if listing is None:
        return None
    outer = listing.outer.decode(content)
    number = -1

    def one(raw: Raw) -> Any:
        nonlocal number
        number += 1
        return listing.row.decode(raw)

    try:
        rows = await in_turns(one, getattr(outer, listing.name))
    except msgspec.ValidationError as error:
        row = getattr(outer, listing.name)[number]
        field, problem = misfit(error, given_in(bytes(row)) if len(memoryview(row)) <= SMALL else UNSET)
        raise Misfit(f"{listing.name}[{number}]{field and f'.{field}'}: {problem}") from None
    values = {name: getattr(outer, name) for name in outer.__struct_fields__}
    return kind(**{**values, listing.name: listing.make(rows)})


async def encoded(value: object) -> bytes:
    """Encode as an encoder does."""
    name, most = "", LONG
    for field in getattr(value, "__struct_fields__", ()):
        items = getattr(value, field)
        if isinstance(items, tuple | list) and len(items) > most:
            name, most = field, len(items)
    if not name:  # all its lists are short
        return _encode(value)
    rows = getattr(value, name)
    emptied = _encode(replace(typing.cast("Struct", value), **{name: ()}))
    before, mark, after = emptied.partition(b'"%s":[]' % name.encode())
    if not mark:  # the field is omitted when empty
        return _encode(value)
    turns, pieces = TimeSlices(), []
    for start in range(0, len(rows), ROWS):
        pieces.append(_encode(rows[start : start + ROWS])[1:-1])
        await turns.step()
    return b"".join((before, mark[:-1], b",".join(pieces), b"]", after))


# --- the weight of a body
#
# Limits the number of values in a large body before it is decoded, because decoding blocks the whole process.
#
# A decoder cannot be interrupted, and does not let other threads run. It takes 0.1 us for a number and up to 1 us for
# an object, so 30 MB of "[],[],..." took 16 s and 1.7 GB. Counting arrays, objects and values yields to the event loop.


SMALL: Final = 64 * 2**10  # bytes that are decoded without counting: 22,000 empty arrays take 15 ms
CONTAINERS: Final = 100_000  # arrays and objects in a body: up to 1 us each
KNOWN_CONTAINERS: Final = 300_000  # arrays and objects in a body of rows of known types: 100,000 jobs with three each
VALUES: Final = 1_000_000


async def weigh(content: Content, most: int = CONTAINERS) -> None:
    """Raise Refused (413) for a body of more than VALUES values, or more than `most` arrays and objects."""
    if len(content) <= SMALL:
        return
    if (bound := await beyond(content, most, VALUES, TimeSlices().step)) is not None:
        message = f"the body has more than {bound[0]:,} {bound[1]}: send it in parts"
        raise Refused(413, "too_many_values", message, {"Connection": "close"})
