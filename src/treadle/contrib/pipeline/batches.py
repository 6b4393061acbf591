"""Makes a batch handler a batch task: one call for jobs of many runs, each with its own state and its own result.

A job whose fields do not fit fails alone; the function is called with the others.
"""

from __future__ import annotations

import asyncio
import dataclasses
import inspect
import typing
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec

from treadle.contrib.pipeline.handlers import Handler, arrived_after, continuation, with_dependencies
from treadle.contrib.pipeline.jobs import PipelineJobs
from treadle.contrib.pipeline.steps import Step, Travel
from treadle.core.errors import BadOption
from treadle.execution.context import Context, current_batch
from treadle.execution.job_run import batch_here
from treadle.serialization import encode_foreign_call
from treadle.serialization.call_codec import CallCodec
from treadle.tasks.batch_function import answers, item_function


class BatchHandler:
    """The handler of a step, or (`child`) of a child of it, that takes a list of items."""

    def __init__(self, pipeline: PipelineJobs, step: Step, child: str, function: Handler) -> None:
        self._pipeline, self._step, self._child, self._function = pipeline, step, child, function
        self._name = pipeline.task_of(step.name, child)
        one = item_function(self._name, function)
        self._fields = _fields_of(self._name, one.__annotations__["item"])
        self._signature = CallCodec(self._name, one)

    def item(self, travel: Travel) -> Any:
        """The item of this job: the fields of the run and of the child, converted to the annotated type. Raises
        BadArgument."""
        fields = travel.fields | travel.given
        if self._fields is not None:
            fields = {name: fields[name] for name in self._fields if name in fields}
        args, kwargs = self._signature.decode_call(encode_foreign_call((fields,), {}, self._name))
        return [*args, *kwargs.values()][0]

    def function(self) -> Callable[[list[Travel]], Any]:
        """The function of the batch task."""
        if inspect.iscoroutinefunction(self._function):

            async def run(travels: list[Travel], **provided: Any) -> list[Any]:
                call = _Call(self, current_batch(), await self._arrived(travels, current_batch()))
                return call.ends(await self._function(call.items, **provided) if call.items else [])

            return with_dependencies(run, self._function)

        def run_here(travels: list[Travel], **provided: Any) -> list[Any]:
            arrived = self._pipeline.app.sync.call(self._arrived(travels, current_batch()))
            call = _Call(self, current_batch(), arrived)
            return call.ends(self._function(call.items, **provided) if call.items else [])

        return with_dependencies(run_here, self._function)

    async def _arrived(self, travels: Sequence[Travel], contexts: Sequence[Context]) -> list[Travel | BaseException]:
        """The state of each job, with the results of the previous step's children; or the error if it cannot be
        read."""
        if all(travel.from_step is None for travel in travels):
            return [*travels]
        return await asyncio.gather(
            *(
                arrived_after(self._pipeline, *pair)
                for pair in zip(travels, [one.after for one in contexts], strict=True)
            ),
            return_exceptions=True,
        )

    def answered(self, results: object, count: int) -> list[Any]:
        return answers(self._name, results, count)

    def end(self, travel: Travel, answer: Any) -> Any:
        """The outcome of one job; an exception fails that job alone."""
        if self._child or isinstance(answer, Exception):
            return answer
        try:
            return continuation(self._pipeline, self._step, travel, answer)
        except Exception as error:
            return error


class _Call:
    """The jobs of one call. `items` are the arguments of the function; `current_batch()` returns their jobs."""

    def __init__(
        self, handler: BatchHandler, contexts: Sequence[Context], arrived: Sequence[Travel | BaseException]
    ) -> None:
        self._handler, self.items = handler, list[Any]()
        self._places: list[Travel | BaseException] = []  # per job its state, or the error that excludes it
        kept: list[Context] = []
        for context, travel in zip(contexts, arrived, strict=True):
            place = travel
            if isinstance(travel, Travel):
                try:
                    self.items.append(handler.item(travel))
                    kept.append(context)
                except Exception as error:
                    place = error
            self._places.append(place)
        batch_here.set(tuple(context._run for context in kept))

    def ends(self, results: object) -> list[Any]:
        """The outcome of each job. Raises BadResult unless the function returned one result per item."""
        rest = iter(self._handler.answered(results, len(self.items)))
        return [self._handler.end(place, next(rest)) if isinstance(place, Travel) else place for place in self._places]


def _fields_of(name: str, kind: Any) -> list[str] | None:
    """The fields of this item type; None: the type accepts all fields. Raises BadOption for a type without fields."""
    origin = typing.get_origin(kind) or kind
    if origin is Any or origin in (dict, Mapping):
        return None
    if dataclasses.is_dataclass(origin):
        return [field.name for field in dataclasses.fields(origin)]
    if isinstance(origin, type) and issubclass(origin, msgspec.Struct):
        return list(origin.__struct_fields__)
    if typing.is_typeddict(origin):
        return list(typing.get_type_hints(origin))
    raise BadOption(
        "batch_handler",
        f"{name}: expected a list of dict, TypedDict, dataclass or Struct, one per run, found a list of {kind!r}",
    )
