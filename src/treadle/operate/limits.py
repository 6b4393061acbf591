"""`app.limits`: live rules on how many jobs run at once and how many start in a time."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any, cast

from treadle.errors import BadOption
from treadle.model import Limit, LimitUse
from treadle.options import name_of
from treadle.storage.contract import Storage

LONGEST = 31 * 86_400.0  # s; every start of an exact window is kept as long


class Limits:
    """The rules. A rule is looked up by a job's limit name, then by what stands before its colon."""

    def __init__(self, storage: Callable[[], Awaitable[Storage]]) -> None:
        self._storage = storage

    async def set(self, *limits: Limit) -> None:
        """Add or replace rules; a rule with neither slots nor rate is removed. Acts on the next claim, everywhere.

        Raises BadOption for a rule that means nothing.
        """
        for rule in limits:
            check(rule)
        await (await self._storage()).set_limits(limits)

    async def list(self) -> Sequence[LimitUse]:
        """Each rule and each partition in use: slots taken, jobs that stand aside."""
        return (await (await self._storage()).stats()).limits


def check(rule: Limit) -> None:
    """Raise BadOption, naming the field."""
    found: object = rule
    if not isinstance(found, Limit):
        raise BadOption("limits", f"expected Limit(...), found {found!r}")
    name_of(rule.name, "limit name")
    option = f"limit {rule.name!r}"
    bounds: tuple[tuple[str, Any, int], ...] = (
        ("slots", rule.slots, 0),
        ("rate", rule.rate, 1),
        ("burst", rule.burst, 1),
    )
    for name, value, least in bounds:
        if value is not None and (isinstance(value, bool) or not isinstance(value, int) or value < least):
            raise BadOption(option, f"{name}: expected {least} or more, found {value!r}")
    per = cast("Any", rule.per)
    if isinstance(per, bool) or not isinstance(per, int | float) or not 0 < per <= LONGEST:
        raise BadOption(option, f"per: expected seconds, more than 0 and at most 31 days, found {per!r}")
    for name, value, words in (("how", rule.how, ("window", "bucket")), ("hold", rule.hold, ("running", "ended"))):
        if value not in words:
            raise BadOption(option, f"{name}: expected {words[0]!r} or {words[1]!r}, found {value!r}")
    if rule.burst is not None and rule.how == "window":
        raise BadOption(option, 'burst belongs to how="bucket"')
