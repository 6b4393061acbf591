"""Random calls to a storage, the same for the same seed, to compare storages."""

from __future__ import annotations

import os
import random
from collections.abc import Callable
from typing import Any

import pytest
from msgspec import Struct
from msgspec.structs import replace

from treadle.core.limit_model import Limit
from treadle.core.model import ACT, Claim, LeaseRenewal, NewJob, Outcome, Presence, State
from treadle.core.query_model import Query
from treadle.errors import TreadleError
from treadle.storage.contract import Storage
from treadle.testing import HandClock

AT_ONCE = 3  # seeds of each comparison that are no slow tests
FINAL = [State.SUCCEEDED, State.FAILED, State.CANCELLED]


def seeds(usual: int) -> list[Any]:
    """The parameters of a comparison: `usual` seeds, or as many as TEST_SEEDS says."""
    found = range(int(os.environ.get("TEST_SEEDS", usual)))
    return [seed if seed < AT_ONCE else pytest.param(seed, marks=pytest.mark.slow) for seed in found]


class Play:
    """One sequence of calls."""

    def __init__(self, seed: int, clock: HandClock) -> None:
        self.dice, self.clock = random.Random(seed), clock
        self.numbers = self.claim_ids = 0
        self.ids: list[str] = []
        self.rows: dict[str, Any] = {}
        few = self.dice.random
        self.taste = {name: few() ** 2 for name in ("after", "key", "limits", "lane", "delay", "root", "aging", "rest")}
        self.reaches = random.Random(f"reach {seed}")  # of their own: without them the other calls are the same
        self.bound = self.reaches.random() ** 2  # how often a call has a reach
        # Some storages apply the acts of one call together, which shows in the order of a lane: many acts in a call, or
        # lanes.
        self.acts_at_once = [1] if self.dice.random() < 0.5 else [1, 8, 32]
        if len(self.acts_at_once) > 1:
            self.taste["lane"] = 0.0

    def some(self, name: str) -> bool:
        return self.dice.random() < self.taste[name]

    def new(self, nearby: list[str]) -> NewJob:
        dice, options = self.dice, dict[str, Any]()
        known = self.ids[-12:] + nearby
        if self.ids and dice.random() < 0.05:
            id = dice.choice(self.ids)
        else:
            self.numbers += 1
            id = f"j{self.numbers:04d}"
        if known and self.some("after"):
            options["after"] = tuple(dice.choices(known, k=dice.randint(1, 3)))
            options |= {"required": dice.choice([None, None, 1, 2]), "failures_allowed": dice.choice([0, 0, 1, None])}
            if dice.random() < 0.2:
                options["wait_timeout"] = float(dice.randint(1, 30))
                options["after"] += (f"later{dice.randint(0, 9)}",)
        if self.some("key"):
            options |= {
                "key": dice.choice("xyz"),
                "key_conflict": dice.choice(["keep", "raise", "replace", "replace"]),
                "key_window": dice.choice([None, None, 20.0]),
                "key_until": dice.choice(["ended", "ended", "started"]),
            }
        if self.some("limits"):
            names = dice.sample(["a", "b:1", "b:2", "c"], dice.randint(1, 2))
            options["limits"] = tuple((name, dice.choice([1, 1, 2, 4])) for name in names)
        if self.some("lane"):
            options |= {"lane": dice.choice("lmn"), "stride": dice.choice([1.0, 0.5])}
        if self.some("delay"):
            options["delay"] = float(dice.randint(0, 20))
        if self.some("root"):
            options |= {"root": dice.choice(self.ids or ["nobody"]), "parent": dice.choice(self.ids or ["nobody"])}
        if self.some("aging"):
            options |= {"aging": dice.choice([0.0, 5.0]), "priority": dice.randint(-2, 2)}
        if self.some("rest"):
            options |= {
                "deadline": dice.choice([None, 15.0]),
                "lease": dice.choice([None, 7.0]),
                "labels": tuple(dice.sample("pqr", dice.randint(0, 2))),
                "function_done": dice.random() < 0.15,
                "keep": dice.choice([0.0, 100.0]),
                "keep_failed": dice.choice([70.0, 200.0]),
                "task": dice.choice(["t", "t", "u", ""]),
                "queue": dice.choice(["default", "default", "other"]),
            }
        if self.reaches.random() < self.bound:
            options["reach"] = tuple({options.get("queue", "default"): 0, self.reaches.choice(["default", "other"]): 0})
        return NewJob(id=id, **{"task": "t", **options})

    def enqueue(self) -> Callable[[Storage], Any]:
        jobs = list[NewJob]()
        for _ in range(self.dice.choice([1, 1, 2, 5, 9])):
            jobs.append(self.new([job.id for job in jobs]))
        self.ids += [job.id for job in jobs if job.id not in self.ids]
        return lambda storage: storage.enqueue(jobs)

    def asks(self) -> Claim:
        dice = self.dice
        self.claim_ids += dice.random() < 0.9
        # a claim by id names a job that was just stored
        there = [id for id, row in self.rows.items() if not row.state.final]
        tasks = dice.choice([None, {"t": (None, None), "u": (1, 9.0)}, {"t": (2, None)}, {"t": (None, 4.0)}])
        return Claim(
            worker=f"w{dice.randint(0, 1)}#{self.claim_ids}",
            limit=dice.choice([1, 2, 5, 40]),
            lease=10.0,
            tasks=tasks,
            queues=dice.choice([(("default", 3),), (("other", 1), ("default", 9))]),
            ids=tuple(dice.sample(there, min(3, len(there)))) if dice.random() < 0.1 else (),
            running=tuple(dice.sample(self.ids, min(3, len(self.ids)))) if dice.random() < 0.2 else (),
        )

    def outcome(self) -> Outcome:
        dice = self.dice
        row = dice.choice(list(self.rows.values()))
        running = [each for each in self.rows.values() if each.state is State.RUNNING]
        if running and dice.random() < 0.8:
            row = dice.choice(running)
        state = dice.choice([State.SUCCEEDED, State.SUCCEEDED, State.SUCCEEDED, State.READY, State.WAITING, *FINAL])
        options: dict[str, Any] = {"attempt": dice.randint(0, 2)}
        if state is State.READY:
            options["delay"] = dice.choice([0.0, 3.0])
        if state is State.FAILED:
            options |= {
                "reason": dice.choice(["error", "children"]),
                "error": "it\0broke" if dice.random() < 0.1 else "x",
            }
        if state is State.CANCELLED:
            options["reason"] = "asked"
        if dice.random() < 0.3:
            options |= {
                "result": '"\u00e4"',
                "checkpoints": ((dice.choice("st"), str(dice.randint(0, 9))),),
                "note": "n",
            }
        if dice.random() < 0.1:
            options["keep"] = dice.choice([0.0, 80.5, 90.0])
        if state is State.WAITING or dice.random() < 0.1:
            options["followups"] = tuple(self.new([]) for _ in range(dice.randint(0, 3)))
            self.ids += [job.id for job in options["followups"] if job.id not in self.ids]
        if state is State.WAITING:
            options |= {
                "after": (*(job.id for job in options["followups"]), *dice.choices(self.ids, k=dice.randint(0, 1))),
                "required": dice.choice([None, 1]),
                "failures_allowed": dice.choice([None, 0, 1]),
                "function_done": dice.random() < 0.5,
                "delay": dice.choice([0.0, 0.0, 5.0]),
            }
        if self.reaches.random() < self.bound:
            options["reach"] = (self.reaches.choice(["default", "default", "other"]),)
        version = row.version - (dice.random() < 0.05)
        return Outcome(id=row.job.id, version=version, state=state, **options)

    def outcomes(self) -> list[Outcome]:
        if self.rows and self.dice.random() < 0.2:
            return self.acts()
        return [self.outcome() for _ in range(self.dice.choice([1, 2, 4, 8]))] if self.rows else []

    def acts(self) -> list[Outcome]:
        """An operator's acts on many jobs."""
        dice, kind = self.dice, self.dice.choice(["cancel", "run now", "retry", "delete", "any"])
        outs = []
        for row in dice.sample(list(self.rows.values()), min(len(self.rows), dice.choice(self.acts_at_once))):
            what = dice.choice(["cancel", "run now", "retry", "delete"]) if kind == "any" else kind
            if (what == "cancel" and row.state.final) or (what in ("retry", "delete") and not row.state.final):
                continue
            options: dict[str, Any] = {"state": State.READY}
            if what == "cancel":
                options = {"state": State.CANCELLED, "reason": "asked", "error": "by hand", "attempt": row.attempt}
            elif what == "run now":
                options |= {"attempt": row.attempt, "error": row.error}
            elif what == "delete":
                options = {"state": row.state, "keep": 0.0}
            version = row.version - (dice.random() < 0.05)
            outs.append(Outcome(id=row.job.id, version=version, checkpoints=((ACT, str(dice.random())),), **options))
        return outs + [out for out in outs if dice.random() < 0.05]

    def limit(self) -> Limit:
        dice = self.dice
        name = dice.choice(["a", "b", "b:1", "c", "queue", "queue:default", "queue:other"])
        kind = dice.choice(["slots", "slots", "rate", "both", "none", "none"])
        return Limit(
            name,
            slots=dice.randint(0, 3) if kind in ("slots", "both") else None,
            rate=dice.randint(1, 3) if kind in ("rate", "both") else None,
            per=float(dice.randint(1, 10)),
            how=dice.choice(["window", "bucket"]),
            burst=dice.choice([None, 2]),
            hold=dice.choice(["running", "ended"]),
        )

    def beat(self) -> Callable[[Storage], Any]:
        dice = self.dice
        some = dice.sample(list(self.rows.values()), min(len(self.rows), 4))
        some += [row for row in self.rows.values() if row.state is State.RUNNING and dice.random() < 0.5]
        rows = {row.job.id: row for row in some}.values()  # a worker holds a job once
        renewals = [
            LeaseRenewal(
                row.job.id,
                row.version,
                (("s", "h"),) if dice.random() < 0.2 else (),
                "beat" if dice.random() < 0.2 else None,
            )
            for row in rows
        ]
        presence = Presence(worker=f"w{dice.randint(0, 2)}", gone=dice.random() < 0.1, ttl=20.0)
        return lambda storage: storage.heartbeat(presence, renewals, 10.0)

    def query(self) -> Query:
        dice, pick = self.dice, self.dice.choice
        return Query(
            state=tuple(dice.sample(list(State), dice.randint(1, 3))) if dice.random() < 0.4 else (),
            task=pick([None, None, "t", ""]),
            queue=pick([None, None, "default"]),
            label=pick([None, None, "p"]),
            root=pick([None, None, None, pick(self.ids or ["x"])]),
            order=pick(["newest", "oldest", "ended", "queue"]),
            parent=pick([None, None, None, pick(self.ids or ["x"])]),
            limit=pick([1, 3, 50]),
            count=dice.random() < 0.5,
            ahead_of=pick([None, None, None, pick(self.ids or ["x"])]),
            before=pick([None, None, self.clock() - 5]),
        )

    def next(self) -> Callable[[Storage], Any]:
        what = self.dice.random()
        if what < 0.3 or not self.ids:
            return self.enqueue()
        if what < 0.5:
            asks = self.asks()
            return lambda storage: storage.claim(asks)
        if what < 0.65:
            outcomes = self.outcomes()
            return lambda storage: storage.settle(outcomes)
        if what < 0.75:
            outcomes, asks = self.outcomes(), self.asks()
            return lambda storage: storage.settle_claim(outcomes, asks)  # type: ignore[attr-defined]
        if what < 0.82:
            return self.beat()
        if what < 0.88:
            # One rule a name: PostgreSQL and Redis queue blocked jobs again also after a rule that the call removes.
            found = [self.limit() for _ in range(self.dice.randint(1, 2))]
            rules = list({rule.name: rule for rule in found}.values())
            return lambda storage: storage.set_limits(rules)
        if what < 0.92:
            limit = self.dice.choice([1, 3, 100])
            return lambda storage: storage.prune(limit)
        query = self.query()

        async def walk(storage: Storage) -> Any:
            pages, cursor = [], None
            while True:
                pages.append(await storage.find(replace(query, cursor=cursor)))
                cursor = pages[-1].cursor
                if cursor is None or len(pages) == 20:
                    return pages

        return walk


class Crowd(Play):
    """Many jobs with few limits, some of them in lanes, and a dozen endings a call: the work that storages do in
    bulk."""

    def __init__(self, seed: int, clock: HandClock) -> None:
        super().__init__(seed, clock)
        few = {"limits": 0.8, "lane": 0.2, "after": 0.03, "key": 0.03, "rest": 0.05}
        self.taste = dict.fromkeys(self.taste, 0.0) | few

    def outcomes(self) -> list[Outcome]:
        running = [row for row in self.rows.values() if row.state is State.RUNNING]
        some = self.dice.sample(running, self.dice.randint(0, len(running)))
        plain = [
            Outcome(
                id=row.job.id,
                version=row.version,
                state=State.SUCCEEDED,
                attempt=self.dice.randint(0, 1),
                result=self.dice.choice([None, None, "1", "a\0b"]),
            )
            for row in some
        ]
        return plain + (super().outcomes() if self.dice.random() < 0.3 else [])

    def limit(self) -> Limit:
        rule = super().limit()
        return rule if rule.slots is None else replace(rule, slots=rule.slots * 2)


async def said(call: Callable[[Storage], Any], storage: Storage) -> Any:
    try:
        return await call(storage)
    except TreadleError as error:
        return type(error), str(error)


def differing(ours: Any, theirs: Any) -> str:
    """A short description of where two answers differ."""
    if isinstance(ours, Struct) and type(ours) is type(theirs):
        pairs = [(name, getattr(ours, name), getattr(theirs, name)) for name in ours.__struct_fields__]
        return f"{getattr(ours, 'id', '')} " + ", ".join(f"{n}: {differing(a, b)}" for n, a, b in pairs if a != b)
    if isinstance(ours, list | tuple) and isinstance(theirs, list | tuple) and len(ours) == len(theirs):
        return "; ".join(differing(a, b) for a, b in zip(ours, theirs, strict=True) if a != b)
    return f"{ours!r} instead of {theirs!r}"


async def same(game: Play, clock: HandClock, storage: Storage, memory: Storage, steps: int) -> None:
    """Make this many calls of the game to both storages: the same answers, rows and figures after each."""
    for step in range(steps):
        call = game.next()
        expected, found = await said(call, memory), await said(call, storage)
        assert found == expected, f"step {step}: {differing(found, expected)}"
        rows = await memory.get(game.ids)
        for mine, theirs in zip(await storage.get(game.ids), rows, strict=True):
            assert mine == theirs, f"step {step}: {differing(mine, theirs)}"
        game.rows = {row.job.id: row for row in rows if row is not None}
        ours, reference = await storage.stats(), await memory.stats()
        assert ours.counts == reference.counts, step
        assert ours.limits == reference.limits, step
        assert sorted(each.worker for each in ours.workers) == sorted(each.worker for each in reference.workers)
        clock.advance(game.dice.choice([0, 0, 0.25, 1, 1, 3, 12, 70]))
