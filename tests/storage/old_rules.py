"""Limits as a Treadle before the facts of limits kept them: pauses and rules put aside stood among the rules."""

from __future__ import annotations

from treadle.core.model import Limit, LimitUse, Pause

OLD = [
    Limit("shut", slots=0),
    Limit("api", slots=0, rate=3),
    Limit("treadle.rule:api", slots=5, rate=3),
    Limit("treadle.paused:api", slots=0),
    Limit("geo", slots=4),
    Limit("treadle.code:geo", slots=4),
    Limit("own", slots=2),
    Limit("treadle.code:own", slots=1),
    Limit("rests", slots=0),
    Limit("treadle.rule:rests", slots=0),
    Limit("treadle.held:rests", slots=0),
]

NOW = {
    "shut": LimitUse(key="shut", rule=Limit("shut", slots=0)),
    "api": LimitUse(
        key="api", rule=Limit("api", slots=0, rate=3), pauses=(Pause("api"),), behind=Limit("api", slots=5, rate=3)
    ),
    "geo": LimitUse(key="geo", rule=Limit("geo", slots=4), declared=True),
    "own": LimitUse(key="own", rule=Limit("own", slots=2)),
    "rests": LimitUse(
        key="rests", rule=Limit("rests", slots=0), pauses=(Pause("rests", "held"),), behind=Limit("rests", slots=0)
    ),
}
