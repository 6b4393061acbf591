"""Calls, arguments and results as JSON text, and their checks against the function's annotations."""

from treadle.serialization.argument_check import first_misfit as first_misfit
from treadle.serialization.argument_check import misfits as misfits
from treadle.serialization.argument_check import reads as reads
from treadle.serialization.call_text import encode_foreign_call as encode_foreign_call
from treadle.serialization.encryption import Keys as Keys
from treadle.serialization.encryption import UnknownKey as UnknownKey
from treadle.serialization.json_counts import Content as Content
from treadle.serialization.json_counts import beyond as beyond
from treadle.serialization.tagged_json import has_mark as has_mark
from treadle.serialization.tags import MARK as MARK
from treadle.serialization.tags import short as short
