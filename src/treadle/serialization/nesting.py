"""Errors for values with more levels than are stored: most of them contain themselves."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from treadle.serialization.tags import MAX_DEPTH, Unstorable, field_names, is_model, is_record, short


class TooDeep(Unstorable):
    """It has no path, which would repeat the same steps up to the greatest depth."""

    def under(self, step: str) -> None:
        return


def too_deep(value: object) -> TooDeep:
    """The error for a value that is nested too deep."""
    return circular(value) or TooDeep(f"is nested more than {MAX_DEPTH} deep")


def circular(value: object) -> TooDeep | None:
    """The error for a value that contains itself; None for any other."""
    steps = _loop(value)
    return None if steps is None else TooDeep(f"holds a value that contains itself: its {steps} is that value again")


def _loop(value: object) -> str | None:
    """The steps from a part of the value to the same part; None if it does not contain itself."""
    steps, above, walks = [""], {id(value): 0}, [_parts(value)]
    done: set[int] = set()
    while walks:
        for step, part in walks[-1]:
            if id(part) in above:
                return "".join([*steps[above[id(part)] + 1 :], step])
            if id(part) not in done:
                above[id(part)] = len(steps)
                steps.append(step)
                walks.append(_parts(part))
                break
        else:
            walks.pop()
            steps.pop()
            done.add(above.popitem()[0])
    return None


def _parts(value: Any) -> Iterator[tuple[str, Any]]:
    """The parts of a container with the steps to them; none of any other value."""
    kind = type(value)
    if is_model(kind):
        yield from ((f".{name}", part) for name, part in value.__dict__.items())
    elif is_record(kind):
        yield from ((f".{name}", getattr(value, name, None)) for name in field_names(kind))
    elif isinstance(value, dict):
        yield from ((f"[{short(key)}]", part) for key, part in value.items())
    elif isinstance(value, list | tuple | set | frozenset):
        yield from ((f"[{index}]", part) for index, part in enumerate(value))
