"""`app.limits`: live rules on how many jobs run at once and how many start in a time; shutting one, and opening it.

Without it a pause would overwrite the rule it shuts, and nobody would know what to go back to. While a limit is shut
its rule stands aside as an entry of its own among the limits, and so does each reason it is shut for: data that every
storage keeps already, changed in one call.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import Any, Final, Literal, cast

from msgspec.structs import replace

from treadle.errors import BadOption, Stale
from treadle.model import Limit, LimitUse
from treadle.options import OWN, name_of
from treadle.storage.contract import Storage

LONGEST: Final = 31 * 86_400.0  # s; every start of an exact window is kept as long
TRIES: Final = 5  # two who change one limit at the same time look again this often

RULE, CODE = f"{OWN}rule:", f"{OWN}code:"  # the rule of a limit that is shut; what code declared last
NO_RULE: Final = 0  # slots of a rule put aside where there was none

Why = Literal["paused", "held"]
"""Somebody paused it; a job said that it must rest for a while."""
WHYS: Final[tuple[Why, ...]] = ("paused", "held")


class Limits:
    """The rules. A rule is looked up by a job's limit name, then by what stands before its colon."""

    def __init__(self, storage: Callable[[], Awaitable[Storage]]) -> None:
        self._storage = storage
        self._declared: dict[str, Limit] = {}

    def declare(self, *limits: Limit) -> None:
        """Write rules down in code: workers store them when they start. A rule changed by hand with `set` stands until
        the code says something else. Raises BadOption for a rule that means nothing."""
        for rule in limits:
            check(rule)
            self._declared[rule.name] = rule

    async def set(self, *limits: Limit) -> None:
        """Add or replace rules; a rule with neither slots nor rate is removed. Acts on the next claim, everywhere.

        A limit that is shut stays shut, and has the new rule when it opens. Raises BadOption for a rule that means
        nothing.
        """
        for rule in limits:
            check(rule)
        known = await self._rules()
        await (await self._storage()).set_limits(
            [each for rule in limits for each in _entries(rule.name, rule, _shut(known, rule.name), known)]
        )

    async def pause(self, name: str) -> None:
        """Start no job that names this limit, until it is resumed. Its rule stays as it is."""
        await self.shut(name_of(name, "limit name"), "paused", True)

    async def resume(self, name: str) -> None:
        """Open a paused limit, with the rule it had or was given meanwhile. A rule of 0 slots is removed."""
        await self.shut(name_of(name, "limit name"), "paused", False)

    async def shut(self, name: str, why: Why, shut: bool) -> None:
        """Shut a limit for a reason, or take that reason away: it opens when none is left."""
        storage = await self._storage()
        for _ in range(TRIES):
            known = await self._rules()
            whys = _shut(known, name)
            if (why in whys) is shut and (whys or shut or not _no_slots(known.get(name))):
                return
            rule = _rule(known, name)
            if why == "paused" and not shut and _no_slots(rule):
                rule = None
            await storage.set_limits(_entries(name, rule, whys | {why} if shut else whys - {why}, known))
        raise Stale(name, "this limit is being changed all the time")

    async def list(self) -> Sequence[LimitUse]:
        """Each rule and each partition in use: slots taken, jobs that stand aside. One that is shut has 0 slots."""
        return [use for use in await self._uses() if not use.key.startswith(OWN)]

    async def store(self) -> None:
        """Store what was declared here, unless code said the same before. Raises StorageError."""
        if not self._declared:
            return
        known, entries = await self._rules(), list[Limit]()
        for name, rule in self._declared.items():
            said = replace(rule, name=CODE + name)
            if known.get(said.name) != said:
                entries += [*_entries(name, rule, _shut(known, name), known), said]
        if entries:
            await (await self._storage()).set_limits(entries)

    async def _uses(self) -> Sequence[LimitUse]:
        return (await (await self._storage()).stats()).limits

    async def _rules(self) -> dict[str, Limit]:
        return {use.rule.name: use.rule for use in await self._uses()}


def _no_slots(rule: Limit | None) -> bool:
    return rule is not None and rule.slots == 0


def _shut(known: Mapping[str, Limit], name: str) -> frozenset[Why]:
    """Why a limit is shut."""
    return frozenset(why for why in WHYS if f"{OWN}{why}:{name}" in known)


def _rule(known: Mapping[str, Limit], name: str) -> Limit | None:
    """The rule of a limit, put aside or not."""
    if not _shut(known, name):
        return known.get(name)
    aside = known.get(RULE + name)
    return None if aside is None or aside.slots == NO_RULE else replace(aside, name=name)


def _entries(name: str, rule: Limit | None, shut: Iterable[Why], known: Mapping[str, Limit]) -> Sequence[Limit]:
    """What is to be stored of a limit: the rule that acts, the one put aside, and why it is shut."""
    whys = frozenset(shut)
    rule = None if rule is None or (rule.slots is None and rule.rate is None) else rule
    reasons = [Limit(f"{OWN}{why}:{name}", slots=NO_RULE if why in whys else None) for why in WHYS]
    if not whys:
        gone = [each for each in (*reasons, Limit(RULE + name)) if each.name in known]
        return [rule or Limit(name), *gone]
    # All but the slots stays as it is: a rate goes on counting what it has let through.
    acting = replace(rule, slots=0) if rule is not None else Limit(name, slots=0)
    aside = replace(rule or Limit(name, slots=NO_RULE), name=RULE + name)
    return [acting, aside, *(each for each in reasons if each.slots is not None or each.name in known)]


def check(rule: Limit) -> None:
    """Raise BadOption, naming the field."""
    found: object = rule
    if not isinstance(found, Limit):
        raise BadOption("limits", f"expected Limit(...), found {found!r}")
    name_of(rule.name, "limit name")
    option = f"limit {rule.name!r}"
    if rule.name.startswith(OWN):
        raise BadOption(option, f"names beginning with {OWN!r} are Treadle's own")
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
