"""What stands in the log: the verbs that change something, each as it was asked, and the moment they were asked at.

Without it two processes would read the same log differently. `RULES` is raised by whoever changes what one of these
verbs does to the rows, so that an old process stops instead of drawing other conclusions from the same log.
"""

from __future__ import annotations

from typing import Final

import msgspec
from msgspec import Struct

from treadle.core.model import Claim, Hold, NewJob, Outcome, Presence
from treadle.storage.messages import LimitChanges
from treadle.storage.transfer import Chunk, MoveState

RULES: Final = 5


class Enqueue(Struct, frozen=True, tag="enqueue"):
    jobs: tuple[NewJob, ...]


class Claiming(Struct, frozen=True, tag="claim"):
    ask: Claim


class Settling(Struct, frozen=True, tag="settle"):
    outcomes: tuple[Outcome, ...]


class SettleClaim(Struct, frozen=True, tag="settle_claim"):
    outcomes: tuple[Outcome, ...]
    ask: Claim


class Beat(Struct, frozen=True, tag="beat"):
    worker: Presence
    holds: tuple[Hold, ...]
    lease: float


class Limits(Struct, frozen=True, tag="limits"):
    asked: LimitChanges


class Prune(Struct, frozen=True, tag="prune"):
    limit: int


class SetMark(Struct, frozen=True, tag="mark"):
    mark: MoveState


class Arrive(Struct, frozen=True, tag="load"):
    load: Chunk
    mark: MoveState


class Announce(Struct, frozen=True, tag="announce"):
    """Parts are about to be stored under this name: whoever tidies up may look for them."""

    name: str
    parts: int


class Tidied(Struct, frozen=True, tag="tidied"):
    """The log up to here is deleted, and so are the parts of these names."""

    upto: int
    names: tuple[str, ...]


Op = Enqueue | Claiming | Settling | SettleClaim | Beat | Limits | Prune | SetMark | Arrive | Announce | Tidied


class Entry(Struct, frozen=True, omit_defaults=True):
    """One step of the log. With `parts` its verbs are stored beside it, because they are many or long.

    `after` is the id of the entry before it, as its writer knew that; if another one stands there, this one is void.
    """

    id: str
    at: float  # by the storage's clock; what "now" means in its verbs
    rules: int
    after: str = ""
    ops: tuple[Op, ...] = ()
    parts: tuple[str, int] | None = None  # name, how many


class Draft(Struct, frozen=True, omit_defaults=True):
    """An entry whose verbs are texts already."""

    id: str
    at: float
    rules: int
    after: str = ""
    ops: tuple[msgspec.Raw, ...] = ()
    parts: tuple[str, int] | None = None


class Base(Struct, frozen=True):
    """All rows as of a place in the log, stored as parts under a name."""

    position: int
    name: str
    parts: int


encode = msgspec.json.Encoder().encode
decode_entry = msgspec.json.Decoder(Entry).decode
decode_ops = msgspec.json.Decoder(tuple[Op, ...]).decode
decode_base = msgspec.json.Decoder(Base).decode


class Head(Struct, frozen=True):
    """Only what must be understood of an entry to know whether the rest can be."""

    id: str
    rules: int


decode_head = msgspec.json.Decoder(Head).decode
