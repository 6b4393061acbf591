"""The checkpoints of the engine itself among those of a job, which a run reads a dozen times.

A history has thousands of steps, and a pass over them costs as much as the replay of some hundred. The last answer is
kept, by the identity of the tuple: no tuple changes.
"""

from __future__ import annotations

from collections.abc import Mapping

from treadle.core.model import OURS, Pairs

_last: list[tuple[Pairs, dict[str, str]]] = [((), {})]


def own_checkpoints(checkpoints: Pairs) -> Mapping[str, str]:
    """Those whose names begin with `OURS`, by name."""
    known, own = _last[0]
    if known is not checkpoints:
        own = {name: text for name, text in checkpoints if name.startswith(OURS)}
        _last[0] = checkpoints, own
    return own
