"""Tasks by name, for processes in which their code is not installed."""

from __future__ import annotations

from collections.abc import Coroutine
from typing import Any, Unpack

from treadle.concurrency.spawn import answers_coroutine
from treadle.core.awaiting import refuse_to_block, report_dropped
from treadle.core.errors import BadOption
from treadle.core.job import Job, JobSpec
from treadle.core.ranges import OWN
from treadle.serialization import call_codec
from treadle.tasks.job_factory import JobFactory
from treadle.tasks.options import Options, check_names, flag, merge, name_of, policy_of, refuse_within, split_within


class Stub:
    """A task known by name only, because its code is not installed here. A worker checks its arguments when a job
    runs."""

    def __init__(self, maker: JobFactory, name: str, options: Options | None = None) -> None:
        if name_of(name, "name").startswith(OWN):
            raise BadOption("name", f"{name!r}: names that begin with {OWN!r} are Treadle's own; choose another name")
        self.name = name
        self._maker, self._options, self._within = maker, options or Options(), None
        if "within" in self._options:
            self._options, self._within = split_within(self._options)

    def options(self, **options: Unpack[Options]) -> Stub:
        """The task with more options."""
        check_names(options)
        kept = self._options if self._within is None else Options(**self._options, within=self._within)
        return Stub(self._maker, self.name, merge(kept, options))

    def job(self, /, *args: object, **kwargs: object) -> JobSpec[Any, Any]:
        """A job that is not sent yet."""
        refuse_within(self._within)
        return self._spec(args, kwargs)

    def _spec(self, args: tuple[object, ...], kwargs: dict[str, object]) -> JobSpec[Any]:
        payload = call_codec.encode_foreign_call(args, kwargs)
        options = self._options
        inline = flag(options, "inline")
        return self._maker.spec(self.name, payload, {}, options, policy_of(options), call_codec.decode_any, inline)

    def late(self, /, *args: object, **kwargs: object) -> JobSpec[Any, Any]:
        """As `Task.late`, without checks of the arguments."""
        return self.options(pass_result=True).job(*args, **kwargs)

    @answers_coroutine
    def enqueue(self, /, *args: object, **kwargs: object) -> Coroutine[Any, Any, Job[Any, Any]]:
        """Store the job; it is durable when this returns, or, with `within=`, when that transaction is committed."""
        unbegun: list[Any] = []
        return report_dropped(self.name, self._enqueue(args, kwargs, unbegun), unbegun)

    async def _enqueue(self, args: tuple[object, ...], kwargs: dict[str, object], unbegun: list[Any]) -> Job[Any, Any]:
        unbegun.clear()
        [job] = await self._maker.sender.send([self._spec(args, kwargs)], self._within)
        return job

    def enqueue_sync(self, /, *args: object, **kwargs: object) -> Job[Any, Any]:
        """`enqueue` for synchronous code, as `Task.enqueue_sync`."""
        refuse_to_block("stub.enqueue_sync()", f"app.stub({self.name!r}).enqueue(...)")
        [job] = self._maker.sender.send_sync([self._spec(args, kwargs)], self._within)
        return job
