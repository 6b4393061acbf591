"""Streams of runners in other languages: each call stores a page with its chunks, as a run in Python does."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from treadle.core import defaults
from treadle.core.errors import UNREADABLE, BadOption, BadStep, TooLarge
from treadle.core.plain_json import refuse_deep
from treadle.core.ranges import a_span, check_ids
from treadle.durable import StreamLog, check_name
from treadle.policy.run_log import LOG
from treadle.server.stream_messages import StreamWrite
from treadle.workflow.streams import streams_of

if TYPE_CHECKING:
    from treadle.durable import Durable

TRY: Final = 0  # the number of the try of each step: a runner tries a step once in a run


def checked_chunks(call: StreamWrite) -> list[str]:
    """The chunks of a call. Raises BadOption, BadStep and TooLarge."""
    check_ids("id", [call.id])
    a_span("lease", call.lease)
    check_name(call.name)
    if call.name == LOG:
        raise BadStep(call.name, "is the stream of the log lines of a job; choose another name")
    chunks = list[str]()
    for value in call.values:
        if (size := len(value)) > defaults.MAX_CHUNK:
            raise TooLarge(f"a chunk of the stream {call.name!r}", size, defaults.MAX_CHUNK, "write it in parts")
        try:
            refuse_deep(value)
        except UNREADABLE as error:
            raise BadOption("values", f"a chunk of the stream {call.name!r} cannot be read: {error}") from None
        chunks.append(bytes(value).decode())
    return chunks


async def write_chunks(durable: Durable, call: StreamWrite, chunks: Sequence[str]) -> int:
    """Store chunks -> the offset behind them. Raises BadStep, TooLarge and StorageError, and what `save` raises if the
    job no longer belongs to this run."""
    steps = durable.checkpoints
    if call.step and steps.is_over(call.step):
        raise BadStep(call.step, "has ended: send what its effect writes before its result")
    if not call.step and steps.has_asked:
        raise BadStep(call.name, "this job takes steps: write in one of them, and send its `step`")
    stream = StreamLog(durable, call.name)
    stream.resume(call.step, TRY)
    end = await stream.end()
    if call.at is not None and end > call.at:
        return end  # the call before this one has stored them
    return await stream.append(call.step, TRY, chunks)


async def complete_step(durable: Durable, step: str) -> None:
    """The step has succeeded: what earlier runs of it have written is void, also if this one has written nothing."""
    for name in streams_of(durable.run.record.checkpoints):
        stream = StreamLog(durable, name)
        stream.resume(step, TRY)
        if stream.has_other(step, TRY):
            await stream.store((), [(step, TRY)])
        stream.complete(step)
