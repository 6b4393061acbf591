"""Where a job may run: the labels that a task requires of a worker, and the resources that each of its runs uses.

Pure functions of what tasks and workers declare; no storage knows them.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from msgspec import Struct

from treadle.core import defaults
from treadle.core.errors import BadOption

MOST_WORDS: Final = 64  # labels, resources, requirements, or values of one requirement
MOST_NAME: Final = 63  # characters of the name of a label or a resource
MOST_AMOUNT: Final = 2**53 - 1  # every JSON reader keeps it exact

Requires = Mapping[str, str | Sequence[str]] | Sequence[str]
"""{label: value, or values of which one is enough}; or labels, "name" for any value and "name=value" for one."""

Labels = Mapping[str, str] | Sequence[str]
"""{label: value}, or labels as "name" and "name=value"."""

Amounts = Mapping[str, int]
"""Resource -> amount, a whole number."""


class Needs(Struct, frozen=True, gc=False):
    """The labels and resources that a task needs of its worker.

    requires  (label, values): the worker's value of this label must be one of these; (): any value
    uses      (resource, amount) of each run, or of each call of a batch
    """

    task: str
    requires: tuple[tuple[str, tuple[str, ...]], ...] = ()
    uses: tuple[tuple[str, int], ...] = ()

    def unmet(self, labels: Mapping[str, str]) -> str | None:
        """The first requirement that these labels do not meet, as in "gpu=a100"; None: they meet all."""
        for name, values in self.requires:
            if name not in labels or (values and labels[name] not in values):
                return required(name, values)
        return None

    def excess(self, has: Mapping[str, int]) -> tuple[str, int] | None:
        """The first resource of which these uses exceed the amount that there is, and that amount; None: they fit."""
        return next(((name, amount) for name, amount in self.uses if amount > has.get(name, 0)), None)


def required(name: str, values: Sequence[str]) -> str:
    """A requirement as text: "gpu", "gpu=a100", "zone=eu or zone=us"."""
    return " or ".join(f"{name}={value}" for value in values) or name


def label_text(name: str, value: str) -> str:
    """A label as `labels_of` reads it: "gpu", "gpu=a100"."""
    return f"{name}={value}" if value else name


def needs_of(task: str, requires: Requires, uses: Amounts | None) -> Needs | None:
    """The arguments `requires` and `uses` of a task, checked; None: it needs nothing. Raises BadOption."""
    needs = Needs(task, _requirements(requires), tuple(amounts(uses or {}, "uses", least=1).items()))
    return needs if needs.requires or needs.uses else None


def labels_of(labels: Labels) -> dict[str, str]:
    """The argument `labels` of a worker, checked: a label without a value has "". Raises BadOption."""
    by_name: dict[str, str] = {}
    for name, value in _pairs(labels, "labels"):
        if not isinstance(value, str):
            raise BadOption("labels", f"{name}: expected one value as a text, found {value!r:.60}")
        if by_name.setdefault(name, value) != value:
            raise BadOption(
                "labels", f"{name}: a worker has one value of a label, found {by_name[name]!r} and {value!r}"
            )
    return by_name


def amounts(resources: Amounts, option: str, least: int = 0) -> dict[str, int]:
    """Resources and their amounts, checked. Raises BadOption."""
    mapping: object = resources
    if not isinstance(mapping, Mapping):
        raise BadOption(option, f'expected amounts by resource, such as {{"memory_mb": 2048}}, found {mapping!r:.60}')
    _at_most(option, mapping)
    for name, amount in mapping.items():
        _name(name, option)
        if isinstance(amount, float) and 0 < amount < MOST_AMOUNT:
            unit = "count in a smaller unit, such as milli-CPUs"
            raise BadOption(option, f"{name}: expected a whole number, found {amount!r}; {unit}")
        if isinstance(amount, bool) or not isinstance(amount, int) or not least <= amount <= MOST_AMOUNT:
            raise BadOption(option, f"{name}: expected {least} to {MOST_AMOUNT:,}, found {amount!r:.60}")
    return dict(mapping)


def check_needs(needs: Needs) -> None:
    """Raise BadOption for needs that a worker has sent and that no declaration can have."""
    _at_most("needs", needs.requires)
    for name, values in needs.requires:
        _name(name, "needs")
        _at_most("needs", values)
        for value in values:
            _value(value, "needs")
    amounts(dict(needs.uses), "needs", least=1)


def fitting_runs(uses: Iterable[tuple[str, int]], free: Mapping[str, int]) -> int:
    """How many runs with these uses fit into what is free; 2**31 without uses."""
    return max(0, min((free.get(name, 0) // amount for name, amount in uses), default=2**31))


def runs_of_any(uses: Iterable[Iterable[tuple[str, int]]], free: Mapping[str, int]) -> int:
    """How many runs fit into what is free, in any mix of these kinds of runs."""
    largest: dict[str, int] = {}
    for name, amount in (pair for pairs in uses for pair in pairs):
        largest[name] = max(amount, largest.get(name, 0))
    return fitting_runs(largest.items(), free)


def similar(name: str, known: Iterable[str]) -> str:
    """`; did you mean ...?` for a name that no worker has, or ""."""
    close = difflib.get_close_matches(name, sorted(set(known)), 1)
    return f"; did you mean {close[0]}?" if close and close[0] != name else ""


def _requirements(requires: Requires) -> tuple[tuple[str, tuple[str, ...]], ...]:
    requirements: dict[str, tuple[str, ...]] = {}
    for name, value in _pairs(requires, "requires"):
        if isinstance(value, str):
            values: tuple[str, ...] = (value,) if value else ()
        elif isinstance(value, Sequence) and value:
            _at_most("requires", value)
            values = tuple(dict.fromkeys(_value(one, "requires") for one in value))
        else:
            anything = f'for any value write requires=["{name}"]'
            raise BadOption(
                "requires", f"{name}: expected a value or a list of values, found {value!r:.60}; {anything}"
            )
        if name in requirements:
            raise BadOption("requires", f'{name}: named twice; to accept several values write {{"{name}": (..., ...)}}')
        requirements[name] = values
    return tuple(requirements.items())


def _pairs(labels: object, option: str) -> list[tuple[str, object]]:
    """The names and values of labels, from a mapping or from texts "name" and "name=value"."""
    if isinstance(labels, str) or not isinstance(labels, Iterable):
        example = '{"gpu": "a100"} or ["gpu=a100", "ssd"]'
        raise BadOption(option, f"expected labels such as {example}, found {labels!r:.60}")
    pairs: list[tuple[str, object]] = []
    if isinstance(labels, Mapping):
        pairs += [(_name(name, option), value) for name, value in labels.items()]
    else:
        for pair in labels:
            if not isinstance(pair, str):
                raise BadOption(option, f'expected labels as "name" or "name=value", found {pair!r:.60}')
            name, sign, value = pair.partition("=")
            pairs.append((_name(name, option), _value(value, option) if sign else ""))
    _at_most(option, pairs)
    for _, given_value in pairs:
        if isinstance(given_value, str) and given_value:
            _value(given_value, option)
    return pairs


def _at_most(option: str, values: Iterable[object]) -> None:
    number = len(list(values))
    if number > MOST_WORDS:
        raise BadOption(option, f"expected at most {MOST_WORDS}, found {number:,}")


def _name(name: object, option: str) -> str:
    if isinstance(name, str) and 0 < len(name) <= MOST_NAME and _is_word(name) and "=" not in name:
        return name
    raise BadOption(option, f'expected a name of 1-{MOST_NAME} printable characters without "=", found {name!r:.80}')


def _value(value: object, option: str) -> str:
    if isinstance(value, str) and 0 < len(value) <= defaults.MAX_NAME and _is_word(value):
        return value
    raise BadOption(option, f"expected a value of 1-{defaults.MAX_NAME} printable characters, found {value!r:.80}")


def _is_word(text: str) -> bool:
    return text == text.strip() and text.isprintable()
