"""A program that asks for approval twice, killed by SIGKILL at each line of its ledger: each decision counts once."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.faults.ledger import killed_and_run_again, kills
from tests.fixtures import LASTING
from treadle_testkit.shows import shows

PROGRAM = """
from treadle import AlreadyDecided


async def refund():
    here = current()
    await here.step("begin", effect, "begun")
    first = await here.approve("first", by="group:finance", until=86_400, show={"amount": 99})
    effect(f"first {first.approved} {first.by}")
    await here.step("pay", effect, f"pay {first.approved} {first.by}")
    name, second = await here.first(second=here.approve("second"), late=here.sleep(86_400))
    effect(f"second {second.approved} {second.by}")
    return f"{first.by}, {second.by}"


def refund_in_thread():
    here = current().sync
    here.step("begin", effect, "begun")
    first = here.approve("first", by="group:finance", until=86_400, show={"amount": 99})
    effect(f"first {first.approved} {first.by}")
    here.step("pay", effect, f"pay {first.approved} {first.by}")
    name, second = here.first(second=current().approve("second"), late=current().sleep(86_400))
    effect(f"second {second.approved} {second.by}")
    return f"{first.by}, {second.by}"


task = app.task(name="refund", retry=Retry(attempts=3, base=0), max_lost=0)(
    refund if options == ["async"] else refund_in_thread
)


async def decide(person, approved):
    seen = set()
    while True:
        for request in (await app.jobs.approvals()).requests:
            if request.id not in seen:
                seen.add(request.id)
                try:
                    await app.jobs.decide(request, approved=approved, by=person)
                    effect(f"{person} decided {request.name}")
                except AlreadyDecided:
                    pass
        await asyncio.sleep(0.02)


async def main():
    with open(ledger) as lines:
        run = len(lines.readlines())  # other persons decide in each run
    async with Worker(app, lease=1, poll=0.05):
        await app.enqueue(task.options(id="refund").job())
        persons = [asyncio.create_task(decide(f"ann{run}", True)), asyncio.create_task(decide(f"bob{run}", False))]
        print(await (await app.jobs.handle("refund")).result(60))
        for person in persons:
            person.cancel()


asyncio.run(main())
"""
LINES = 6  # at least: a run that begins again writes the answers once more


@pytest.mark.slow
@shows("a decision of a person counts once, whatever line the job and the deciders are killed at")
@kills
@pytest.mark.parametrize("kind", ["async", "thread"])
@pytest.mark.parametrize("storage", LASTING)
@pytest.mark.parametrize("line", range(1, LINES + 1))
async def test_a_killed_refund_has_each_decision_once(tmp_path: Path, storage: str, line: int, kind: str) -> None:
    ended = await killed_and_run_again(tmp_path, storage, PROGRAM, line, (kind,))
    first, second = ended.printed.split(", ")
    heard = {effect for effect in ended.effects if effect.startswith(("first ", "second ", "pay "))}
    assert heard == {
        f"first {first.startswith('ann')} {first}",
        f"pay {first.startswith('ann')} {first}",
        f"second {second.startswith('ann')} {second}",
    }
    decided = [effect for effect in ended.effects if " decided " in effect]
    assert set(decided) <= {f"{first} decided first", f"{second} decided second"}
