"""The operations that talk to durable functions: signals, messages, questions and published values."""

from __future__ import annotations

from collections.abc import Awaitable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from treadle.core.errors import ForeignRow, UnknownJob
from treadle.server.auth import rights
from treadle.server.errors import Refused
from treadle.server.longpoll import LongPoll
from treadle.server.operation import Call, Operation
from treadle.server.routes.job_messages import Acted, Answered, AskSent, MessageSent, SignalAsked, ValueRead
from treadle.server.routes.shown import jobs_of, value_shown
from treadle.server.settings import Settings
from treadle.storage import messages

if TYPE_CHECKING:
    from treadle.app.core import AppCore

T = TypeVar("T")

operate = partial(Operation, tag="jobs", scope="operate")  # on one job


class MailboxRoutes:
    """The operations on the mailboxes and the published values of one app's jobs."""

    def __init__(self, core: AppCore, settings: Settings, waiting: LongPoll) -> None:
        self._core, self._settings, self._waiting = core, settings, waiting

    @operate("POST /v1/jobs/{id}/signal", others=(404, 409), audit="job.signal", details=("name",))
    async def signal(self, call: Call[SignalAsked, messages.Nothing]) -> Acted:
        """Send a signal to a job that waits for it now or later.

        The answer is 409 if the job has the signal already, or has ended.
        """
        with _own_rows(call), call.heard() as warnings:
            await jobs_of(self._core, call).signal(call.part("id"), call.body.name, call.body.value)
        return Acted(1, warnings.text)

    @operate("POST /v1/jobs/{id}/send", others=(404, 409, 429), audit="job.send", details=("name",))
    async def send_message(self, call: Call[MessageSent, messages.Nothing]) -> Acted:
        """Put a message in a mailbox of a job.

        A second message with the same key is not stored. The answer is 409 if the job has ended, and 429 if 1,000
        messages wait there.
        """
        with _own_rows(call):
            await jobs_of(self._core, call).send(call.part("id"), call.body.name, call.body.value, key=call.body.key)
        return Acted(1)

    @operate("POST /v1/jobs/{id}/ask", others=(404, 408, 409, 429), audit="job.ask", details=("name",))
    async def ask(self, call: Call[AskSent, messages.Nothing]) -> Answered:
        """Put a message in a mailbox of a job, and wait for its answer.

        The answer is 408 if there is none in time: with a key, the call can be repeated. It is 409 if the job refuses,
        or ends without an answer.
        """
        message, limit = call.body, min(call.body.timeout, self._settings.max_wait)
        jobs, id = jobs_of(self._core, call), call.part("id")
        with _own_rows(call):
            row = await jobs.get(id)
            answer = await self._in_time(
                call, jobs.ask(id, message.name, message.value, timeout=limit, key=message.key)
            )
        return Answered(value_shown(message.name, answer, call.redaction.of(row)))

    @Operation("GET /v1/jobs/{id}/value", tag="jobs", scope="read", others=(404, 408))
    async def value(self, call: Call[None, ValueRead]) -> Answered:
        """Read the value that a job published last under this name.

        The call waits for the first one; the answer is 408 if there is none in time.
        """
        jobs, id, name = jobs_of(self._core, call), call.part("id"), call.query.name
        row = await jobs.get(id)
        if not rights.sees(call.token, row):
            raise UnknownJob(id)
        limit = min(call.query.timeout, self._settings.max_wait)
        value = await self._in_time(call, jobs.value(id, name, wait=limit))
        return Answered(value_shown(name, value, call.redaction.of(row)))

    async def _in_time(self, call: Call[Any, Any], work: Awaitable[T]) -> T:
        """The result of a call that waits. Raises Refused (408), also when the server stops."""

        async def boxed() -> tuple[T]:
            return (await work,)

        try:
            result = await self._waiting.unless_stopped(boxed(), call.request.receive)
        except TimeoutError as error:
            raise Refused(408, "timeout", str(error)) from None
        if result is None:
            raise Refused(408, "timeout", "the server stops, or the client has disconnected")
        return result[0]


@contextmanager
def _own_rows(call: Call[Any, Any]) -> Iterator[None]:
    """Say nothing about the row of another queue to a caller whose token is bound to queues."""
    try:
        yield
    except ForeignRow as error:
        if not call.token.queues:
            raise
        raise Refused(409, "foreign_row", "another caller has stored a row of this mailbox", id=error.id) from None
