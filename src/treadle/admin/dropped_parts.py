"""Names the parts of a limit's rule that a new rule removes, for the person who sets it: a rule is replaced whole."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Any, Final

from msgspec.structs import asdict, replace

from treadle.admin.explain.wording import set_limit
from treadle.core.limit_model import Limit, LimitUse
from treadle.storage import rule_for

PARTS: Final = ("slots", "rate", "how", "burst", "hold", "max_waiting", "when_full")
OF_RATE: Final = ("how", "burst")  # without a rate they mean nothing


def dropped(uses: Iterable[LimitUse], rule: Limit, given: Collection[str] = ()) -> str | None:
    """The parts of the rule that applied to this name before, and that the new rule has not; None if there are none.

    uses   the limits before the change
    given  names of parts that the caller chose, also if they are the default
    """
    rules = {use.key: use.unpaused for use in uses}
    before = rule_for(rules, rule.name)
    if before is None or rule.empty:
        return None
    plain, old, new = asdict(Limit("")), asdict(before), asdict(rule)
    lost: dict[str, Any] = {
        part: old[part]
        for part in PARTS
        if part not in given and old[part] != new[part] == plain[part] and not (part in OF_RATE and rule.rate is None)
    }
    if before.rate is None:
        lost = {part: value for part, value in lost.items() if part not in OF_RATE}
    if rule.max_waiting is None and "max_waiting" not in lost:
        lost.pop("when_full", None)
    if not lost:
        return None
    kept = {part: old[part] for part in lost}
    if "rate" in lost:
        kept |= {"per": before.per} | {part: old[part] for part in OF_RATE}
    source = "it had" if before.name == rule.name else f"it had from the rule {before.name!r}"
    named = ", ".join(f"{part.replace('_', '-')} {value}" for part, value in lost.items())
    return f"a rule is replaced whole: {source} {named} before; {set_limit(replace(rule, **kept))} keeps this"
