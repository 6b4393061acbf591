"""The entries of a stream as people may see them: as JSON, without secrets."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import msgspec
from msgspec import Raw

from treadle.admin import stored_values
from treadle.core.errors import UNREADABLE
from treadle.core.model import Record
from treadle.core.payload_redaction import Redaction

ENCODE: Final = msgspec.json.Encoder(enc_hook=repr).encode  # dates as text, bytes as base64, anything else as its repr


class ShownStream:
    """Shows the values of a stream of this row's job. A secret that is spread over two values is not recognised. The
    name of the stream hides nothing: many are named "tokens"."""

    def __init__(self, row: Record, redaction: Redaction | None) -> None:
        """`redaction`: what to hide; None: nothing."""
        self._redaction = None if redaction is None else redaction.of(row)
        rows = None if redaction is None else redaction.rows
        self._hide: Callable[[str], str] | None = None if rows is None else rows.hiding(row)

    def value(self, text: str) -> Raw:
        """The value of this stored text."""
        value = stored_values.as_json(text)
        raw = value if isinstance(value, Raw) else stored_values.carried(value, repr(type(value)), ENCODE)
        if not isinstance(raw, Raw):
            raw = Raw(ENCODE(raw))
        if self._redaction is not None:
            raw = self._redaction.json(raw)
        if self._hide is None:
            return raw
        shown = bytes(raw).decode()
        return raw if self._hide(shown) == shown else Raw(ENCODE(self._hidden(shown)))

    def _hidden(self, text: str) -> Any:
        """The JSON without the secrets that its texts contain."""
        try:
            return self._without(msgspec.json.decode(text))
        except (*UNREADABLE, RecursionError):
            return self._within(text)

    def _without(self, tree: Any) -> Any:
        if isinstance(tree, dict):
            return {name: self._without(part) for name, part in tree.items()}
        if isinstance(tree, list):
            return [self._without(part) for part in tree]
        return self._within(tree) if isinstance(tree, str) else tree

    def _within(self, text: str) -> str:
        assert self._hide is not None
        return self._hide(text)
