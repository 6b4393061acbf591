"""The payloads of a job as JSON for people, and why one of them is not shown as it is stored."""

from __future__ import annotations

from typing import Any, Final, Literal

import msgspec
from msgspec import Raw

from treadle.admin import stored_values
from treadle.core.model import Record
from treadle.core.payload_redaction import Redaction
from treadle.core.redaction import HIDDEN
from treadle.core.stored_text import offloaded, sealed
from treadle.serialization import has_mark

ENCODE: Final = msgspec.json.Encoder(enc_hook=repr).encode  # dates as text, bytes as base64, anything else as its repr

Payload = Literal["arguments", "result", "headers"]
Why = Literal["hidden", "shape", "offloaded", "encrypted", "unreadable", "typed"]


def arguments(payload: str, redaction: Redaction) -> tuple[Any, Any, Why | None]:
    """The arguments by position and by name of a row whose secrets are hidden, and why they are not shown as they are
    stored."""
    if (size := _size(payload, redaction)) is not None:
        return [size], {}, "shape"
    redaction = redaction if has_mark(payload) else redaction.rest
    try:
        if stored_values.is_shown_as_stored(payload):
            args, kwargs = _parts(payload)
            shown = redaction.args(args), redaction.kwargs(kwargs)
            return *shown, _changed((args, kwargs), shown, redaction) or _typed(payload)
        stored, named = stored_values.arguments(payload)
        before = [Raw(ENCODE(value)) for value in stored]
        before_named = {stored_values.utf8(name): Raw(ENCODE(value)) for name, value in named.items()}
        after, after_named = [redaction.json(value) for value in before], redaction.kwargs(before_named)
    except Exception:  # as in stored_values: constructors and `__repr__` of users may raise anything
        return [redaction.stored(stored_values.utf8(payload))], {}, _form(payload) or "unreadable"
    why = _form(payload) or ("unreadable" if stored and stored[0] is payload else None)
    changed = _changed((before, before_named), (after, after_named), redaction)
    return after, after_named, why or changed or _typed(payload)


def plain(text: str | None, redaction: Redaction) -> tuple[Any, Why | None]:
    """A value of a row whose secrets are hidden, and why it is not shown as it is stored."""
    if text is None:
        return None, None
    if (size := _size(text, redaction)) is not None:
        return size, "shape"
    redaction = redaction if has_mark(text) else redaction.rest
    try:
        shown = stored_values.is_shown_as_stored(text)
        before = stored_values.raw(text) if shown else Raw(ENCODE(stored_values.value(text)))
        after = redaction.json(before)
    except Exception:  # as in `arguments`
        return redaction.stored(stored_values.utf8(text)), _form(text) or "unreadable"
    return after, _form(text) or _changed(before, after, redaction) or _typed(text)


def headers(stored: Record, row: Record, redaction: Redaction) -> tuple[dict[str, str], Why | None]:
    """The headers of a job, and why they are not shown as they are stored. `row`: the one whose secrets are hidden."""
    shown = redaction.headers(row.job.headers)
    if shown == dict(stored.job.headers) and HIDDEN not in shown.values():
        return shown, None
    return shown, "shape" if redaction.shapes else "hidden"


def hides(stored: str | None, shown: str | None) -> bool:
    """Whether the text of a row lacks something that is stored. For an app with its own codec,
    only the form of the text differs."""
    return stored != shown and shown is not None and HIDDEN in shown


def _parts(payload: str) -> tuple[Raw, Raw]:
    """The arguments by position and by name. Raises ValueError if the text has no arguments."""
    if payload.startswith("["):
        return stored_values.raw(payload), Raw(b"{}")
    parts = msgspec.json.decode(payload, type=dict[str, Raw])
    args, kwargs = parts.pop("args", Raw(b"[]")), parts.pop("kwargs", Raw(b"{}"))
    if parts or bytes(args)[:1] != b"[" or bytes(kwargs)[:1] != b"{":
        raise ValueError("expected args and kwargs")
    return args, kwargs


def _size(text: str, redaction: Redaction) -> str | None:
    """The size of a text too large for its shape. It is not read: 8 MB of brackets take 90 ms."""
    size = redaction.size_of(text)
    return size if size is None or _form(text) is None else None


def _form(text: str) -> Why | None:
    """Why the text itself is missing: the blob store did not return it, or the key that it needs is not known here."""
    return "offloaded" if offloaded(text) else "encrypted" if sealed(text) else None


def _typed(text: str) -> Why | None:
    """Values of types that JSON lacks, such as dates, are shown as texts."""
    return "typed" if has_mark(text) else None


def _changed(before: Any, after: Any, redaction: Redaction) -> Why | None:
    """The reason why the shown text differs from the stored one; None if it does not."""
    if before is after or ENCODE(before) == ENCODE(after):
        return None
    return "shape" if redaction.shapes else "hidden"
