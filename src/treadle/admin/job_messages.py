"""The part of `app.jobs` that talks to durable functions: signals, messages, questions and published values."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from datetime import timedelta
from typing import Any, Final, TypeVar

from msgspec.structs import replace

from treadle.admin.job_filters import id_of
from treadle.admin.job_looks import JobLooks
from treadle.admin.known_names import listener
from treadle.core.defaults import SYSTEM_QUEUE
from treadle.core.errors import AskRefused, BadOption, IdTaken, Stale, StorageError, TooLarge
from treadle.core.job import JobSpec
from treadle.core.model import ERROR, EXPIRED, PUBLISHED, Record, State
from treadle.core.ranges import OWN
from treadle.core.similar_names import near
from treadle.durable import check_name, decoded_as
from treadle.execution.job_run import refuse_to_wait, waits_here
from treadle.policy.parts import is_part
from treadle.policy.retry import seconds
from treadle.producer import Sent
from treadle.serialization import call_codec
from treadle.storage import check_stays, whole_row
from treadle.storage.contract import Storage
from treadle.tasks.options import name_of
from treadle.tasks.when import HasId
from treadle.workflow.mailbox import ANSWER, Message, check_answer, finish, new_message
from treadle.workflow.signals import signal_name

T = TypeVar("T")

LOOK_EVERY: Final = 0.25  # s between two polls, for values that are published without a notification


class JobMessages(JobLooks):
    """`Jobs` without its acts."""

    async def signals_of(self, job: HasId | str) -> Sequence[str]:
        """The names of the signals that a job is waiting for. Raises UnknownJob."""
        return await self._signals_of(await self.get(job))

    async def _signals_of(self, row: Record) -> Sequence[str]:
        if row.state is not State.WAITING or not row.after:
            return []
        ups = await (await self._storage()).get(row.after)
        return [name for up in ups if up and not up.state.final and (name := signal_name(up)) is not None]

    async def signal(self, job: HasId | str, name: str, value: object = None) -> None:
        """Store the value that the job's `current().wait_for(name)` returns. The job may not have reached it yet.

        Raises UnknownJob; Stale for a job that has ended; Signalled for a second signal of this name; ForeignRow if
        another caller has stored the signal's row; BadStep or BadOption for a name or a value that cannot be stored;
        TooLarge.
        """
        text = self._encoded(name, value, "signal")
        row = await self._recipient(id_of(job), name)
        waits = await self._awaited_names(row)
        message = new_message(row.job.id, name, text, None, is_signal=True)
        await self._client.mailboxes.send(Sent(await self._storage(), row, message, self.reach))
        _warn(row, name, waits)

    async def send(self, job: HasId | str, name: str, value: object = None, *, key: str | None = None) -> None:
        """Put a value in a mailbox of the job, whose `current().receive(name)` returns the values of a name one by one.

        A message whose call returned before another one began is received before it. The job may not run yet. A spec
        that is not sent yet, such as `cart.options(id="cart-7").job()`, is stored with the message in one call; if its
        id is known, the call only sends. With a `key`, a second message of that key and name is not stored for a day,
        and the call returns as the first did.

        Raises MailboxFull if 1,000 messages wait there; UnknownJob; Stale for a job that has ended; IdTaken if the
        stored job is of another task; ForeignRow, BadStep, BadOption and TooLarge as `signal`.
        """
        text = self._encoded(name, value, "send")
        await self._sent(job, new_message(id_of(job), name, text, _checked(key)))

    async def ask(
        self,
        job: HasId | str,
        name: str,
        value: object = None,
        *,
        timeout: float | timedelta = 10.0,
        returns: Any = Any,
        key: str | None = None,
    ) -> Any:
        """Put a value in a mailbox of the job, and wait for what its `current().receive_ask(name)` answers, decoded as
        `returns`.

        If the call fails or times out, the message stays. Repeated with its `key` within a day, it returns the answer
        to the first one. Raises AskRefused if the job refuses, Stale if it ends without an answer, TimeoutError after
        `timeout` seconds, BadResult, and the errors of `send`.
        """
        limit = seconds(timeout, "timeout")
        text = self._encoded(name, value, "ask")
        refuse_to_wait("app.jobs.ask")
        message = new_message(id_of(job), name, text, _checked(key), asks=True, wait=limit)
        id, queue = await self._sent(job, message)
        return decoded_as(await self._answer(await self._storage(), id, queue, message, limit), returns, "ask")

    async def value(self, job: HasId | str, name: str, *, wait: float | timedelta = 0.0, returns: Any = Any) -> Any:
        """The value that the job's `current().publish(name, value)` published last, decoded as `returns`; waits up to
        `wait` seconds for the first one.

        Raises UnknownJob; TimeoutError if there is none in that time; Stale if the job has ended without one; and
        BadResult.
        """
        id, limit = id_of(job), seconds(wait, "wait")
        storage = await self._storage()

        async def look() -> str | None:
            row = await self.whole(id)
            for key, text in row.checkpoints:
                if key == PUBLISHED + name:
                    return text
            if row.state.final:
                raise Stale(id, f"{row.state}; it has published no {name!r}")
            return None

        text = await _awaited(storage, (id,), look, limit)
        if text is None:
            raise TimeoutError(f"job {id} has published no value {name!r}{f' in {limit:g} s' if limit else ' yet'}")
        return decoded_as(text, returns, "value")

    async def _awaited_names(self, row: Record) -> Sequence[str]:
        """The names that the job waits for, to warn a person of another one."""
        return () if listener() is None else await self._signals_of(row)

    async def _sent(self, job: HasId | str, message: Message) -> tuple[str, str]:
        """Put the message in a mailbox of the job, which is stored with it if it is not stored yet. Returns the id and
        the queue of the job."""
        id = id_of(job)
        if isinstance(job, JobSpec):
            holder = await self._begun(job, message)
            if holder is None:
                return id, job.new.queue
            id = holder
        storage, mailboxes = await self._storage(), self._client.mailboxes
        with mailboxes.sending(storage, id, message.name, self.reach) as next_rows:
            row, rows = await self._get_with(id, next_rows.ids)
            try:
                await self._check_open(row, message.name)
                waits = await self._awaited_names(row)
                await mailboxes.send(Sent(storage, row, message, self.reach, next_rows.seen(row, rows)))
                _warn(row, message.name, waits)
            except Stale:
                [answer] = await storage.get([ANSWER + message.tag])
                if answer is None:
                    raise
                check_answer(answer, id, row.job.queue, message.name)
        return id, row.job.queue  # of the job that has the message, now or since an earlier call with its key

    async def _begun(self, spec: JobSpec[Any, Any], message: Message) -> str | None:
        """Store the job and the message in one call. If a job with its id or its key is stored already, return the id
        of that one, which has not got the message."""
        [stored] = await self._client.get([spec.id])
        if stored is not None:
            if stored.job.task != spec.new.task:
                raise IdTaken(spec.id, stored.job.task, spec.new.task, False)
            return spec.id
        first = message.row(spec.new, 1)
        rows = (*message.answer_row(spec.new), first)
        try:
            [job] = await self._client.send([replace(spec.changed(), others=(*spec.others, *rows))])
        except IdTaken as error:
            if error.id in (spec.id, *(row.id for row in rows)):
                return spec.id  # another call has stored the job meanwhile
            raise
        await finish(await self._storage(), [first.id])
        return None if job.id == spec.id else job.id

    async def _recipient(self, id: str, name: str) -> Record:
        """The row of a job that may still receive a value."""
        row = await self.get(id)
        await self._check_open(row, name)
        return row

    async def _check_open(self, row: Record, name: str) -> None:
        """Raise Stale for a job that receives no value (any more)."""
        if not row.job.task or row.job.queue == SYSTEM_QUEUE or row.job.task.startswith(OWN) or is_part(row.job):
            raise Stale(row.job.id, f"{row.state}; it is a row of Treadle's own, which receives no {name!r}")
        if row.state.final or row.function_done:
            await check_stays(await self._storage())
            how = str(row.state) if row.state.final else "waiting for its children"
            raise Stale(row.job.id, f"{how}; it does not wait for {name!r} any more")

    def _encoded(self, name: str, value: object, call: str) -> str:
        check_name(name)
        try:
            text = call_codec.encode_any(value)
        except call_codec.Unstorable as error:
            raise BadOption(call, f"{name!r}: {error}") from None
        if (size := len(text.encode())) > self._most:
            raise TooLarge(f"the value of the {call} {name!r}", size, self._most)
        return text

    async def _answer(self, storage: Storage, id: str, queue: str, message: Message, limit: float) -> str:
        """The encoded answer to this message to a job of this queue. Raises ForeignRow if another caller stored the row
        that takes it."""
        name = message.name

        async def look() -> Record | None:
            [answer, job] = await storage.get([ANSWER + message.tag, id])
            over = job is None or job.state.final or job.function_done
            if over and answer is not None and not answer.state.final:
                [answer] = await storage.get([ANSWER + message.tag])  # of two reads, the second may be the later one
            if answer is not None:
                check_answer(answer, id, queue, name)
            if answer is not None and answer.state.final:
                return answer
            if over:
                raise Stale(id, f"{'gone' if job is None else job.state}; it has not answered {name!r}")
            return None

        waits_here()
        answer = await _awaited(storage, (ANSWER + message.tag, id), look, limit)
        if answer is None or answer.reason == EXPIRED:
            raise TimeoutError(f"job {id} has not answered {name!r} in {limit:g} s; it may still receive the message")
        answer = await whole_row(storage, answer, "result")
        if answer.state is State.FAILED and answer.reason == ERROR:
            raise AskRefused(id, name, answer.error or "")
        if answer.result is None:
            raise Stale(answer.id, f"{answer.state} by another caller, without an answer to {name!r}")
        return answer.result


async def _awaited(
    storage: Storage, ids: Sequence[str], look: Callable[[], Awaitable[T | None]], limit: float
) -> T | None:
    """The result of `look`, called at once and after each notification about these jobs; None after `limit` s."""
    until = asyncio.get_running_loop().time() + limit
    while True:
        remaining = until - asyncio.get_running_loop().time()
        heard = asyncio.ensure_future(_hint(storage, ids, min(remaining, LOOK_EVERY)))
        try:
            await asyncio.sleep(0)  # watch before the read, so that a change in between is noticed
            if (result := await look()) is not None or remaining <= 0:
                return result
            await heard
        finally:
            heard.cancel()
            await asyncio.wait([heard])  # leave no task behind


async def _hint(storage: Storage, ids: Sequence[str], timeout: float) -> None:
    try:
        await storage.watch([f"job:{id}" for id in ids], max(0.0, timeout))
    except StorageError:
        await asyncio.sleep(max(0.0, timeout))


def _warn(row: Record, name: str, waits: Sequence[str]) -> None:
    """Warn the person who has sent something under a name that the job does not wait for now."""
    if (person := listener()) is not None and waits and name not in waits:
        named = ", ".join(map(repr, waits))
        person.tell(f"job {row.job.id} waits for the signal {named}, not for {name!r}{near(name, waits)}")


def _checked(key: str | None) -> str | None:
    return None if key is None else name_of(key, "key")
