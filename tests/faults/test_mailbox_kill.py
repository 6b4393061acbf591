"""Programs with mailboxes whose process is killed by SIGKILL at each line of its ledger: every message counts once."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.faults.ledger import killed_and_run_again, kills
from tests.fixtures import LASTING
from treadle_testkit.shows import shows

COUNTER = """
from treadle.errors import Stale


async def count(numbers):
    here = current()
    for _ in range(2):
        number = await here.receive("add", returns=int)
        effect(f"received {number}")
        if number == 0:
            return numbers
        numbers.append(number)
    await here.restart(numbers)


def count_in_thread(numbers):
    here = current().sync
    for _ in range(2):
        number = here.receive("add", returns=int)
        effect(f"received {number}")
        if number == 0:
            return numbers
        numbers.append(number)
    here.restart(numbers)


task = app.task(name="count", retry=Retry(attempts=3, base=0), max_lost=0)(
    count if options == ["async"] else count_in_thread
)


async def main():
    async with Worker(app, lease=1, poll=0.05):
        for number in (1, 2, 3, 4, 5, 0):
            await app.jobs.send(task.options(id="counter").job([]), "add", number, key=str(number))
            effect(f"sent {number}")
        print(await (await app.jobs.handle("counter")).result(60))


asyncio.run(main())
"""
LINES = 12  # at least: a run that begins again writes "received" once more

APPROVAL = """
def decide():
    with open(ledger) as lines:
        decision = len(lines.readlines())  # another one in each run
    effect(f"decided {decision}")
    return decision


async def approve():
    here = current()
    ask = await here.receive_ask("decide")
    effect(f"asked {ask.value}")
    decision = await here.step("decide", decide)
    effect("stored")
    await ask.answer(decision)
    effect("answered")
    await here.publish("decision", decision)
    return decision


def approve_in_thread():
    here = current().sync
    ask = here.receive_ask("decide")
    effect(f"asked {ask.value}")
    decision = here.step("decide", decide)
    effect("stored")
    ask.answer(decision)
    effect("answered")
    here.publish("decision", decision)
    return decision


task = app.task(name="approve", retry=Retry(attempts=3, base=0), max_lost=0)(
    approve if options == ["async"] else approve_in_thread
)


async def main():
    async with Worker(app, lease=1, poll=0.05):
        for _ in range(2):
            answer = await app.jobs.ask(task.options(id="approval").job(), "decide", "x", timeout=60, key="k")
            effect(f"answer {answer}")
        result = await (await app.jobs.handle("approval")).result(60)
        print(answer, result, await app.jobs.value("approval", "decision"))


asyncio.run(main())
"""
APPROVAL_LINES = 6


@pytest.mark.slow
@shows("each message is received once and in order, whatever line its sender and its job are killed at")
@kills
@pytest.mark.parametrize("kind", ["async", "thread"])
@pytest.mark.parametrize("storage", LASTING)
@pytest.mark.parametrize("line", range(1, LINES + 1))
async def test_a_killed_counter_has_every_message_once(tmp_path: Path, storage: str, line: int, kind: str) -> None:
    ended = await killed_and_run_again(tmp_path, storage, COUNTER, line, (kind,))
    assert ended.printed == "[1, 2, 3, 4, 5]"


@pytest.mark.slow
@shows("a question has one answer, whatever line the asker and the job are killed at")
@kills
@pytest.mark.parametrize("kind", ["async", "thread"])
@pytest.mark.parametrize("storage", LASTING)
@pytest.mark.parametrize("line", range(1, APPROVAL_LINES + 1))
async def test_a_killed_approval_has_one_answer(tmp_path: Path, storage: str, line: int, kind: str) -> None:
    ended = await killed_and_run_again(tmp_path, storage, APPROVAL, line, (kind,))
    answer, result, published = ended.printed.split()
    assert answer == result == published
    assert {effect for effect in ended.effects if effect.startswith("answer ")} == {f"answer {answer}"}
