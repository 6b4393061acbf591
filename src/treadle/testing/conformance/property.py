"""Compares a storage with the memory storage: after each verb of a random sequence, both must return the same answers,
rows, pages and counts.

It finds differences that no law covers. Needs Hypothesis, which shrinks a failure to the shortest sequence:

    from treadle.testing.conformance.property import agrees_with_memory

    def test_agrees_with_memory(make_storage):
        agrees_with_memory(make_storage)

The environment variable TREADLE_EXAMPLES sets the number of sequences, which are then random, for long runs.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final, Literal

import msgspec

from treadle.core.model import (
    Claim,
    Claimed,
    LeaseRenewal,
    Limit,
    NewJob,
    Outcome,
    Presence,
    Query,
    Record,
    Settled,
    State,
)
from treadle.errors import IdTaken, KeyHeld, TreadleError, UnknownUpstream
from treadle.storage.contract import Storage
from treadle.storage.memory import MemoryStorage
from treadle.testing.clock import HandClock

EXAMPLES = 60  # default number of sequences
STEPS = (12, 40)  # verbs in a sequence
ORDERS: Final[tuple[Literal["newest", "oldest", "ended", "queue"], ...]] = ("newest", "oldest", "ended", "queue")
OWN_WORDS = ("expired", "upstream", "superseded")  # reasons for which each storage words the error itself

Step = tuple[Any, ...]
MakeOne = Callable[[HandClock], Awaitable[Storage]]


async def make_memory(clock: HandClock) -> Storage:
    return MemoryStorage(clock)


def agrees_with_memory(
    make: MakeOne, examples: int | None = None, shrink: bool = True, adapt: Callable[[Step], Step] | None = None
) -> None:
    """Raises AssertionError with the shortest sequence found after which the two storages differ.

    adapt   replaces each step by one for which the storage promises the same answer as memory; None: keep all steps
    """
    from hypothesis import HealthCheck, Phase, given, settings
    from hypothesis import strategies as st

    wanted = os.environ.get("TREADLE_EXAMPLES")

    @settings(
        max_examples=int(wanted) if wanted else examples or EXAMPLES,
        derandomize=not wanted,
        deadline=None,
        database=None,
        print_blob=False,
        suppress_health_check=list(HealthCheck),
        phases=[Phase.generate, Phase.shrink] if shrink else [Phase.generate],
    )
    @given(st.lists(steps(), min_size=STEPS[0], max_size=STEPS[1]))
    def check(plan: list[Step]) -> None:
        asyncio.run(play(plan if adapt is None else [adapt(step) for step in plan], make))

    check()


async def play(plan: Sequence[Step], make: MakeOne, make_model: MakeOne = make_memory) -> None:
    """Apply the same steps to both, under one clock."""
    clock = HandClock()
    pair = Pair(await make_model(clock), await make(clock), clock)
    try:
        for step in plan:
            await pair.do(step)
    finally:
        await pair.model.close()
        await pair.subject.close()


# --- possible steps


def steps() -> Any:
    """A step is plain data: its numbers select among the current jobs, so that a shortened sequence is still valid."""
    from hypothesis import strategies as st

    few, specs = st.integers(0, 3), st.lists(_specs(), min_size=1, max_size=3)
    endings = st.lists(_endings(specs), min_size=1, max_size=3)
    rules = st.lists(_rules(), min_size=1, max_size=2)
    asked = _asked()
    often = [
        st.tuples(st.just("enqueue"), specs),
        st.tuples(st.just("claim"), asked),
        st.tuples(st.just("settle"), endings),
    ]
    return st.one_of(
        st.tuples(st.just("advance"), st.sampled_from([0.0, 11.0, 31.0, 0.5, 2.0, 5.0, 100.0])),
        *often,
        *often,
        st.tuples(
            st.just("beat"), st.lists(st.tuples(st.integers(0, 30), few), max_size=3), st.sampled_from([5.0, 30.0])
        ),
        st.tuples(st.just("limits"), rules),
        st.tuples(st.just("prune"), st.integers(1, 5)),
        st.tuples(st.just("again"), st.sampled_from(["enqueue", "claim", "settle", "claim before"])),
    )


def _specs() -> Any:
    """Options of a new job."""
    from hypothesis import strategies as st

    some, maybe = st.integers(0, 30), st.sampled_from
    return st.fixed_dictionaries(
        {},
        optional={
            "old": some,
            "task": maybe(["t", "u", ""]),
            "payload": maybe(["[1]"]),
            "nonce": maybe(["1", "2"]),
            "queue": maybe(["q", "r"]),
            "priority": st.integers(-1, 2),
            "delay": maybe([5.0, 20.0]),
            "key": maybe(["k", "l"]),
            "key_conflict": maybe(["keep", "raise", "replace"]),
            "key_window": maybe([10.0, 40.0]),
            "key_until": maybe(["started"]),
            "ups": st.lists(some, max_size=3),
            "required": st.integers(1, 2),
            "failures_allowed": maybe([None, 1]),
            "wait_timeout": maybe([15.0]),
            "limits": st.lists(
                st.tuples(maybe(["x", "x:1", "y"]), st.integers(1, 3)), max_size=2, unique_by=lambda it: it[0]
            ),
            "lane": maybe(["a", "b"]),
            "stride": maybe([0.5, 2.0]),
            "aging": maybe([4.0]),
            "keep": maybe([0.0, 100.0]),
            "deadline": maybe([12.0, 30.0]),
            "lease": maybe([7.0]),
            "parent": some,
            "function_done": st.booleans(),
        },
    )


def _endings(specs: Any) -> Any:
    """An outcome of a job; its `followups` are made of `specs`."""
    from hypothesis import strategies as st

    some, maybe = st.integers(0, 30), st.sampled_from
    return st.fixed_dictionaries(
        {"to": maybe(["succeeded", "failed", "cancelled", "ready", "waiting"]), "job": some},
        optional={
            "any": st.booleans(),
            "behind": st.just(1),
            "delay": maybe([3.0, 25.0]),
            "attempt": st.integers(0, 3),
            "result": maybe(["1"]),
            "reason": maybe(["children", "error", "asked"]),
            "note": maybe(["n"]),
            "checkpoints": maybe([(("s", "1"),), (("s", "2"), ("r", "1"))]),
            "followups": specs,
            "ups": st.lists(some, max_size=2),
            "required": st.integers(1, 2),
            "failures_allowed": maybe([0, 1]),
            "function_done": st.booleans(),
            "keep": maybe([0.0, 50.0]),
        },
    )


def _rules() -> Any:
    from hypothesis import strategies as st

    maybe = st.sampled_from
    return st.builds(
        Limit,
        name=maybe(["x", "x:1", "y", "queue", "queue:q"]),
        slots=maybe([None, 0, 1, 2, 3]),
        rate=maybe([None, None, 0, 1, 2]),
        per=maybe([10.0]),
        how=maybe(["window", "bucket"]),
        burst=maybe([None, 3]),
        hold=maybe(["running", "ended"]),
    )


def _asked() -> Any:
    """Options of a claim."""
    from hypothesis import strategies as st

    some, maybe = st.integers(0, 30), st.sampled_from
    return st.fixed_dictionaries(
        {"limit": st.integers(1, 5)},
        optional={
            "queues": maybe([(("q", 9),), (("r", 1), ("q", 1)), (("q", 1), ("r", 9))]),
            "tasks": maybe([{"t": (None, None)}, {"t": (1, 4.0), "u": (2, None)}]),
            "lease": maybe([10.0]),
            "ids": st.lists(some, min_size=1, max_size=2),
            "running": st.lists(some, max_size=2),
        },
    )


# --- applying them


class Pair:
    """The memory storage (model) and the storage under test (subject)."""

    def __init__(self, model: Storage, subject: Storage, clock: HandClock) -> None:
        self.model, self.subject, self.clock = model, subject, clock
        self.ids: list[str] = []  # all ids enqueued so far
        self.rows: list[Record] = []  # the current rows
        self.said: list[str] = []
        self.turn = 0
        self.last: dict[str, Any] = {"enqueue": [], "settle": []}

    async def do(self, step: Step) -> None:
        verb, *words = step
        await getattr(self, f"_{verb}")(*words)
        self.turn += 1
        await self.look()

    # the verbs, from plain data and the current rows

    async def _enqueue(self, specs: list[dict[str, Any]]) -> None:
        self.last["enqueue"] = jobs = self._jobs(specs)
        await self.both("enqueue", jobs)

    async def _claim(self, words: dict[str, Any]) -> None:
        words = {"queues": (("q", 3), ("r", 2)), "lease": 30.0, **words}
        for field in ("ids", "running"):
            words[field] = tuple(self._id(n) for n in words.get(field, ()))
        self.last["claim before"] = self.last.get("claim")
        self.last["claim"] = ask = Claim(worker=f"w#{self.turn}", **words)
        await self.both("claim", ask)

    async def _settle(self, words: list[dict[str, Any]]) -> None:
        self.last["settle"] = outcomes = [out for each in words if (out := self._outcome(each)) is not None]
        await self.both("settle", outcomes)

    async def _beat(self, picked: list[tuple[int, int]], lease: float) -> None:
        held = [row for row in self.rows if row.worker is not None] or self.rows
        renewals = (
            [
                LeaseRenewal(
                    row.job.id,
                    row.version - (how == 3),
                    (("s", str(how)),) if how else (),
                    "note" if how == 1 else None,
                )
                for n, how in picked
                for row in held[n % len(held) :][:1]
            ]
            if held
            else []
        )
        unique = {renewal.id: renewal for renewal in renewals}
        await self.both("heartbeat", Presence(worker="w"), list(unique.values()), lease)

    async def _advance(self, seconds: float) -> None:
        self.clock.advance(seconds)
        if seconds:
            self.said.append(f"clock.advance({seconds})")

    async def _limits(self, rules: list[Limit]) -> None:
        await self.both("set_limits", rules)

    async def _prune(self, limit: int) -> None:
        await self.both("prune", limit)

    async def _again(self, verb: str) -> None:
        if self.last.get(verb):
            await self.both(verb.partition(" ")[0], self.last[verb])

    def _id(self, n: int) -> str:
        return self.ids[n % len(self.ids)] if self.ids else "nobody"

    def _jobs(self, specs: list[dict[str, Any]]) -> list[NewJob]:
        jobs = []
        for spec in specs:
            words = dict(spec)
            old, ups, parent = words.pop("old", None), words.pop("ups", ()), words.pop("parent", None)
            id = f"j{len(self.ids):02}" if old is None or old % 4 else self._id(old)
            words["after"] = tuple(up for n in ups if (up := self._id(n)) != id)
            if parent is not None and self.ids:
                words["parent"] = words["root"] = self._id(parent)
            words["limits"] = tuple(words.get("limits", ()))
            if words.get("task") == "":
                words.pop("function_done", None)  # a promise that nothing would end
            if id not in self.ids:
                self.ids.append(id)
            jobs.append(NewJob(id=id, **{"task": "t", "queue": "q", **words}))
        return jobs

    def _outcome(self, spec: dict[str, Any]) -> Outcome | None:
        words = dict(spec)
        running = [row for row in self.rows if row.state is State.RUNNING]
        some = self.rows if words.pop("any", False) else running
        if not some:
            return None
        row = some[words.pop("job") % len(some)]
        state, ups = State(words.pop("to")), words.pop("ups", ())
        followups = tuple(self._jobs(words.pop("followups", [])))
        after = tuple(id for n in ups if (id := self._id(n)) != row.job.id) + tuple(new.id for new in followups)
        if state is State.WAITING:
            words["after"] = tuple(dict.fromkeys(after))
        return Outcome(
            id=row.job.id, version=row.version - words.pop("behind", 0), state=state, followups=followups, **words
        )

    # calling both, and comparing

    async def both(self, verb: str, *words: Any) -> None:
        self.said.append(f"{verb}({', '.join(map(repr, words))})")
        expected, found = [await _answer(storage, verb, words) for storage in (self.model, self.subject)]
        self.same(f"answer of {verb}", expected, found)

    async def look(self) -> None:
        """Compare everything that can be read from both."""
        expected, found = await self.model.get(self.ids), await self.subject.get(self.ids)
        for id, one, other in zip(self.ids, expected, found, strict=True):
            self.same(f"row {id}", one, other)
        self.rows = [row for row in expected if row is not None]
        stats = [await storage.stats() for storage in (self.model, self.subject)]
        self.same("counts", *[sorted(each.counts, key=lambda it: (it.queue, it.task, it.state)) for each in stats])
        self.same("limits", *[sorted(each.limits, key=lambda it: it.key) for each in stats])
        query = Query(order=ORDERS[self.turn % 4], limit=1 + self.turn % 3, count=True)
        for _ in range(3):
            page, twin = await self.model.find(query), await self.subject.find(query)
            self.same(f"page {query}", page, twin)
            if page.cursor is None:
                break
            query = msgspec.structs.replace(query, cursor=page.cursor)

    def same(self, what: str, expected: Any, found: Any) -> None:
        if expected == found:
            return
        difference = differs(msgspec.to_builtins(expected), msgspec.to_builtins(found))
        if difference:
            told = "\n  ".join(self.said)
            raise AssertionError(f"{what} differs: {difference}\nafter\n  {told}")


async def _answer(storage: Storage, verb: str, words: tuple[Any, ...]) -> Any:
    """The result or error of a verb, without wording that each storage chooses itself."""
    try:
        answer = await getattr(storage, verb)(*words)
    except (UnknownUpstream, KeyHeld, IdTaken) as error:
        return {"raised": type(error).__name__, "id": error.id}
    except TreadleError as error:
        return {"raised": type(error).__name__}
    if isinstance(answer, Claimed):
        return {"records": answer.records, "next_in": answer.next_in}
    if isinstance(answer, list) and answer and isinstance(answer[0], Settled):
        return [settled.status for settled in answer]
    return sorted(answer) if isinstance(answer, set) else answer


def differs(expected: Any, found: Any, path: str = "") -> str | None:
    """Where two plain values differ; None if they do not. Numbers may differ by 1e-6."""
    if isinstance(expected, dict) and isinstance(found, dict):
        for key in {**expected, **found}:
            if key == "error" and expected.get("reason") == found.get("reason") in OWN_WORDS:
                continue
            if difference := differs(expected.get(key), found.get(key), f"{path}.{key}" if path else str(key)):
                return difference
        return None
    if isinstance(expected, list | tuple) and isinstance(found, list | tuple) and len(expected) == len(found):
        pairs = enumerate(zip(expected, found, strict=True))
        return next((it for n, (one, other) in pairs if (it := differs(one, other, f"{path}[{n}]"))), None)
    if isinstance(expected, float) and isinstance(found, float) and abs(expected - found) < 1e-6:
        return None
    return None if expected == found else f"{path} is {found!r}, the model has {expected!r}"
