"""`app.limits`: live rules on how many jobs run at once and how many start in a time."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence

from treadle.errors import BadOption
from treadle.model import Limit, LimitUse
from treadle.options import name_of
from treadle.storage.contract import Storage


class Limits:
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
    name_of(rule.name, "limit name")
    for name, value, least in (("slots", rule.slots, 0), ("rate", rule.rate, 1), ("burst", rule.burst, 1)):
        if value is not None and (isinstance(value, bool) or not isinstance(value, int) or value < least):
            raise BadOption(f"limit {rule.name!r}", f"{name}: expected {least} or more, found {value!r}")
    if not isinstance(rule.per, int | float) or not 0 < rule.per <= 31 * 86_400:
        raise BadOption(f"limit {rule.name!r}", f"per: expected seconds, more than 0 and at most 31 days, found {rule.per!r}")
    if rule.how not in ("window", "bucket") or rule.hold not in ("running", "ended"):
        raise BadOption(f"limit {rule.name!r}", f"how: window or bucket, hold: running or ended; found {rule.how!r}, {rule.hold!r}")
    if rule.burst is not None and rule.how != "bucket":
        raise BadOption(f"limit {rule.name!r}", 'burst belongs to how="bucket"')
