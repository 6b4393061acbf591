"""Makes specs of jobs: fresh ids, and templates for tasks whose options are constants."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from msgspec import Struct

from treadle.core import ids
from treadle.core.errors import TooLarge
from treadle.core.ids import IdFactory
from treadle.core.job import Decode, JobSpec, Sender
from treadle.core.model import NewJob
from treadle.policy.retry import Policy, Retry
from treadle.resources import AppResources
from treadle.serialization import call_codec
from treadle.tasks.options import Options, Sizes, columns
from treadle.tasks.reducers import BUILT_IN, Reducer


class Template(Struct, frozen=True):
    """The part that all jobs of a task with the same options have in common.

    row     a row without id and payload
    fields  the fields of the row that options set
    later   whether the first argument is passed when the job runs
    """

    row: NewJob
    fields: dict[str, Any]
    later: bool
    inline: bool


class JobFactory:
    """The objects that all tasks of an app share: the sender, the id factory, the reducers and the size limits.

    resources  for the processes of tasks of kind "process"
    """

    def __init__(
        self,
        sender: Sender,
        new_id: IdFactory,
        now: Callable[[], float],
        retry: Retry,
        sizes: Sizes,
        resources: AppResources,
    ) -> None:
        self.sender, self.new_id, self.now, self.retry, self.sizes = sender, new_id, now, retry, sizes
        self.resources = resources
        self.reducers: dict[str, Reducer] = dict(BUILT_IN)
        self.limited: set[str] = set()  # tasks with `concurrency`, which have a limit of their own

    def fresh_id(self) -> str:
        """A new id. Inside a job it is derived from the run, so a repeated settle stores the same children once (law
        6)."""
        here = ids.running.get(None)
        return self.new_id() if here is None else str(here.new_id())

    def spec(
        self,
        task: str,
        payload: str,
        constants: dict[str, Any],
        options: Options,
        policy: Policy,
        decode: Decode,
        inline: bool = False,
        signature: call_codec.CallCodec | None = None,
    ) -> JobSpec[Any, Any]:
        """The spec of one job. `constants` are fields computed before, `options` those of this job."""
        self.check_size(task, payload)
        fields = constants | (columns(options, policy, task, self.now(), self.sizes) if options else {})
        if task in self.limited:
            fields["limits"] = (*fields.get("limits", ()), (own_limit(task), 1))
        if "id" in fields:
            fields["nonce"] = ids.nonce()
        else:
            fields["id"] = self.fresh_id()
        new = NewJob(task=task, payload=payload, **fields)
        return JobSpec(new, decode, inline, self, signature)

    def check_size(self, task: str, payload: str) -> None:
        if len(payload) * 4 > self.sizes.payload and (size := len(payload.encode())) > self.sizes.payload:
            raise TooLarge(f"the payload of {task}", size, self.sizes.payload)


def own_limit(task: str) -> str:
    """The name of the limit that bounds how many jobs of a task run at once."""
    return f"task:{task}"
