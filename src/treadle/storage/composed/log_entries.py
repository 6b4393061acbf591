"""The entries of the log: each call that changes rows, with its arguments and its time.

An entry gives every argument: a default or a bound of a decoder would change or refuse what was written years ago. For
this reason its ops are not the HTTP messages (docs/internals/decisions/log-entries.md). A change of what an op does to
the rows raises `RULES`: a process of an older version then stops, and does not compute other rows from the same log.
"""

from __future__ import annotations

from typing import Final

import msgspec
from msgspec import Struct

from treadle.core.limit_model import Declare, Pause, Resume
from treadle.core.model import Claim, LeaseRenewal, NewJob, Outcome, Presence
from treadle.core.query_model import MetricsRow
from treadle.storage.messages import LimitChanges, SetRule
from treadle.storage.transfer import Chunk, MoveState

RULES: Final = 10

# --- one op for each call of the contract that changes rows: `tag` and the names of the fields are stored


class EnqueueOp(Struct, frozen=True, tag="enqueue"):
    jobs: tuple[NewJob, ...]


class ClaimOp(Struct, frozen=True, tag="claim"):
    ask: Claim


class SettleOp(Struct, frozen=True, tag="settle"):
    outcomes: tuple[Outcome, ...]


class SettleClaimOp(Struct, frozen=True, tag="settle_claim"):
    outcomes: tuple[Outcome, ...]
    ask: Claim


class HeartbeatOp(Struct, frozen=True, tag="beat"):
    worker: Presence
    renewals: tuple[LeaseRenewal, ...]
    lease: float


class UnboundedLimitChanges(LimitChanges, frozen=True):
    """The HTTP message without its bound."""

    changes: tuple[SetRule | Declare | Pause | Resume, ...]


class SetLimitsOp(Struct, frozen=True, tag="limits"):
    asked: UnboundedLimitChanges


class PruneOp(Struct, frozen=True, tag="prune"):
    limit: int


class StoreMetricsOp(Struct, frozen=True, tag="metrics"):
    rows: tuple[MetricsRow, ...]
    remove: tuple[MetricsRow, ...]


# --- moves


class SetMarkOp(Struct, frozen=True, tag="mark"):
    mark: MoveState


class LoadOp(Struct, frozen=True, tag="load"):
    load: Chunk
    mark: MoveState


# --- compaction


class AnnounceOp(Struct, frozen=True, tag="announce"):
    """Announces parts that will be stored under this name; compaction deletes them if no entry uses them."""

    name: str
    parts: int


class TidiedOp(Struct, frozen=True, tag="tidied"):
    """The entries up to `upto` and the parts of these names are deleted."""

    upto: int
    names: tuple[str, ...]


Op = (
    EnqueueOp
    | ClaimOp
    | SettleOp
    | SettleClaimOp
    | HeartbeatOp
    | SetLimitsOp
    | PruneOp
    | StoreMetricsOp
    | SetMarkOp
    | LoadOp
    | AnnounceOp
    | TidiedOp
)


class LogEntry(Struct, frozen=True, omit_defaults=True):
    """One step of the log.

    at     the storage's clock: the present of its ops
    after  id of the entry before it, as its writer knew the log; if another entry is there, this one is void
    parts  name and number of the parts that hold its ops, which are too long for one value of the store
    """

    id: str
    at: float
    rules: int
    after: str = ""
    ops: tuple[Op, ...] = ()
    parts: tuple[str, int] | None = None


class Draft(Struct, frozen=True, omit_defaults=True):
    """An entry whose ops are encoded already."""

    id: str
    at: float
    rules: int
    after: str = ""
    ops: tuple[msgspec.Raw, ...] = ()
    parts: tuple[str, int] | None = None


class Base(Struct, frozen=True):
    """All rows as of one position of the log, stored as parts under a name."""

    position: int
    name: str
    parts: int


encode = msgspec.json.Encoder().encode
decode_entry = msgspec.json.Decoder(LogEntry).decode
decode_ops = msgspec.json.Decoder(tuple[Op, ...]).decode
decode_base = msgspec.json.Decoder(Base).decode


class Head(Struct, frozen=True):
    """The fields that every version reads. They say whether this version can read the rest."""

    id: str
    rules: int


decode_head = msgspec.json.Decoder(Head).decode
