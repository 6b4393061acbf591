"""The producer's client: stores jobs, reads rows and waits for endings; concurrent calls share a round trip."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from datetime import timedelta
from typing import Any, NamedTuple, Protocol, TypeVar

from treadle.core import defaults
from treadle.core.command_lines import command
from treadle.core.errors import BadOption, JobNotDone, KeyHeld, ResourceFailed, StorageError, UnknownJob
from treadle.core.events import Emitter, Event
from treadle.core.ids import running
from treadle.core.job import Job, JobSpec, Progress, has_result
from treadle.core.model import NewJob, Record
from treadle.execution import middleware, open_transaction
from treadle.execution.job_run import in_sole_transaction, refuse_to_wait, waits_here
from treadle.metrics import PairCounts
from treadle.policy.retry import seconds
from treadle.producer.batching import Batcher, Sender
from treadle.producer.client_parts import ClientParts
from treadle.producer.mailboxes import Mailboxes
from treadle.producer.stream_readers import StreamReaders
from treadle.producer.workflow_progress import progress_of
from treadle.storage import Bound, whole, whole_row
from treadle.storage.contract import Storage
from treadle.workflow import acyclic, decode_of, failure_of

log = logging.getLogger("treadle")

A = TypeVar("A")
B = TypeVar("B")
T = TypeVar("T")


Write = Callable[[list[NewJob]], Awaitable[Sequence[Record]]]  # stores rows -> the rows that are stored then


class Joined(NamedTuple):
    """How jobs are stored by the transaction of a framework.

    write   stores them, or arranges that they are stored later
    follow  called with the handles of jobs that are stored later; None: they are stored by `write`
    """

    write: Write
    follow: Callable[[Sequence[Job[Any, Any]]], None] | None = None


class Portal(Protocol):
    """`app.sync`, which runs coroutines of the app for threads without an event loop."""

    def _send(self, specs: Sequence[JobSpec[Any, Any]], within: Any = None) -> list[Job[Any, Any]]: ...
    def _again(self, make: Callable[[], Coroutine[Any, Any, T]]) -> T: ...


class Client:
    """The client through which tasks, specs and jobs store jobs and wait.

    tasks    those of the app, which declares more of them later
    at_hand  the storage if it is open on this event loop; replaced when the app uses another storage
    """

    def __init__(
        self,
        storage: Callable[[], Awaitable[Storage]],
        at_hand: Callable[[], Storage | None],
        bound: Callable[[Any], Bound],
        emitter: Emitter,
        tasks: Mapping[str, Any],
        parts: ClientParts,
    ) -> None:
        self._storage, self.at_hand, self._bound, self._emitter = storage, at_hand, bound, emitter
        self._tasks, self.layers, self.run_now = tasks, parts.layers, parts.run_now
        self.moved, self.orphans, self.outbox = parts.moved, parts.orphans, parts.outbox
        self._share = Sender(self._write)
        self._get: Batcher[str, Record | None] = Batcher(self._look, 1_000)
        self.mailboxes, self.streams = Mailboxes(), StreamReaders()
        self.counted: PairCounts | None = None  # jobs that calls have stored, for scrapers; see `AppCore.count`
        self.portal: Portal  # set by `app.sync`, which every app has

    # The enqueue path has few coroutines: each costs 0.25 us, and more when it is resumed.

    def send(self, specs: Sequence[JobSpec[Any]], within: Any = None) -> Awaitable[list[Job[Any, Any]]]:
        """Store the specs, all or none. They are durable when it is awaited, or when the transaction `within`
        commits."""
        if within is not None:
            return self.send_bound(specs, self._bound(within).enqueue)
        if running.get(None) is None and not self.layers:  # 1 % of an enqueue
            return self._store(specs)
        refuse_to_wait("enqueue")
        return self._through(self._store, specs)

    async def send_bound(self, specs: Sequence[JobSpec[Any]], write: Write) -> list[Job[Any, Any]]:
        """`send` inside a transaction. It emits no "enqueued" events, because the transaction may be rolled back."""

        async def store(specs: Sequence[JobSpec[Any]]) -> list[Job[Any, Any]]:
            for spec in specs:
                if spec.inline:
                    raise BadOption(
                        "inline",
                        f"{spec!r} cannot run before your transaction is committed: leave out inline= or within=",
                    )
            return await self._store(specs, write, emits=False)

        return await self._through(store, specs)

    def send_sync(self, specs: Sequence[JobSpec[Any]], within: Any = None) -> list[Job[Any, Any]]:
        """`send` for a thread without an event loop."""
        return self.portal._send(specs, within)

    def wait_sync(self, make: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """The result of a coroutine of the app that may be repeated, for a thread without an event loop."""
        return self.portal._again(make)

    async def send_rows(self, specs: Sequence[JobSpec[Any]], bound: Bound | None = None) -> list[tuple[Record, bool]]:
        """As `send`, or as `send_bound`. Returns the stored rows, and whether this call stored them, so the caller need
        not read them."""
        rows: dict[str, Record] = {}

        enqueue = self._share if bound is None else bound.enqueue

        async def write(jobs: list[NewJob]) -> Sequence[Record]:
            stored = await enqueue(jobs)
            rows.update((row.job.id, row) for row in stored)
            return stored

        jobs = await self._through(lambda specs: self._store(specs, write, emits=bound is None), specs)
        unknown = [job.id for job in jobs if job.id not in rows]  # a middleware may return other jobs
        rows.update(
            (row.job.id, row) for row in (await (bound or self).get(unknown) if unknown else ()) if row is not None
        )
        for job in jobs:
            if job.id not in rows:
                raise UnknownJob(job.id)
        return [(rows[job.id], job.created) for job in jobs]

    def _through(self, store: middleware.Send, specs: Sequence[JobSpec[Any, Any]]) -> Awaitable[list[Job[Any, Any]]]:
        """Call `store` inside the middleware, with the headers that the running job gives to its jobs."""
        here = running.get(None)
        if here is not None and here.child_headers:
            specs = [spec.inheriting(here.child_headers) for spec in specs]
        return middleware.around_enqueue(self.layers, store)(specs) if self.layers else store(specs)

    async def prepared(self, jobs: Sequence[NewJob]) -> tuple[NewJob, ...]:
        """Jobs that are stored with an outcome, after this app's middleware."""
        return await middleware.prepared(self.layers, jobs, self) if self.layers and jobs else tuple(jobs)

    async def _store(
        self,
        specs: Sequence[JobSpec[Any]],
        write: Write | None = None,
        emits: bool = True,
    ) -> list[Job[Any, Any]]:
        """Store the specs, and the other jobs of each flow with it. Returns the handle of each spec. `write`: stores
        the rows; without it the inline jobs also run here, before this returns."""
        new_jobs: list[NewJob] = []
        inline: list[str] = []
        names_others = False
        for spec in specs:
            if spec.lacks is not None:
                raise spec.lacks
            new = spec.new
            if spec.others or new.after:
                names_others = True
                new_jobs += spec.others
            new_jobs.append(new)
            if spec.inline:
                inline.append(new.id)
        if names_others:
            acyclic(new_jobs)
        try:
            rows = await (self._share if write is None else write)(new_jobs)
        except KeyHeld as error:  # remove the task's name, which the engine has added to the key
            raise KeyHeld(error.key.partition(" ")[2] or error.key, error.id) from None
        if emits and (self.counted is not None or not self._emitter.silent):
            self._report(new_jobs, rows)
        jobs: list[Job[Any, Any]] = []
        position = -1
        for spec in specs:
            position += len(spec.others) + 1
            job, new = rows[position].job, spec.new
            # The nonce is None on both sides unless the id was chosen; each call that chooses an id has its own nonce.
            created = spec.mark_sent() and job.id == new.id and job.nonce == new.nonce
            jobs.append(Job(job.id, job.task, self, spec.decode, created))
        if inline and write is None and self.run_now is not None:
            try:
                await self.run_now(inline)
            except (StorageError, ResourceFailed) as error:
                # The jobs are stored, so the call must not fail; any worker will run them.
                log.warning(
                    "could not run the inline jobs %s here; they wait for a worker: %s", ", ".join(inline), error
                )
        return jobs

    def _report(self, jobs: Sequence[NewJob], rows: Sequence[Record]) -> None:
        """Count each job that was stored, and for which no other row was returned, and emit its event `enqueued`."""
        stored = [
            row
            for new, row in zip(jobs, rows, strict=True)
            if row.job is new or (row.job.id == new.id and row.job.nonce == new.nonce)
        ]
        if self.counted is not None:
            self.counted.add_jobs([row.job for row in stored])
        for row in stored:
            self.tell("enqueued", row)

    def _write(self, jobs: list[NewJob]) -> Awaitable[Sequence[Record]]:
        storage = self.at_hand()
        return self._write_first(jobs) if storage is None else storage.enqueue(jobs)

    async def _write_first(self, jobs: list[NewJob]) -> Sequence[Record]:
        return await (await self._storage()).enqueue(jobs)

    async def _look(self, ids: list[str]) -> Sequence[Record | None]:
        return await (await self._storage()).get(ids)

    async def get(self, ids: Sequence[str]) -> Sequence[Record | None]:
        """Rows by id; concurrent calls share a round trip."""
        return await self._get(ids)

    async def whole(self, ids: Sequence[str]) -> Sequence[Record | None]:
        """Rows by id, with their large texts."""
        return await whole(await self._storage(), await self.get(ids))

    def tell(self, name: str, row: Record, error: str | None = None) -> None:
        """Emit an event about a row that was settled from outside."""
        if self._emitter.wants(name):
            job = row.job
            self._emitter.emit(Event(name=name, id=job.id, task=job.task, queue=job.queue, error=error, record=row))

    def decode(self, row: Record, text: str, folded: bool = False) -> Any:
        """A result, decoded by the codec of the task that encoded it; `folded`: a workflow's value. Raises
        BadResult."""
        return decode_of(row, self._tasks, text, folded)

    async def results(self, ids: Sequence[str]) -> list[Any]:
        """For each of these jobs, in order, its result, or the exception that says why it has none."""
        rows = await whole(await self._storage(), await self.get(ids), "result", "value")
        return [await self._result(id, row) for id, row in zip(ids, rows, strict=True)]

    async def _result(self, id: str, row: Record | None) -> Any:
        if row is None:
            return UnknownJob(id)
        if not has_result(row):
            return await self.failure(row)
        return None if row.result is None else self.decode(row, row.result)

    async def failure(self, row: Record) -> JobNotDone:
        """The error that says why a job did not succeed; for a workflow it names each failed job."""
        return await failure_of(self.get, row)

    async def progress(self, id: str) -> Progress:
        """The number of jobs in a workflow, by state. Raises UnknownJob."""
        row, storage = await self._look_at(id), await self._storage()
        return await progress_of(storage, row)

    async def ended(self, id: str, timeout: float | timedelta | None, own: bool = False) -> Record:
        """The row of a job once it has ended; `own`: once its own result is final. Raises UnknownJob, and TimeoutError
        after `timeout` seconds; with 0 it reads once."""
        row = await self._ended(id, None if timeout is None else seconds(timeout, "timeout"), own)
        return await whole_row(await self._storage(), row, "result", "value")

    async def _ended(self, id: str, limit: float | None, own: bool) -> Record:
        if limit != 0:
            try:
                async with asyncio.timeout(limit) as within:
                    return await self._heard(id, own)
            except TimeoutError:
                if not within.expired():
                    raise
        # One more read at the deadline: notifications may be lost, and polls are a second apart.
        row = await self._last_look(id, limit or 0.0)
        if row is None:
            raise await self._not_handed_over(id, limit)
        if row.state.final or (own and has_result(row)):
            return row
        raise TimeoutError(
            f"{row.job.task} {id} has not ended{f' in {limit:g} s' if limit else ''}: it is {row.state}, and "
            f"continues; {command('jobs', 'explain', id)} says why"
        )

    async def _heard(self, id: str, own: bool) -> Record:
        """The row, as soon as the job has ended."""
        if self.orphans is not None and self.orphans.listening:
            await self.orphans.waited(id)
        while True:
            storage = await self._storage()
            # Watch before the read, so that an ending in between is noticed.
            heard = asyncio.ensure_future(_hint(storage, id))
            try:
                await asyncio.sleep(0)
                row, id = await self._find(id)
                if row is not None and (row.state.final or (own and has_result(row))):
                    return row
                if self.moved is not None:
                    await self.moved.check()
                if in_sole_transaction():
                    open_transaction.refuse(f"waiting for job {id}")
                waits_here()
                await heard
            finally:
                heard.cancel()
                await asyncio.wait([heard])  # leave no task behind

    async def _last_look(self, id: str, waited: float) -> Record | None:
        try:
            async with asyncio.timeout(defaults.LAST_LOOK):
                return (await self._find(id))[0]
        except TimeoutError:
            raise TimeoutError(
                f"job {id} was not seen to end in {waited:g} s, and the storage did not answer for another "
                f"{defaults.LAST_LOOK:g} s: run `treadle doctor` to check the storage"
            ) from None

    async def _find(self, id: str) -> tuple[Record | None, str]:
        """The row and its id. The id differs if the storage returned another row for this job of the outbox. None: the
        job is still in the outbox. Raises UnknownJob."""
        [row] = await self._get([id])
        if row is not None or self.outbox is None:
            return row if row is not None else await self._look_at(id), id
        delivery = await self.outbox.find(id)
        if delivery is None:
            return await self._look_at(id), id  # it may have been delivered between the two reads
        if delivery.became is None:
            return None, id
        return await self._look_at(delivery.became), delivery.became

    async def _not_handed_over(self, id: str, limit: float | None) -> TimeoutError:
        delivery = None if self.outbox is None else await self.outbox.find(id)
        why = (
            f", and {delivery.tries} deliveries failed: {delivery.error}"
            if delivery is not None and delivery.error
            else ""
        )
        after = f" after {limit:g} s" if limit else ""
        return TimeoutError(
            f"job {id} still waits in the outbox{after}{why}; `treadle storage relay list` shows such jobs, "
            "and a worker or `treadle storage relay` delivers them"
        )

    async def _look_at(self, id: str) -> Record:
        [row] = await self._get([id])
        if row is None:
            raise UnknownJob(id)
        return row


async def _hint(storage: Storage, id: str) -> None:
    """Wait for a notification about the job, or RESULT_POLL s. A failed watch does not matter: the caller polls."""
    try:
        await storage.watch((f"job:{id}",), defaults.RESULT_POLL)
    except StorageError:
        await asyncio.sleep(defaults.RESULT_POLL)
