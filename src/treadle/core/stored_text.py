"""The two forms of a row's text that stand for another text: it is in the blob store, or it is encrypted. Pure.

Both are tagged JSON, which Treadle's codec never writes for a value of a user. So an ordinary text cannot be taken for
one of them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import msgspec
from msgspec import Struct

from treadle.core.errors import UNREADABLE, readable

if TYPE_CHECKING:
    from treadle.core.model import Record

FORM: Final = '{"$t":"'  # the start of both, and of other tagged texts
BLOB: Final = '{"$t":"blob",'
SEALED: Final = '{"$t":"sealed",'
FORMS: Final = (BLOB, SEALED)


class Offloaded(Struct, frozen=True, tag_field="$t", tag="blob"):
    """The reference to a text in the blob store: the SHA-256 of its UTF-8 bytes in hex, and their number."""

    sha256: str
    bytes: int


class Sealed(Struct, frozen=True, tag_field="$t", tag="sealed"):
    """An encrypted text: the id of its key, and the ciphertext as base64."""

    key: str
    text: str


_blob = msgspec.json.Decoder(Offloaded).decode
_sealed = msgspec.json.Decoder(Sealed).decode


def offloaded(text: str | None) -> Offloaded | None:
    """The reference that this text contains; None if it is an ordinary text."""
    if text is None or not text.startswith(BLOB):
        return None
    try:
        blob = _blob(text)
    except UNREADABLE:
        return None
    return blob if len(blob.sha256) == 64 and set(blob.sha256) <= set("0123456789abcdef") else None


def sealed(text: str | None) -> Sealed | None:
    """The encrypted text that a text is; None for any other text."""
    if text is None or not text.startswith(SEALED):
        return None
    try:
        return _sealed(text)
    except UNREADABLE:
        return None


def as_text(form: Offloaded | Sealed) -> str:
    return msgspec.json.encode(form).decode()


def placeholder(text: str | None) -> str | None:
    """The words that are shown to people in place of such a text; None for any other text."""
    if text is None or not text.startswith(FORM):
        return None
    if (blob := offloaded(text)) is not None:
        return f"({blob.bytes:,} bytes in the blob store)"
    plain = readable(text)
    return None if plain is text else plain


def lacks(text: str) -> str | None:
    """Why a program that finds this text cannot read it; None for any other text."""
    if (blob := offloaded(text)) is not None:
        return (
            f"the {blob.bytes:,} bytes with SHA-256 {blob.sha256[:12]}... are not in this app's blob store: they "
            "were deleted or belong to another job, or App(blobs=...) names another place"
        )
    if (closed := sealed(text)) is not None:
        return (
            f"it was encrypted with the key {closed.key[:64]!r}, and cannot be decrypted here: App(keys=...) lacks "
            "this key, or the text was changed or belongs to another job"
        )
    return None


def has_forms(record: Record) -> bool:
    """Whether an argument or a step of the row is in such a form."""
    if record.job.payload.startswith(FORMS):
        return True
    return bool(record.checkpoints) and any(text.startswith(FORMS) for _, text in record.checkpoints)
