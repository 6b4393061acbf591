"""Defaults inside SQL and Lua: `${KEEP}` in a text of ours is the number that `defaults.py` has under that name."""

from __future__ import annotations

import re

from treadle.core import defaults


def filled(text: str) -> str:
    """The text with each number in its place. Raises AttributeError for a name that `defaults.py` does not have."""
    return re.sub(r"\$\{([A-Z_]+)\}", lambda found: f"{getattr(defaults, found[1]):.17g}", text)
