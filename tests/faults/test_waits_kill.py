"""Programs that await children, a race and many jobs, whose process is killed by SIGKILL at each line of its ledger."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from tests.faults.ledger import Run, killed_and_run_again, kills
from tests.fixtures import LASTING
from treadle_testkit.shows import shows

CHILD = """
async def invoice(order):
    effect(f"invoice {order}")
    return f"invoice-{order}"


invoice = app.task(name="invoice", max_lost=0)(invoice)


async def order(number):
    here = current()
    await here.step("charge", effect, "charge")
    paper = await here.call(invoice.job(number))
    await here.step("send", effect, f"send {paper}")
    return paper


def order_in_thread(number):
    here = current().sync
    here.step("charge", effect, "charge")
    paper = here.call(invoice.job(number))
    here.step("send", effect, f"send {paper}")
    return paper


task = app.task(name="order", max_lost=0)(order if options[0] == "async" else order_in_thread)
asyncio.run(ends(task.options(id="the-order").job(7)))
"""
CHILD_LINES = ["charge", "invoice 7", "send invoice-7"]

RECURSION = """
@app.task(name="factorial", max_lost=0)
async def factorial(n):
    here = current()
    below = await here.call(factorial.job(n - 1)) if n > 1 else 1
    await here.step("multiply", effect, f"multiply {n}")
    return n * below


asyncio.run(ends(factorial.options(id="the-root").job(4)))
"""
RECURSION_LINES = ["multiply 1", "multiply 2", "multiply 3", "multiply 4"]

FAN_OUT = """
@app.task(name="fetch", max_lost=0, retry=Retry(attempts=1))
async def fetch(page):
    effect(f"fetch {page}")
    if page == 2:
        raise ConnectionError("page 2")
    return page


@app.task(name="crawl", max_lost=0)
async def crawl():
    here = current()
    pages = await here.map([fetch.job(page) for page in range(4)], at_most=2, failures="keep")
    total = sum(page for page in pages if isinstance(page, int))
    await here.step("sum", effect, f"sum {total}")
    async for done in here.as_completed([fetch.job(page) for page in (5, 6)]):
        await here.step("took", effect, f"took {done.result()}")
    return total


asyncio.run(ends(crawl.options(id="the-crawl").job()))
"""
FAN_OUT_LINES = 4 + 1 + 4

RACE = """
@app.task(name="slow", max_lost=0)
async def slow():
    await current().sleep(3600)
    effect("slow")


@app.task(name="quick", max_lost=0)
async def quick():
    effect("quick")
    return "quick"


@app.task(name="race", max_lost=0)
async def race():
    here = current()
    name, value = await here.first(late=here.sleep(600), slow=here.call(slow.job()), quick=here.call(quick.job()))
    await here.step("won", effect, f"won {name} {value}")
    try:
        async with here.timeout(0.2):
            await here.call(slow.job())
    except TimeoutError:
        await here.step("late", effect, "late")
    await here.step("end", effect, f"open {await unfinished()}")
    return name


async def unfinished():
    rows = (await app.jobs.list(task="slow")).records
    return sum(not row.state.final for row in rows if not row.id.startswith("treadle:cleanup:"))


asyncio.run(ends(race.options(id="the-race").job()))
"""
RACE_LINES = ["quick", "won quick quick", "late", "open 0"]


async def killed(tmp_path: Path, storage: str, program: str, line: int, *options: str) -> Run:
    return await killed_and_run_again(tmp_path, storage, program, line, options)


def is_once_but_for_the_kill(run: Run, lines: list[str], killed_at: int) -> bool:
    """Each effect has happened once, but the one at whose line the process was killed may have happened twice."""
    again = Counter(run.effects) - Counter(lines)
    return set(run.effects) == set(lines) and again in (Counter(), Counter([run.effects[killed_at - 1]]))


@pytest.mark.slow
@shows("a function that awaits a child and is killed at any line ends as one run would")
@kills
@pytest.mark.parametrize("kind", ["async", "thread"])
@pytest.mark.parametrize("storage", LASTING)
@pytest.mark.parametrize("line", range(1, len(CHILD_LINES) + 1))
async def test_a_killed_parent_finds_its_child(tmp_path: Path, storage: str, line: int, kind: str) -> None:
    run = await killed(tmp_path, storage, CHILD, line, kind)
    assert run.printed == "invoice-7"
    assert is_once_but_for_the_kill(run, CHILD_LINES, line)


@pytest.mark.slow
@kills
@pytest.mark.parametrize("storage", LASTING)
@pytest.mark.parametrize("line", range(1, len(RECURSION_LINES) + 1))
async def test_a_killed_recursion_ends(tmp_path: Path, storage: str, line: int) -> None:
    run = await killed(tmp_path, storage, RECURSION, line)
    assert run.printed == "24"
    assert is_once_but_for_the_kill(run, RECURSION_LINES, line)


@pytest.mark.slow
@shows("a fan-out that is killed at any line has the result of each child once")
@kills
@pytest.mark.parametrize("storage", LASTING)
@pytest.mark.parametrize("line", range(1, FAN_OUT_LINES + 1))
async def test_a_killed_fan_out_ends(tmp_path: Path, storage: str, line: int) -> None:
    run = await killed(tmp_path, storage, FAN_OUT, line)
    assert run.printed == "4"
    lines = [*(f"fetch {page}" for page in (0, 1, 2, 3, 5, 6)), "sum 4", "took 5", "took 6"]
    again = Counter(run.effects) - Counter(lines)
    assert set(run.effects) == set(lines)
    assert again.total() <= 2  # two children were running
    assert set(again.values()) <= {1}


@pytest.mark.slow
@shows("a race that is killed at any line has one winner, and no loser goes unnoticed")
@kills
@pytest.mark.parametrize("storage", LASTING)
@pytest.mark.parametrize("line", range(1, len(RACE_LINES) + 1))
async def test_a_killed_race_has_one_winner(tmp_path: Path, storage: str, line: int) -> None:
    run = await killed(tmp_path, storage, RACE, line)
    assert run.printed == "quick"
    assert is_once_but_for_the_kill(run, RACE_LINES, line)
