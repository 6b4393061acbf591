"""Each call of the API is declared at the function that answers it."""

from __future__ import annotations

from typing import Any

import msgspec

from treadle import App
from treadle.core.model import NewJob, Record, Settled
from treadle.server import Settings
from treadle.server.app import operations_of
from treadle.server.longpoll import LongPoll
from treadle.server.operation import NO_BODY, Call, Operation, operations_in
from treadle.storage.messages import Nothing, Prune


class Routes:
    def __init__(self, jobs: int) -> None:
        self.jobs = jobs

    @Operation("POST /v1/prune/{name}", tag="operate", audit="prune")
    async def prune(self, call: Call[Prune, Nothing]) -> Prune:
        """Delete old
        rows.

        More about it.
        """
        return Prune(limit=self.jobs)

    @Operation("GET /v1/old", tag="operate", gives=Prune)
    async def old(self, call: Call[None, Nothing]) -> object:
        return Prune(limit=self.jobs)


async def test_the_annotations_and_the_docstring_complete_a_declaration() -> None:
    prune, old = operations_in(Routes(7))
    assert (prune.method, prune.path, prune.summary) == ("POST", "/v1/prune/{name}", "Delete old rows")
    assert (prune.takes, prune.query, prune.gives) == (Prune, Nothing, Prune)
    assert (old.takes, old.gives, old.summary) == (NO_BODY, Prune, "")
    answers: list[Any] = [await operation.run(None) for operation in (prune, old)]
    assert [answer.limit for answer in answers] == [7, 7]


def test_each_call_that_answers_with_rows_is_refused_to_tokens_without_a_right_to_payloads() -> None:
    app = App("memory://")
    calls = operations_of(app._core, Settings(), LongPoll(lambda: app.storage))
    with_rows = {call.path for call in calls if _has_rows(msgspec.inspect.type_info(call.gives))}
    steps = "/v1/work/steps"  # its answer may be the result of a child
    assert {call.path for call in calls if call.bare} == {*with_rows, steps}
    assert {"/v1/work/get", "/v1/work/claim"} < with_rows


def _has_rows(kind: Any) -> bool:
    """Whether a type contains rows as they are stored."""
    if isinstance(kind, msgspec.inspect.StructType):
        return kind.cls in (Record, NewJob, Settled) or any(_has_rows(field.type) for field in kind.fields)
    inner = [getattr(kind, name) for name in ("item_type", "value_type") if hasattr(kind, name)]
    return any(map(_has_rows, (*inner, *getattr(kind, "types", ()), *getattr(kind, "item_types", ()))))
