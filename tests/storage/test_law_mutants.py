"""The tests of each law can fail: a memory storage with one planted defect does not pass the tests of that law."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from itertools import count
from time import time
from typing import Any

import pytest
from msgspec.structs import replace

from treadle.core.limit_model import Declare, Limit
from treadle.core.model import Claim, Claimed, NewJob, Outcome, Record, Settled
from treadle.storage.memory import MemoryStorage
from treadle.testing import HandClock
from treadle_testkit import conformance

GIVEN = {"durable": False, "speaks": True, "two_loops": False}  # the fixtures of a memory storage
Test = Callable[..., None]


class _Jobs(MemoryStorage):
    """Stores other jobs than it is given."""

    def change(self, job: NewJob) -> NewJob:
        raise NotImplementedError

    async def enqueue(self, jobs: Sequence[NewJob]) -> list[Record]:
        return await super().enqueue([self.change(job) for job in jobs])


class _Outcomes(MemoryStorage):
    """Applies other outcomes than it is given."""

    async def change(self, out: Outcome) -> Outcome:
        raise NotImplementedError

    async def settle(self, outcomes: Sequence[Outcome]) -> list[Settled]:
        return await super().settle([await self.change(out) for out in outcomes])


class _Rules(MemoryStorage):
    """Stores other rules of limits than it is given."""

    def change(self, rule: Limit) -> Limit:
        raise NotImplementedError

    async def set_limits(self, changes: Sequence[Any]) -> None:
        changed = [Declare(self.change(each.rule)) if isinstance(each, Declare) else each for each in changes]
        await super().set_limits([self.change(each) if isinstance(each, Limit) else each for each in changed])


class KeysIgnored(_Jobs):
    def change(self, job: NewJob) -> NewJob:
        return replace(job, key=f"{job.key}:{job.id}") if job.key else job


class OrderReversed(MemoryStorage):
    async def claim(self, ask: Claim) -> Claimed:
        found = await super().claim(ask)
        return replace(found, records=found.records[::-1])


class VersionsIgnored(_Outcomes):
    async def change(self, out: Outcome) -> Outcome:
        [row] = await self.get([out.id])
        return out if row is None else replace(out, version=row.version)


class LeasesForever(MemoryStorage):
    async def claim(self, ask: Claim) -> Claimed:
        return await super().claim(replace(ask, lease=1_000_000.0))


class OneOfManyIsEnough(_Jobs):
    def change(self, job: NewJob) -> NewJob:
        return replace(job, required=1) if job.after else job


class FollowupsLost(_Outcomes):
    async def change(self, out: Outcome) -> Outcome:
        return replace(out, followups=())


class ChildrenNotWaitedFor(_Outcomes):
    async def change(self, out: Outcome) -> Outcome:
        return replace(out, after=())


class OneSlotMore(_Rules):
    def change(self, rule: Limit) -> Limit:
        return replace(rule, slots=rule.slots + 1) if rule.slots else rule


class NeededRowsPruned(MemoryStorage):
    async def prune(self, limit: int) -> int:
        old = [row for row in self._jobs.values() if row.expires_at is not None and row.expires_at <= self._now()]
        for row in old[:limit]:
            self._tables.forget(self._jobs.pop(row.job.id))
        return len(old[:limit])


class ClaimIdsForgotten(MemoryStorage):
    number = count()

    async def claim(self, ask: Claim) -> Claimed:
        return await super().claim(replace(ask, worker=f"{ask.worker}{next(self.number)}"))


class WatchDeaf(MemoryStorage):
    async def watch(self, *_: Any, **__: Any) -> Any:
        return set()


class ClockOfItsOwn(MemoryStorage):
    def __init__(self, clock: Any) -> None:
        super().__init__(time)


class ConnectionsApart(MemoryStorage):
    """Another connection does not see what this one has stored."""


class FailingTogether(MemoryStorage):
    async def settle(self, outcomes: Sequence[Outcome]) -> list[Settled]:
        answers: list[Settled] = []
        for out in outcomes:
            refused = next((each for each in answers if each.status == "refused"), None)
            answers += [refused] if refused else await super().settle([out])
        return answers


class ReachIgnored(_Jobs):
    def change(self, job: NewJob) -> NewJob:
        return replace(job, reach=())


class BoundsIgnored(_Rules):
    def change(self, rule: Limit) -> Limit:
        return replace(rule, max_waiting=None)


BROKEN: dict[int, type[MemoryStorage]] = dict(
    enumerate(
        (
            KeysIgnored,
            OrderReversed,
            VersionsIgnored,
            LeasesForever,
            OneOfManyIsEnough,
            FollowupsLost,
            ChildrenNotWaitedFor,
            OneSlotMore,
            NeededRowsPruned,
            ClaimIdsForgotten,
            WatchDeaf,
            ClockOfItsOwn,
            ConnectionsApart,
            FailingTogether,
            ReachIgnored,
            BoundsIgnored,
        ),
        1,
    )
)


def those_of(law: int) -> dict[str, Test]:
    """The tests of a law that need no fixture but those of a memory storage."""
    found = {name: test for name, test in vars(conformance).items() if name.startswith(f"test_law{law:02}_")}
    return {
        name: test
        for name, test in found.items()
        if inspect.signature(test).parameters.keys() <= {"make_storage", *GIVEN}
    }


def failure(test: Test, kind: type[MemoryStorage]) -> BaseException | None:
    """The error that a test raises on such a storage; None: it passes or is skipped."""
    made: list[MemoryStorage] = []

    async def make(clock: HandClock, share: bool = False) -> MemoryStorage:
        if not share or kind is ConnectionsApart:
            made.append(kind(clock))
        await made[-1].open()
        return made[-1]

    wanted = inspect.signature(test).parameters
    try:
        test(make, **{name: value for name, value in GIVEN.items() if name in wanted})
    except pytest.skip.Exception:
        return None
    except (Exception, pytest.fail.Exception) as error:
        return error
    return None


def test_each_law_has_a_defect() -> None:
    laws = {int(name[8:10]) for name in vars(conformance) if name.startswith("test_law")}
    # Law 17 is about two processes: tests/storage/sqlite/test_paused.py has its defects.
    assert laws - {17} == BROKEN.keys()


@pytest.mark.parametrize("law", BROKEN)
def test_the_tests_of_a_law_find_a_defect(law: int) -> None:
    tests = those_of(law)
    failed = (name for name, test in tests.items() if failure(test, BROKEN[law]) is not None)
    name = next(failed, None)
    assert name is not None, f"{len(tests)} tests of law {law} pass although {BROKEN[law].__name__}"
    assert failure(tests[name], MemoryStorage) is None, f"{name} fails without the defect"
