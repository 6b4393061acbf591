"""JSON that a sender wrote, read in a time that its size bounds."""

from __future__ import annotations

from typing import Any, Final

import msgspec

from treadle.core.json_depth import refuse_deep

# msgspec's own reader of floats takes up to 14 us for one such as 1e300, Python's 0.3 us: 64 KiB of them stopped a
# process for 0.15 s.
_decode: Final = msgspec.json.Decoder(float_hook=float).decode


def read_json(text: str | bytes | bytearray | memoryview) -> Any:
    """The value of a JSON text. Raises one of `errors.UNREADABLE`, also for more levels than `json_depth.DEEPEST`."""
    refuse_deep(text)
    return _decode(text)
