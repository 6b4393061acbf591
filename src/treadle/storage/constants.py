"""Fills defaults into SQL and Lua texts: `${KEEP}` stands for the number `KEEP` of `defaults.py`."""

from __future__ import annotations

import re

from treadle.core import defaults


def filled(text: str) -> str:
    """Return the text with the numbers filled in. Raises AttributeError for a name that `defaults.py` does not have."""
    return re.sub(r"\$\{([A-Z_]+)\}", lambda found: f"{getattr(defaults, found[1]):.17g}", text)
