"""The HTTP messages of streams: what runs write while they run, and what readers follow."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Literal

from msgspec import UNSET, Meta, Raw, Struct, UnsetType, field

from treadle.core import defaults

MOST_ENTRIES = 1_000  # entries of one page


class StreamNames(Struct, frozen=True):
    """The streams of a job. `log` has the log lines of its runs."""

    names: Sequence[str]


class StreamRead(Struct, frozen=True, kw_only=True):
    """Where to begin, how many entries to return at most, and how many seconds to wait for the first one."""

    start: Annotated[int, Meta(ge=0)] = field(default=0, name="from")
    limit: Annotated[int, Meta(ge=1, le=MOST_ENTRIES)] = MOST_ENTRIES
    wait: Annotated[float, Meta(ge=0, description="Seconds.")] = 0.0


class StreamEntry(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A chunk, which has a `value`, or a reset, which has `to`: the chunks of this step from that offset on are void,
    because the step runs again.

    step  the step that wrote it; "" outside of steps
    """

    offset: int
    step: str
    value: Raw | UnsetType = UNSET
    to: int | UnsetType = UNSET


class StreamPage(Struct, frozen=True):
    """The entries of a stream from an offset on.

    next   the offset of the next page
    ended  the job has ended, and there are no entries behind these
    """

    entries: Sequence[StreamEntry]
    next: int
    ended: bool


class StreamWrite(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Chunks of the stream `name` of a job that this runner holds.

    step    the `step` of the answer to a step call, for what the effect of that step writes; "" outside of steps
    values  each a chunk, any JSON
    at      `next` of the answer before. If the stream has more entries, this call is a repetition, and its chunks are
            stored already. None: the first call of the run
    lease   seconds for which the call renews the lease
    """

    id: str
    version: int
    name: str
    values: Annotated[list[Raw], Meta(max_length=MOST_ENTRIES)]
    step: str = ""
    at: Annotated[int, Meta(ge=0)] | None = None
    lease: float = defaults.LEASE


class StreamWritten(Struct, frozen=True):
    """status: stored, or lost: drop the job, it is no longer of this run. next: the offset behind the chunks."""

    status: Literal["stored", "lost"]
    next: int
