"""The operation that shows the checks of `treadle doctor`."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import aclosing
from typing import TYPE_CHECKING, Final, Literal

from msgspec import Struct

from treadle.server.doctor import Check, examine
from treadle.server.kept_answer import KeptAnswers
from treadle.server.middleware import for_everybody
from treadle.server.operation import Call, Operation
from treadle.storage import messages

if TYPE_CHECKING:
    from treadle.app.core import AppCore
    from treadle.server.overview import Looks

FRESH: Final = 30.0  # s for which an answer is kept: the checks count all rows
LONGEST: Final = 20.0  # s of the checks; a response may take 30

Verdict = Literal["ok", "warning", "error"]
VERDICTS: Final[dict[str, Verdict]] = {"ok": "ok", "warn": "warning", "fail": "error"}


class CheckView(Struct, frozen=True):
    """One check: what it found, and what to do about it."""

    verdict: Verdict
    name: str
    text: str
    advice: str | None = None


class Examined(Struct, frozen=True):
    """The checks of the storage and its contents. at: when they were made, 30 s ago at most."""

    at: float
    checks: Sequence[CheckView]


class DoctorRoutes:
    """The operation that examines the storage of one app. The overview then has the number of warnings."""

    def __init__(self, core: AppCore, looks: Looks) -> None:
        self._core, self._looks, self._kept = core, looks, KeptAnswers[Examined](FRESH)

    @Operation("GET /v1/doctor", tag="operate", scope="read")
    async def doctor(self, call: Call[None, messages.Nothing]) -> Examined:
        """Check the storage and its contents, at most once in 30 s."""
        for_everybody(call.token, "the checks")
        return await self._kept.get(None, self._examine)

    async def _examine(self) -> Examined:
        results: list[Check] = []
        try:
            async with asyncio.timeout(LONGEST), aclosing(examine(self._core)) as checks:
                async for check in checks:
                    results.append(check)  # noqa: PERF401  # one by one, to keep them at a timeout
        except TimeoutError:
            text = f"the checks took more than {LONGEST:.0f} s, so the others were left out"
            results.append(Check("warn", "time", text, "`treadle doctor` makes all of them, without a bound of time"))
        self._looks.examined(results)
        views = [CheckView(VERDICTS[check.verdict], check.name, check.text, check.advice or None) for check in results]
        return Examined(self._core.now(), views)
