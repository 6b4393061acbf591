"""The shape of a JSON value: its types and lengths, for callers that may not read the value itself."""

from __future__ import annotations

import re
from typing import Any, Final

PLAIN_KEY: Final = re.compile(r"[A-Za-z_][\w-]{0,63}", re.ASCII)
SHOWN: Final = 10  # items of a list


def shape_of(value: Any) -> Any:
    """The types and lengths of a JSON value. Keys stay if they look like names."""
    if isinstance(value, dict):
        return {key_shape(name): shape_of(part) for name, part in value.items()}
    if isinstance(value, list):
        more = [f"{len(value) - SHOWN:,} more"] if len(value) > SHOWN else []
        return [shape_of(part) for part in value[:SHOWN]] + more
    if isinstance(value, str):
        return f"text({len(value)})"
    if value is None:
        return None
    return "boolean" if isinstance(value, bool) else "number"


def key_shape(name: str) -> str:
    return name if PLAIN_KEY.fullmatch(name) else f"text({len(name)})"
