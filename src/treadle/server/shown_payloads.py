"""The payloads of a job as JSON for people, and why one of them is not shown as it is stored."""

from __future__ import annotations

from typing import Any, Final, Literal

import msgspec
from msgspec import Raw

from treadle.admin import stored_values
from treadle.core.long_numbers import has_long_number
from treadle.core.model import Record
from treadle.core.payload_redaction import LARGEST, Redaction
from treadle.core.redaction import HIDDEN
from treadle.core.stored_text import offloaded, sealed
from treadle.serialization.tagged_json import has_mark
from treadle.server.body_weight import SMALL

ENCODE: Final = msgspec.json.Encoder(enc_hook=repr).encode  # dates as text, bytes as base64, anything else as its repr

Payload = Literal["arguments", "result", "headers"]
Why = Literal["hidden", "shape", "offloaded", "encrypted", "unreadable", "typed"]

_any = msgspec.json.Decoder(Raw).decode
_decode = msgspec.json.Decoder().decode


def arguments(payload: str, redaction: Redaction) -> tuple[Any, Any, Why | None]:
    """The arguments by position and by name, and why they are not shown as they are stored."""
    try:
        if _is_sent_on(payload):
            args, kwargs = _large(payload)
            shown = redaction.args(args), redaction.kwargs(kwargs)
            return *shown, _changed((args, kwargs), shown, redaction)
        given, named = stored_values.arguments(payload)
        before = [Raw(ENCODE(each)) for each in given]
        before_named = {stored_values.utf8(name): Raw(ENCODE(each)) for name, each in named.items()}
        after, after_named = [redaction.json(each) for each in before], redaction.kwargs(before_named)
    except Exception:  # as in stored_values: constructors and `__repr__` of users may raise anything
        return [redaction.stored(stored_values.utf8(payload))], {}, _form(payload) or "unreadable"
    why = _form(payload) or ("unreadable" if given and given[0] is payload else None)
    changed = _changed((before, before_named), (after, after_named), redaction)
    return after, after_named, why or changed or _typed(payload)


def plain(text: str | None, redaction: Redaction) -> tuple[Any, Why | None]:
    """A value, and why it is not shown as it is stored."""
    if text is None:
        return None, None
    try:
        if _is_sent_on(text):
            before = _any(text)
        else:
            before = Raw(ENCODE(stored_values.value(text)))
        after = redaction.json(before)
    except Exception:  # as in `arguments`
        return redaction.stored(stored_values.utf8(text)), _form(text) or "unreadable"
    return after, _form(text) or _changed(before, after, redaction) or _typed(text)


def headers(row: Record, redaction: Redaction) -> tuple[dict[str, str], Why | None]:
    """The headers of a job, and why they are not shown as they are stored."""
    stored = dict(row.job.headers)
    shown = redaction.headers(stored)
    if shown == stored and HIDDEN not in shown.values():
        return shown, None
    return shown, "shape" if redaction.shapes else "hidden"


def hides(stored: str | None, shown: str | None) -> bool:
    """Whether the text of a row lacks something that is stored. Only its form differs for an app with its own codec."""
    if stored == shown or stored is None or shown is None:
        return False
    if len(stored) > LARGEST:
        return True
    try:
        return bool(_decode(stored) != _decode(shown))
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        return HIDDEN in shown


def _is_sent_on(text: str) -> bool:
    """Whether a large text is shown without decoding it; with a number that clients cannot read it is shown as text."""
    return len(text) > SMALL and not has_mark(text) and not has_long_number(text)


def _large(payload: str) -> tuple[Raw, Raw]:
    """Raises ValueError if the text has no arguments."""
    if payload.startswith("["):
        return _any(payload), Raw(b"{}")
    found = msgspec.json.decode(payload, type=dict[str, Raw])
    return found.get("args", Raw(b"[]")), found.get("kwargs", Raw(b"{}"))


def _form(text: str) -> Why | None:
    """Why the text itself is not there: the blob store did not return it, or its key is not known here."""
    return "offloaded" if offloaded(text) else "encrypted" if sealed(text) else None


def _typed(text: str) -> Why | None:
    """Values of types that JSON lacks, such as dates, are shown as texts."""
    return "typed" if has_mark(text) else None


def _changed(before: Any, after: Any, redaction: Redaction) -> Why | None:
    """The reason, if what is shown has other values than what is stored."""
    why: Why = "shape" if redaction.shapes else "hidden"
    if before is after or (stored := ENCODE(before)) == (shown := ENCODE(after)):
        return None
    try:  # the same values may be written with other white space
        return why if len(stored) > LARGEST or _decode(stored) != _decode(shown) else None
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        return why
