"""The throttle that reacts to outcomes: what it returns, attempt by attempt."""

from __future__ import annotations

import pytest

from treadle import AIMD, BadOption
from treadle.core.events import Emitter, Event
from treadle_testkit.shows import shows


def told(emitter: Emitter, **counts: int) -> None:
    for name, times in counts.items():
        for _ in range(times):
            emitter.emit(Event(name=name, task="f"))


@shows("the pauses of `AIMD` grow with failed attempts and shrink with successful ones")
async def test_pauses_grow_while_attempts_fail_and_shrink_while_they_succeed() -> None:
    emitter, throttle = Emitter(), AIMD(base=0.1, factor=2, max=0.5)
    throttle.attach(emitter)
    asked = []
    for counts in ({"succeeded": 5}, {"retrying": 1}, {"retrying": 3}, {"failed": 1, "succeeded": 9}, {"failed": 1}):
        told(emitter, **counts)
        asked.append(await throttle())
        if asked[-1]:
            assert await throttle() == 0.0  # the pause is over: some may start
    assert asked == [0.0, 0.1, 0.2, 0.4, 0.5]
    assert await throttle() == 0.0  # nothing was tried, so nothing is known
    for expected in (0.4, 0.3, 0.2, 0.1, 0.0):
        told(emitter, succeeded=1)
        assert await throttle() == pytest.approx(expected)
        await throttle()
    throttle.detach(emitter)
    told(emitter, failed=5)
    assert await throttle() == 0.0


async def test_a_share_of_failures_may_be_fine_and_other_tasks_do_not_count() -> None:
    emitter, throttle = Emitter(), AIMD(max_fail_rate=0.5, tasks=["f"])
    throttle.attach(emitter)
    told(emitter, succeeded=1, failed=1)
    assert await throttle() == 0.0
    emitter.emit(Event(name="failed", task="g"))
    assert await throttle() == 0.0
    told(emitter, succeeded=1, failed=2)
    assert await throttle() > 0.0


@pytest.mark.parametrize(
    "wrong", [{"max_fail_rate": 2}, {"factor": 0.5}, {"base": 0}, {"step": 0}, {"max": -1}, {"base": "x"}]
)
def test_invalid_options_of_a_throttle_are_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(BadOption):
        AIMD(**wrong)  # type: ignore[arg-type]
