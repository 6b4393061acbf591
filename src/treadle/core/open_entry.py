"""The open entry of the audit log to which the calls of this task belong. The storage of a server sends it along, so
that the server does not record the act a second time.
"""

from __future__ import annotations

from contextvars import ContextVar
from typing import Final

HEADER: Final = "Treadle-Entry"
open_entry: ContextVar[str | None] = ContextVar("treadle_open_entry", default=None)
