"""The contract, the ops of the log and the HTTP messages name the same arguments, with the same types.

They stay three definitions (docs/internals/decisions/log-entries.md). These tests fail if one of them gains, loses or
changes an argument alone.
"""

from __future__ import annotations

import functools
import inspect
import operator
import types
import typing
from collections.abc import Callable, Sequence
from typing import Any, Final

import pytest
from msgspec.structs import fields, replace

from tests.storage import test_message_bytes as recorded
from treadle.core.limit_model import Limit, LimitChange
from treadle.core.model import Claim, Outcome
from treadle.storage import contract, messages, optional_parts
from treadle.storage.composed import log_entries

CHANGING: Final[dict[str, Callable[..., Any]]] = {
    name: getattr(kind, name)
    for kind, names in (
        (contract.Storage, ("enqueue", "claim", "heartbeat", "settle", "set_limits", "prune", "store_metrics")),
        (optional_parts.Fused, ("settle_claim",)),
        (optional_parts.Movable, ("set_mark", "load")),
    )
    for name in names
}
READING: Final = {
    "get",
    "find",
    "stats",
    "recount",
    "glance",
    "limits",
    "read_metrics",
    "watch",
    "open",
    "close",
    "read_mark",
    "unload",
}
OPS: Final = {
    "enqueue": log_entries.EnqueueOp,
    "claim": log_entries.ClaimOp,
    "heartbeat": log_entries.HeartbeatOp,
    "settle": log_entries.SettleOp,
    "settle_claim": log_entries.SettleClaimOp,
    "set_limits": log_entries.SetLimitsOp,
    "prune": log_entries.PruneOp,
    "store_metrics": log_entries.StoreMetricsOp,
    "set_mark": log_entries.SetMarkOp,
    "load": log_entries.LoadOp,
}
OF_THE_LOG: Final = {log_entries.AnnounceOp, log_entries.TidiedOp}  # compaction writes them; no method does
ADDED_LATER: Final[dict[str, set[str]]] = {}  # fields whose default is the meaning of entries without them
SAME_OVER_HTTP: Final = {
    "enqueue": messages.Enqueue,
    "heartbeat": messages.Beat,
    "prune": messages.Prune,
    "get": messages.Ids,
    "glance": messages.GlanceCall,
    "recount": messages.Recount,
    "limits": messages.LimitsCall,
    "store_metrics": messages.StoreMetrics,
    "read_metrics": messages.ReadMetrics,
    "watch": messages.Watch,
}
NOT_SENT: Final = {"hand_off"}  # the mailbox of a process on this machine
OF_A_RUNNER: Final = {  # a runner may leave to the server what a worker of Treadle does itself
    messages.ClaimCall: {"wait", "max_lost", "most", "labels", "resources", "needs"},
    messages.RunReport: {"succeed", "fail", "abort", "defer", "again"},
}
SET_BY_THE_SERVER: Final = {"state"}  # a report may leave the state to the server


def arguments(method: Callable[..., Any]) -> dict[str, Any]:
    hints = typing.get_type_hints(method)
    return {name: plain(hints[name]) for name in inspect.signature(method).parameters if name != "self"}


def plain(kind: Any) -> Any:
    """The type without its limits, with a tuple for every sequence, as in a message."""
    origin, parts = typing.get_origin(kind), typing.get_args(kind)
    if origin is typing.Annotated:
        return plain(parts[0])
    if origin is Sequence:
        return tuple[parts[0], ...]  # type: ignore[valid-type]
    if origin in (typing.Union, types.UnionType):
        return functools.reduce(operator.or_, map(plain, parts))
    return kind


def fields_of(kind: Any) -> dict[str, Any]:
    return {field.name: plain(field.type) for field in fields(kind)}


def test_every_method_of_the_contract_is_compared() -> None:
    kinds = (contract.Storage, optional_parts.Fused, optional_parts.Movable)
    methods = {name for kind in kinds for name, found in vars(kind).items() if inspect.isfunction(found)}
    assert {name for name in methods if not name.startswith("_")} == CHANGING.keys() | READING
    assert OPS.keys() == CHANGING.keys()
    assert {*OPS.values(), *OF_THE_LOG} == set(typing.get_args(log_entries.Op))


@pytest.mark.parametrize("name", sorted(OPS.keys() - {"set_limits"}))
def test_an_op_has_the_arguments_of_its_method(name: str) -> None:
    assert fields_of(OPS[name]) == arguments(CHANGING[name])


@pytest.mark.parametrize("name", OPS)
def test_an_op_has_no_default_but_for_older_entries(name: str) -> None:
    assert {field.name for field in fields(OPS[name]) if not field.required} == ADDED_LATER.get(name, set())


@pytest.mark.parametrize("name", SAME_OVER_HTTP)
def test_a_message_has_the_arguments_of_its_method(name: str) -> None:
    assert fields_of(SAME_OVER_HTTP[name]) == arguments(getattr(contract.Storage, name))


def test_a_change_of_limits_is_the_same_in_both() -> None:
    assert fields_of(log_entries.SetLimitsOp) == {"asked": log_entries.UnboundedLimitChanges}
    assert fields_of(log_entries.UnboundedLimitChanges) == fields_of(messages.LimitChanges)
    sent, _ = typing.get_args(fields_of(messages.LimitChanges)["changes"])
    assert {*typing.get_args(sent)} - {messages.SetRule} == {*typing.get_args(LimitChange)} - {Limit}
    assert messages.LimitChanges.of(recorded.CHANGES).read() == list(recorded.CHANGES)


@pytest.mark.parametrize(("kind", "message"), [(Claim, messages.ClaimCall), (Outcome, messages.RunReport)])
def test_a_message_has_the_fields_of_the_value_it_carries(kind: Any, message: Any) -> None:
    value, sent = fields_of(kind), fields_of(message)
    assert sent.keys() - OF_A_RUNNER[message] == value.keys() - NOT_SENT
    same = sent.keys() & value.keys() - SET_BY_THE_SERVER
    assert {name: sent[name] for name in same} == {name: value[name] for name in same}


def test_a_claim_is_the_same_behind_the_wire() -> None:
    assert messages.claim_call(recorded.CLAIM, 2**20).ask() == replace(recorded.CLAIM, hand_off=None)


def test_an_outcome_is_the_same_behind_the_wire() -> None:
    given = {field.name: getattr(recorded.OUTCOME, field.name) for field in fields(Outcome)}
    assert messages.RunReport(**given).outcome() == recorded.OUTCOME


@pytest.mark.parametrize(
    "value",
    [
        recorded.JOB,
        recorded.RECORD,
        recorded.CLAIM,
        recorded.OUTCOME,
        recorded.PRESENCE,
        recorded.RENEWAL,
        recorded.RULE,
        recorded.MARK,
        recorded.CHUNK,
        recorded.USE,
        recorded.GLANCE,
        recorded.PAGE,
    ],
    ids=lambda value: type(value).__name__,
)
def test_the_recorded_bytes_have_every_field(value: Any) -> None:
    """Otherwise a new field could be missing from the bytes, or from a copy made by hand, unnoticed."""
    at_default = [
        field.name for field in fields(value) if not field.required and getattr(value, field.name) == default(field)
    ]
    assert at_default == []


def default(field: Any) -> Any:
    return field.default_factory() if callable(field.default_factory) else field.default
