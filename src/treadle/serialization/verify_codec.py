"""Checks that a user's codec restores the values that it encodes, because such a loss would only show when a job
runs."""

from __future__ import annotations

import math
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from typing import Final
from uuid import UUID

from treadle.core.errors import BadCodec
from treadle.serialization.comparison import same
from treadle.serialization.tagged_json import Codec
from treadle.serialization.tags import found, short

PROBES: Final[tuple[object, ...]] = (
    None,
    True,
    1,
    -2.5,
    "",
    "a \u20ac \U0001f9f5 \x00",
    [None, [None], {"a": None}],
    [1, 1.0, True],
    (1, (2,)),
    2**63,
    -(2**200),
    math.inf,
    math.nan,
    b"\x00\xff",
    Decimal("1.10"),
    UUID(int=7),
    {1, 2},
    frozenset({"a"}),
    datetime.fromisoformat("2024-02-29T12:30:01.000005"),
    datetime(2024, 2, 29, 12, 30, tzinfo=UTC),
    date(2024, 2, 29),
    time(1, 2, 3, 4),
    timedelta(days=-1, microseconds=1),
    {"": 1, "b": {}},
    {1: "a", "1": "b", (2, 3): None, None: 0},
    {"$t": "tuple", "v": [1]},
    {"a": {"$t": 1}},
    {"args": [], "kwargs": {}},
    ValueError("no"),
    [KeyError("k")],
)


def probe(codec: Codec) -> None:
    """Encode and decode values of all kinds that Treadle itself stores. Raises BadCodec, with the first value that is
    not restored equal and of the same type; an exception may be restored as RemoteError."""
    for value in PROBES:
        try:
            text: object = codec.encode(value)
            back = codec.decode(text) if isinstance(text, str) else None
        except Exception as error:  # a user's codec may raise anything
            raise BadCodec(
                f"{codec!r} cannot encode or decode {short(value)}: {type(error).__name__}: {error}"
            ) from error
        if not isinstance(text, str):
            raise BadCodec(f"{codec!r} must encode to str, got {found(text)} for {short(value)}")
        if not same(value, back):
            raise BadCodec(f"{codec!r} does not restore {found(value)}: it returned {found(back)}")
