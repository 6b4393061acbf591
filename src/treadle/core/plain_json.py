"""JSON that a sender wrote, read in a time that its size bounds."""

from __future__ import annotations

from typing import Final

import msgspec

# msgspec's own reader of floats takes up to 14 us for one such as 1e300, Python's 0.3 us: 64 KiB of them stopped a
# process for 0.15 s.
read_json: Final = msgspec.json.Decoder(float_hook=float).decode
