"""Histories of durable jobs: what their runs have recorded, in a form that a file keeps and a test replays."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from typing import Any, Final, Protocol

import msgspec
from msgspec import Raw, Struct
from msgspec.structs import replace

from treadle.core.errors import UNREADABLE, BadOption
from treadle.core.job import has_result
from treadle.core.model import ARGUMENTS_NOW, OURS, NewJob, Pairs, Record, State
from treadle.core.ranges import OWN
from treadle.policy.judge import upstreams
from treadle.policy.parts import is_part
from treadle.storage import Pages, whole
from treadle.storage.contract import Storage
from treadle.workflow import encoding_of

FORMAT: Final = 1  # a higher number follows when a reader of this format would misread a line
PAGE: Final = 200
WHOLE: Final = 20  # rows with all their steps that are in memory at a time


class Upstream(Struct, frozen=True, omit_defaults=True):
    """A job that a history's job waited for. `of`: the tasks that encoded the result; `reason`: why it did not
    succeed."""

    id: str
    task: str
    state: State
    result: str | None = None
    of: Any = None
    reason: str | None = None


class History(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One job and its recorded steps: a line of the file.

    format    FORMAT
    at        when it was exported, seconds since 1970
    payload   the stored text of the call
    steps     the names and texts of the checkpoints, in their order; also those of the engine ("treadle:...")
    after     the jobs that it waited for, in the order in which it gets their results
    upstream  those of them that are still stored
    """

    format: int
    at: float
    id: str
    task: str
    state: State
    payload: str
    steps: Pairs
    queue: str = "default"
    version: int = 1
    attempt: int = 0
    lost: int = 0
    started_at: float | None = None
    created_at: float = 0.0
    retry: str | None = None
    headers: Pairs = ()
    labels: tuple[str, ...] = ()
    root: str | None = None
    parent: str | None = None
    after: tuple[str, ...] = ()
    upstream: tuple[Upstream, ...] = ()

    @property
    def record(self) -> Record:
        """The row of the job, as a worker would claim it."""
        job = NewJob(
            id=self.id,
            task=self.task,
            payload=self.payload,
            queue=self.queue,
            retry=self.retry,
            headers=self.headers,
            labels=self.labels,
            root=self.root,
            parent=self.parent,
            after=self.after,
        )
        return Record(
            job=job,
            version=self.version,
            state=State.RUNNING,
            after=self.after,
            attempt=self.attempt,
            lost=self.lost,
            checkpoints=self.steps,
            created_at=self.created_at,
            started_at=self.started_at,
        )


class Hides(Protocol):
    """Hides secrets in JSON."""

    def json(self, value: Any, /) -> Raw: ...
    def named(self, name: str, value: Any, /) -> Raw: ...
    def headers(self, headers: Any, /) -> dict[str, str]: ...
    def stored(self, text: str, /) -> str: ...


class Lists(Protocol):
    """The parts of an app that are used here."""

    @property
    def jobs(self) -> Any: ...
    @property
    def storage(self) -> Any: ...
    def now(self) -> float: ...


async def histories(
    core: Lists,
    filters: Mapping[str, Any],
    most: int | None = None,
    hide: Callable[[Record], Record] = lambda row: row,
) -> AsyncIterator[History]:
    """The histories of the jobs that `app.jobs.list` finds with these filters and that have recorded steps, oldest
    first. `hide` removes from a row what may not be shown. Raises what `list` raises."""
    async for page in Pages(lambda cursor: core.jobs.list(cursor=cursor, limit=PAGE, order="oldest", **filters)):
        # A cleanup or the try of a step continues the history of another job, and has only its own steps.
        ids = [row.job.id for row in page.records if not row.function_done and _runs_alone(row.job)]
        async for row in _each(core.storage, ids):
            if row is None or row.function_done or all(name.startswith(OURS) for name, _ in row.checkpoints):
                continue
            yield await _history(row, core.storage, core.now(), hide)
            most = None if most is None else most - 1
            if most == 0:
                return


def _runs_alone(job: NewJob) -> bool:
    """Whether this is a job of a task of the app, over its own history."""
    return not job.task.startswith(OWN) and not is_part(job)


async def _each(storage: Storage, ids: Sequence[str]) -> AsyncIterator[Record | None]:
    for start in range(0, len(ids), WHOLE):
        for row in await whole(storage, await storage.get(ids[start : start + WHOLE]), "payload", "checkpoints"):
            yield row


async def _history(row: Record, storage: Storage, exported_at: float, hide: Callable[[Record], Record]) -> History:
    row = hide(row)
    job = row.job
    ups = [hide(up) for up in await _stored(storage, upstreams(row))]
    return History(
        format=FORMAT,
        at=exported_at,
        id=job.id,
        task=job.task,
        state=row.state,
        payload=job.payload,
        steps=row.checkpoints,
        queue=job.queue,
        version=row.version,
        attempt=row.attempt,
        lost=row.lost,
        started_at=row.started_at,
        created_at=row.created_at,
        retry=job.retry,
        headers=job.headers,
        labels=job.labels,
        root=job.root,
        parent=job.parent,
        after=upstreams(row),
        upstream=tuple(
            Upstream(
                up.job.id, up.job.task, up.state, up.result if has_result(up) else None, encoding_of(up), up.reason
            )
            for up in ups
        ),
    )


async def _stored(storage: Storage, ids: Sequence[str]) -> list[Record]:
    """The rows with these ids that are still stored, with their results."""
    rows: list[Record] = []
    for start in range(0, len(ids), PAGE):
        page = await storage.get(ids[start : start + PAGE])
        rows += [row for row in await whole(storage, page, "result") if row is not None]
    return rows


def line(history: History, hides: Hides | None) -> str:
    """The history as one line of JSON. `hides`: removes secrets; None: nothing is hidden."""
    if hides is not None:
        history = replace(
            history,
            payload=_without(history.payload, hides),
            steps=tuple((name, _step(name, text, hides)) for name, text in history.steps),
            headers=tuple(hides.headers(history.headers).items()),
            upstream=tuple(
                replace(up, result=None if up.result is None else _without(up.result, hides)) for up in history.upstream
            ),
        )
    return msgspec.json.encode(history).decode()


def _without(text: str, hides: Hides) -> str:
    """A stored text with its secrets hidden; a codec's own format has no names, so all of it is hidden."""
    try:
        msgspec.json.decode(text)
    except UNREADABLE:
        return msgspec.json.encode(hides.stored(text)).decode()
    return bytes(hides.json(Raw(text.encode()))).decode()


def _step(name: str, text: str, hides: Hides) -> str:
    """A checkpoint with the secrets of its value hidden; the order of the steps stays."""
    if name == ARGUMENTS_NOW:
        return _without(text, hides)
    try:
        fields = msgspec.json.decode(text, type=dict[str, Raw])
    except UNREADABLE:
        return text
    if "failure" in fields:
        failure = msgspec.json.decode(fields["failure"], type=dict[str, Raw])
        _hide(name, failure, ("args", "fields", "message"), hides)
        fields["failure"] = Raw(msgspec.json.encode(failure))
    _hide(name, fields, ("value", "text"), hides)
    return msgspec.json.encode(fields).decode()


def _hide(name: str, fields: dict[str, Raw], names: Sequence[str], hides: Hides) -> None:
    for field in names:
        if field in fields:
            fields[field] = hides.named(name, fields[field])


_read = msgspec.json.Decoder(History).decode


def read(lines: Sequence[str | bytes]) -> list[History]:
    """The histories in these lines of a file; empty lines are left out. Raises BadOption with the number of a line that
    is no history."""
    histories = []
    for number, text in enumerate(lines, 1):
        if not text.strip():
            continue
        try:
            history = _read(text)
        except UNREADABLE as error:
            what = f"line {number} is no history of `treadle jobs export`: {error}"
            raise BadOption("histories", what) from None
        if history.format != FORMAT:
            raise BadOption(
                "histories", f"line {number} has the format {history.format}, expected {FORMAT}: export again"
            )
        histories.append(history)
    return histories
