"""A storage that fails on demand: before a call, after it (the answer is lost), by delaying it, or by repeating it.

storage = Faulty(MemoryStorage(), [lost("settle_claim", 2), before("claim", 1, 3)])
app = App(storage=storage)
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Literal, TypeVar

from msgspec import Struct
from msgspec.structs import replace

from treadle.core.errors import BadOption, StorageUnavailable
from treadle.storage.contract import Capabilities, Storage
from treadle.storage.proxy import StorageProxy

T = TypeVar("T")

VERBS = (
    "enqueue",
    "claim",
    "heartbeat",
    "settle",
    "settle_claim",
    "get",
    "find",
    "stats",
    "glance",
    "recount",
    "limits",
    "set_limits",
    "prune",
    "store_metrics",
    "read_metrics",
    "watch",
)
CARRYING = ("enqueue", "claim", "heartbeat", "settle", "settle_claim")  # the ones that change jobs


class Fault(Struct, frozen=True):
    """A failure of one call.

    before  it fails and is not applied
    lost    it is applied and fails
    twice   it is applied twice and returns the second answer
    held    it waits for `until` before it is applied
    """

    how: Literal["before", "lost", "twice", "held"]
    verb: str
    call: int  # which call of that verb; 1 is the first
    until: asyncio.Event | None = None


Script = Callable[[str, int], Fault | None]
"""A verb and the number of its call (1 is the first) to what happens to it."""


def before(verb: str, *calls: int) -> list[Fault]:
    """Fail these calls before they are applied."""
    return [Fault("before", verb, call) for call in calls]


def lost(verb: str, *calls: int) -> list[Fault]:
    """Apply these calls and lose their answers."""
    return [Fault("lost", verb, call) for call in calls]


def twice(verb: str, *calls: int) -> list[Fault]:
    """Apply these calls twice, like a network that repeats them."""
    return [Fault("twice", verb, call) for call in calls]


def held(verb: str, call: int, until: asyncio.Event) -> list[Fault]:
    """Make this call wait for the event."""
    return [Fault("held", verb, call, until)]


def bursts(
    seed: int, *, errors: tuple[int, int] = (1, 4), answers: tuple[int, int] = (1, 3), verbs: Sequence[str] = CARRYING
) -> Script:
    """Alternate between runs of failed and of answered calls, their lengths drawn from the ranges. The seed decides.

    Each failure is a lost answer with a probability of one half.
    """
    rng = random.Random(seed)
    failing, remaining = False, 0

    def script(verb: str, call: int) -> Fault | None:
        nonlocal failing, remaining
        if verb not in verbs:
            return None
        if not remaining:
            failing = not failing
            remaining = rng.randint(*(errors if failing else answers))
        remaining -= 1
        return Fault("lost" if rng.random() < 0.5 else "before", verb, call) if failing else None

    return script


class Faulty(StorageProxy):
    """Wraps a storage, and fails the calls that the script names.

    script  faults (nested lists are allowed), or a function from (verb, number of the call) to a fault or None
    fused   False hides `settle_claim`, so that a worker makes two calls instead

    Only the verbs in `VERBS` can fail. Raises BadOption for an unknown verb.
    """

    def __init__(
        self, storage: Storage, script: Script | Iterable[Fault | Iterable[Fault]] = (), *, fused: bool = True
    ) -> None:
        super().__init__(storage)
        self.calls: Counter[str] = Counter()  # by verb, failed calls included
        self.faults: list[Fault] = []  # the ones that have happened
        self._fused = fused
        self._script = script if callable(script) else _scripted(script)
        self._changed = asyncio.Event()

    @property
    def capabilities(self) -> Capabilities:
        capabilities = self.storage.capabilities
        return replace(capabilities, settle_claim=capabilities.settle_claim and self._fused)

    async def reached(self, verb: str, call: int) -> None:
        """Wait until that many calls of the verb have begun."""
        while self.calls[verb] < call:
            await self._changed.wait()

    async def around(self, verb: str, call: Callable[[Storage], Awaitable[T]]) -> T:
        if verb not in VERBS:
            return await call(self.storage)
        self.calls[verb] += 1
        self._changed.set()
        self._changed = asyncio.Event()
        fault = self._script(verb, self.calls[verb])
        if fault is None:
            return await call(self.storage)
        self.faults.append(fault)
        if fault.how == "before":
            raise StorageUnavailable(f"{verb}, call {fault.call}: injected failure before it was applied")
        if fault.until is not None:
            await fault.until.wait()
        answer = await call(self.storage)
        if fault.how == "lost":
            raise StorageUnavailable(f"{verb}, call {fault.call}: injected loss of its answer")
        return await call(self.storage) if fault.how == "twice" else answer


def _scripted(faults: Iterable[Fault | Iterable[Fault]]) -> Script:
    known: dict[tuple[str, int], Fault] = {}
    for group in faults:
        for fault in [group] if isinstance(group, Fault) else group:
            if fault.verb not in VERBS:
                raise BadOption("faults", f"expected one of {', '.join(VERBS)}, found {fault.verb!r}")
            known[fault.verb, fault.call] = fault
    return lambda verb, call: known.get((verb, call))
