"""Converts outcomes to the bytes that `lua/settle.lua` reads."""

from __future__ import annotations

import struct
from typing import Final

from treadle.core.model import ASKED, SUPERSEDED, Outcome
from treadle.storage.redis.rows import NONE, NUMBER, encode, or_false

_ENDING: Final = struct.Struct(">cBiId")


def _is_ending(out: Outcome) -> bool:
    """Whether the outcome only ends the job, so that the script builds the row without unpacking anything."""
    return (
        out.state.final
        and not out.followups
        and not out.after
        and not out.checkpoints
        and not out.function_done
        and out.note is None
        and not out.reach
        and (out.reason is None or (out.reason != ASKED and out.reason != SUPERSEDED))
    )


def outcome_bytes(out: Outcome) -> bytes:
    if _is_ending(out):
        tail = b""
        if not (out.result is None and out.value is None and out.error is None and out.reason is None):
            tail = encode(
                (
                    False,
                    False,
                    or_false(out.result),
                    or_false(out.value),
                    or_false(out.error),
                    or_false(out.reason),
                    False,
                    False,
                    False,
                )
            )
        keep = NONE if out.keep is None else out.keep
        return _ENDING.pack(b"s", NUMBER[out.state], out.version, out.attempt, keep) + tail
    fields = {
        "state": NUMBER[out.state],
        "version": out.version,
        "delay": out.delay,
        "attempt": out.attempt,
        "result": out.result,
        "value": out.value,
        "error": out.error,
        "reason": out.reason,
        "checkpoints": out.checkpoints,
        "note": out.note,
        "after": out.after,
        "required": out.required,
        "failures_allowed": out.failures_allowed,
        "function_done": out.function_done,
        "keep": out.keep,
        "reach": out.reach,
    }
    return b"f" + encode(fields)
