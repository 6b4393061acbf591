"""Calls, arguments and results as JSON text, and their checks against the function's annotations."""

from treadle.serialization.argument_check import first_misfit, misfits, reads
from treadle.serialization.call_text import encode_foreign_call
from treadle.serialization.encryption import Keys, UnknownKey
from treadle.serialization.json_counts import Content, beyond
from treadle.serialization.tagged_json import has_mark
from treadle.serialization.tags import MARK, short

__all__ = [
    "MARK",
    "Content",
    "Keys",
    "UnknownKey",
    "beyond",
    "encode_foreign_call",
    "first_misfit",
    "has_mark",
    "misfits",
    "reads",
    "short",
]
