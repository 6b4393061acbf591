"""A throttle that slows a worker down while attempts fail, and speeds it up while they succeed.

It keeps a failing service from being called at full speed until the jobs have used up their attempts.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import timedelta
from typing import Any, Final

from treadle.core.errors import BadOption
from treadle.core.events import Emitter, Event
from treadle.policy.retry import seconds

SUCCEEDED: Final = ("succeeded",)
FAILED: Final = ("retrying", "paused", "failed")  # each failed attempt, not only the last


class AIMD:
    """Additive increase, multiplicative decrease: `Worker(app, throttle=AIMD())`. Each worker needs its own instance.

    After each pause, claims pass for 0.1 s. The attempts of this process since the last decision set the next pause.

    max_fail_rate  share of attempts that may fail without a slow-down, 0 to 1
    base, factor   s of the first pause; the next is `factor` times as long, while too many attempts fail
    max            s of a pause at most
    step           s by which a pause gets shorter while attempts succeed; None: `base`
    tasks          tasks, or their names, whose attempts count; None: all
    Raises BadOption.
    """

    def __init__(
        self,
        *,
        max_fail_rate: float = 0.0,
        base: float | timedelta = 0.1,
        factor: float = 2.0,
        max: float | timedelta = 30.0,
        step: float | timedelta | None = None,
        tasks: Iterable[Any] | None = None,
    ) -> None:
        if isinstance(max_fail_rate, bool) or not 0 <= max_fail_rate <= 1:
            raise BadOption("max_fail_rate", f"expected 0 to 1, found {max_fail_rate!r}")
        if isinstance(factor, bool) or not factor >= 1:
            raise BadOption("factor", f"expected 1 or more, found {factor!r}")
        self._rate, self._factor = max_fail_rate, factor
        self._base, self._max = seconds(base, "base"), seconds(max, "max")
        self._step = self._base if step is None else seconds(step, "step")
        if not self._base or not self._step:
            raise BadOption("base" if not self._base else "step", "expected more than 0 s")
        self._tasks = None if tasks is None else {task if isinstance(task, str) else task.name for task in tasks}
        self._good = self._bad = 0
        self._paused = False
        self.delay = 0.0  # s of the last pause; 0: full speed

    def attach(self, emitter: Emitter) -> None:
        """Register for the events. The worker does this when it starts."""
        for name in (*SUCCEEDED, *FAILED):
            emitter.on(name, self._take)

    def detach(self, emitter: Emitter) -> None:
        """Unregister."""
        for name in (*SUCCEEDED, *FAILED):
            emitter.off(name, self._take)

    def _take(self, event: Event) -> None:
        if self._tasks is None or event.task in self._tasks:
            if event.name in SUCCEEDED:
                self._good += 1
            else:
                self._bad += 1

    async def __call__(self) -> float:
        """Decide on the next pause, in seconds; 0: none."""
        if self._paused:
            self._paused = False  # a pause is over: some claims must pass, because only attempts can show a recovery
            return 0.0
        tried, bad = self._good + self._bad, self._bad
        self._good = self._bad = 0
        if not tried:
            return 0.0
        if bad / tried > self._rate:
            self.delay = min(self._max, max(self._base, self.delay * self._factor))
        else:
            self.delay = max(0.0, self.delay - self._step)
        self._paused = self.delay > 0
        return self.delay
