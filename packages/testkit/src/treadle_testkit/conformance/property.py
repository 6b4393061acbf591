"""Compares a storage with the memory storage: after each verb of a random sequence, both must return the same answers,
rows, pages and counts.

It finds differences that no law covers. Needs Hypothesis, which shrinks a failure to the shortest sequence:

    from treadle_testkit.conformance.property import agrees_with_memory

    def test_random_calls_agree_with_memory(make_storage):
        agrees_with_memory(make_storage)

The environment variable TREADLE_EXAMPLES sets the number of sequences, which are then random, for long runs.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final

import msgspec

from treadle.core.errors import IdTaken, KeyHeld, QueueFull, TreadleError, UnknownUpstream
from treadle.core.limit_model import Limit
from treadle.core.model import Claim, Claimed, LeaseRenewal, NewJob, Outcome, Presence, Record, Settled, State
from treadle.core.query_model import MetricsRow, Order, Query
from treadle.storage import queries
from treadle.storage.contract import Storage
from treadle.storage.memory import MemoryStorage
from treadle.testing.clock import HandClock
from treadle_testkit.conformance.property_steps import Step, steps

EXAMPLES = 60  # default number of sequences
STEPS = (12, 40)  # verbs in a sequence
ORDERS: Final[tuple[Order, ...]] = ("newest", "oldest", "ended", "queue", "due", "started")
KINDS: Final = (None, "queued", "scheduled", "blocked")
MOST = 2  # the bound of a glance
OWN_WORDS = ("expired", "upstream", "superseded")  # reasons with an error text that each storage chooses itself

MakeOne = Callable[[HandClock], Awaitable[Storage]]


async def make_memory(clock: HandClock) -> Storage:
    return MemoryStorage(clock)


def agrees_with_memory(
    make: MakeOne, examples: int | None = None, shrink: bool = True, adapt: Callable[[Step], Step] | None = None
) -> None:
    """Raises AssertionError with the shortest sequence of steps after which the two storages differ.

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
        verb, *arguments = step
        await getattr(self, f"_{verb}")(*arguments)
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
        self.last["settle"] = outcomes = [out for spec in words if (out := self._outcome(spec)) is not None]
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

    async def _metrics(self, rows: list[MetricsRow], remove: list[MetricsRow]) -> None:
        await self.both("store_metrics", rows, remove)

    async def _again(self, verb: str) -> None:
        if self.last.get(verb):
            await self.both(verb.partition(" ")[0], self.last[verb])

    def _id(self, n: int) -> str:
        return self.ids[n % len(self.ids)] if self.ids else "nobody"

    def _jobs(self, specs: list[dict[str, Any]]) -> list[NewJob]:
        jobs = []
        for spec in specs:
            options = dict(spec)
            old, ups, parent = options.pop("old", None), options.pop("ups", ()), options.pop("parent", None)
            id = f"j{len(self.ids):02}" if old is None or old % 4 else self._id(old)
            options["after"] = tuple(up for n in ups if (up := self._id(n)) != id)
            if parent is not None and self.ids:
                options["parent"] = options["root"] = self._id(parent)
            options["limits"] = tuple(options.get("limits", ()))
            if "deadline_at" in options:
                options.setdefault("deadline", 20.0)
            if options.get("task") == "":
                options.pop("function_done", None)  # a promise that nothing would end
            if id not in self.ids:
                self.ids.append(id)
            jobs.append(NewJob(id=id, **{"task": "t", "queue": "q", **options}))
        return jobs

    def _outcome(self, spec: dict[str, Any]) -> Outcome | None:
        options = dict(spec)
        running = [row for row in self.rows if row.state is State.RUNNING]
        some = self.rows if options.pop("any", False) else running
        if not some:
            return None
        row = some[options.pop("job") % len(some)]
        state, ups = State(options.pop("to")), options.pop("ups", ())
        followups = tuple(self._jobs(options.pop("followups", [])))
        after = tuple(id for n in ups if (id := self._id(n)) != row.job.id) + tuple(new.id for new in followups)
        if state is State.WAITING:
            options["after"] = tuple(dict.fromkeys(after))
        return Outcome(
            id=row.job.id, version=row.version - options.pop("behind", 0), state=state, followups=followups, **options
        )

    # calling both, and comparing

    async def both(self, verb: str, *words: Any) -> None:
        self.said.append(f"{verb}({', '.join(map(repr, words))})")
        expected, actual = [await _answer(storage, verb, words) for storage in (self.model, self.subject)]
        self.same(f"answer of {verb}", expected, actual)

    async def look(self) -> None:
        """Compare everything that can be read from both."""
        expected, actual = await self.model.get(self.ids), await self.subject.get(self.ids)
        for id, one, other in zip(self.ids, expected, actual, strict=True):
            self.same(f"row {id}", one, other)
        self.rows = [row for row in expected if row is not None]
        stats = [await storage.stats() for storage in (self.model, self.subject)]
        self.same("counts", *[sorted(one.counts, key=lambda it: (it.queue, it.task, it.state)) for one in stats])
        self.same("counts of the rows", queries.counts(self.rows, self.clock()), stats[0].counts)
        self.same("drift", *[await storage.recount() for storage in (self.model, self.subject)])
        self.same("limits", *[sorted(one.limits, key=lambda it: it.key) for one in stats])
        await self._glance()
        order = ORDERS[self.turn % len(ORDERS)]
        await self._scan(Query(order=order, limit=3, scan=5, ready=KINDS[self.turn // 2 % len(KINDS)]))
        query = Query(order=order, limit=1 + self.turn % 3, count=True)
        for _ in range(3):
            page, twin = await self.model.find(query), await self.subject.find(query)
            self.same(f"page {query}", page, twin)
            if page.cursor is None:
                break
            query = msgspec.structs.replace(query, cursor=page.cursor)

    async def _glance(self) -> None:
        """Compare the whole glance, and what holds below a bound that is soon reached."""
        self.same("metrics", *[await storage.read_metrics(30, 700) for storage in (self.model, self.subject)])
        whole, shown = [await storage.glance() for storage in (self.model, self.subject)]
        self.same("glance", whole.queues, shown.queues)
        self.same("capped", (), shown.capped)
        bounded, twin = [await storage.glance(MOST) for storage in (self.model, self.subject)]
        self.same("capped kinds", bounded.capped, twin.capped)
        queued = [
            [(it.name, it.queued, it.queued_capped) for it in glance.queues if it.queued] for glance in (bounded, twin)
        ]
        self.same("queued, bounded", *queued)

    async def _scan(self, query: Query) -> None:
        """Compare the rows of all bounded pages of the subject with one unbounded page of the model."""
        expected = await self.model.find(msgspec.structs.replace(query, limit=1_000, scan=None))
        rows: list[Record] = []
        cursor = None
        for _ in range(1_000):
            page = await self.subject.find(msgspec.structs.replace(query, cursor=cursor))
            rows += page.records
            cursor = page.cursor
            if cursor is None:
                break
        self.same(f"bounded pages {query}", [row.id for row in expected.records], [row.id for row in rows])

    def same(self, what: str, expected: Any, found: Any) -> None:
        if expected == found:
            return
        difference = differs(msgspec.to_builtins(expected), msgspec.to_builtins(found))
        if difference:
            history = "\n  ".join(self.said)
            raise AssertionError(f"{what} differs: {difference}\nafter\n  {history}")


async def _answer(storage: Storage, verb: str, words: tuple[Any, ...]) -> Any:
    """The result or error of a verb, without wording that each storage chooses itself."""
    try:
        answer = await getattr(storage, verb)(*words)
    except (UnknownUpstream, KeyHeld, IdTaken) as error:
        return {"raised": type(error).__name__, "id": error.id}
    except QueueFull as error:
        return {"raised": "QueueFull", "queue": error.queue, "waiting": error.waiting, "asked": error.asked}
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
