"""A storage whose large texts are in a blob store, and whose texts are encrypted. See docs/guides/payloads.md."""

from __future__ import annotations

from treadle.storage.payloads.settings import wrapping
from treadle.storage.payloads.wrapper import PayloadStorage

__all__ = ["PayloadStorage", "wrapping"]
