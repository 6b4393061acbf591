"""The bound of a queue in `treadle top`: the rule that it becomes, and the numbers that a person types."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from treadle import App, Limit
from treadle.contrib.top.bounds import bounded, number
from treadle.errors import BadOption

MAIL = "queue:mail"


@pytest.fixture
async def app() -> AsyncIterator[App]:
    async with App("memory://") as app:

        @app.task(name="send", queue="mail")
        async def send() -> None: ...

        await send.enqueue()
        yield app


async def rule(app: App, most: int | None) -> Limit:
    return bounded(await app.limits.list(use=False), "mail", most, "drop_oldest")


async def test_a_bound_keeps_slots_and_rate_of_the_queue(app: App) -> None:
    assert await rule(app, 5) == Limit(MAIL, max_waiting=5, when_full="drop_oldest")
    await app.limits.set(Limit(MAIL, slots=2, rate=7, max_waiting=9))
    assert await rule(app, 5) == Limit(MAIL, slots=2, rate=7, max_waiting=5, when_full="drop_oldest")
    assert await rule(app, None) == Limit(MAIL, slots=2, rate=7)
    await app.queues.pause("mail")
    assert (await rule(app, 5)).slots == 2


async def test_a_queue_without_a_rule_of_its_own_gets_a_copy_of_the_common_one(app: App) -> None:
    await app.limits.set(Limit("queue", slots=3, max_waiting=9))
    assert await rule(app, 5) == Limit(MAIL, slots=3, max_waiting=5, when_full="drop_oldest")
    await app.queues.pause("mail")
    assert (await rule(app, 5)).slots == 3


async def test_a_bound_that_would_change_more_is_refused(app: App) -> None:
    with pytest.raises(BadOption, match="it has no bound to remove"):
        await rule(app, None)
    await app.limits.set(Limit("queue", max_waiting=9))
    with pytest.raises(BadOption, match="its bound is that of the limit 'queue': set that limit"):
        await rule(app, None)
    await app.limits.pause("queue")
    with pytest.raises(BadOption, match="queue 'mail' is paused by the limit 'queue': resume that limit first"):
        await rule(app, 5)


@pytest.mark.parametrize(("text", "most"), [("", None), (" 12 ", 12), ("10,000", 10_000), ("1000000000", 10**9)])
def test_a_number_may_have_commas(text: str, most: int | None) -> None:
    assert number(text) == most


@pytest.mark.parametrize("text", ["0", "-1", "1000000001", "9" * 4_400, "5.5", "many", "²"])
def test_a_wrong_number_is_refused_with_the_range(text: str) -> None:
    with pytest.raises(ValueError, match="expected 1 to 1,000,000,000, or nothing for any number"):
        number(text)
