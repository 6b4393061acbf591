"""Random types with values: containers, enums, dataclasses, Structs, NamedTuples, TypedDicts, and pydantic models, also
with every hook that we know.

A seeded generator of our own, because a type and its values are made together, thousands of each in a few seconds.
`Made.calm` says that no class of the type has a hook and that the values fit, so each of them must be accepted.
"""

from __future__ import annotations

import dataclasses
import enum
import math
import random
import typing
from collections.abc import Callable
from datetime import UTC, date, datetime, time, timedelta, timezone
from decimal import Decimal
from typing import Annotated, Any, Generic, Literal, NamedTuple, TypeVar
from uuid import UUID

import msgspec
import pydantic
from pydantic import ConfigDict, Field
from typing_extensions import TypedDict  # pydantic refuses that of `typing` before Python 3.12

T = TypeVar("T")
Draw = Callable[[], Any]


class Made(NamedTuple):
    hint: Any
    draw: Draw  # a new value of the type
    calm: bool = True
    hashable: bool = True
    alone: bool = False  # msgspec decodes it to another type in a union


class Colour(enum.Enum):
    RED = "red"
    BLUE = "blue"


class Level(enum.IntEnum):
    LOW = 1
    HIGH = 2


class Mode(enum.StrEnum):
    FAST = "fast"


class Mixed(enum.Enum):
    TEXT = "a"
    PAIR = (1, 2)


class Right(enum.Flag):
    READ = 1
    WRITE = 2


class Holder(pydantic.BaseModel, Generic[T]):
    model_config = ConfigDict(arbitrary_types_allowed=True)
    item: T


@dataclasses.dataclass
class Box(Generic[T]):
    item: T


class Types:
    """The types of one seed."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self._count = 0

    def any(self, depth: int = 3, hashable: bool = False) -> Made:
        """A random type, at most `depth` levels deep."""
        if depth == 0 or self.random.random() < 0.25:
            return self._leaf()
        makers = [self._leaf, self._optional, self._tuple]
        if not hashable:
            makers += [self._list, self._dict, self._set, self._union, self._limited]
            makers += [self._dataclass, self._struct, self._named_tuple, self._typed_dict, self._generic]
            makers += [self._model] * 5
        make = self.random.choice(makers)
        return make() if make == self._leaf else make(depth - 1)  # type: ignore[call-arg]

    # --- leaves

    def _leaf(self) -> Made:
        rnd = self.random
        zones = (
            None,
            UTC,
            timezone(timedelta(hours=5, minutes=30)),
            timezone(timedelta(seconds=rnd.randint(-86399, 86399))),
        )
        texts = ["", "a", "\u20ac\U0001f9f5", '"$t"', "$t", "null", "1", "2026-01-01", "x" * 300, "\x00\n"]
        leaves: list[tuple[Any, Draw]] = [
            (int, lambda: rnd.choice([0, 1, -1, 2**31, 2**63, -(2**64), 10**40, rnd.getrandbits(60)])),
            (str, lambda: rnd.choice([*texts, f"t{rnd.random()}"])),
            (bool, lambda: rnd.random() < 0.5),
            (float, lambda: rnd.choice([0.0, -0.0, 1.5, 1e300, 5e-324, math.inf, -math.inf, math.nan, rnd.random()])),
            (None, lambda: None),
            (bytes, lambda: rnd.choice([b"", b"abc", b"\xff\x00", rnd.randbytes(5)])),
            (datetime, lambda: self._moment(rnd.choice(zones))),
            (date, lambda: rnd.choice([date.min, date.max, date(2026, 2, 28)])),
            (time, lambda: rnd.choice([time.min, time.max, time(2, 30, fold=1), time(1, tzinfo=UTC)])),
            (timedelta, lambda: rnd.choice([timedelta.min, timedelta.max, timedelta(-1, 3, 7), timedelta(0, 1.5)])),
            (Decimal, lambda: Decimal(rnd.choice(["1.10", "0", "-7E+20", "NaN", "Infinity", "0.000001"]))),
            (UUID, lambda: UUID(int=rnd.getrandbits(128))),
            (Colour, lambda: rnd.choice(list(Colour))),
            (Level, lambda: rnd.choice(list(Level))),
            (Mode, lambda: Mode.FAST),
            (Mixed, lambda: rnd.choice(list(Mixed))),
            (Right, lambda: rnd.choice([Right.READ, Right.READ | Right.WRITE, Right(0)])),
            (Literal["a", 1, True], lambda: rnd.choice(["a", 1, True])),
            (Literal["a", "b"], lambda: rnd.choice("ab")),
            (
                Any,
                lambda: rnd.choice(
                    [1, "a", [1, None], {"a": 1.5}, (1, 2), date.max, {1: {"$t": 2}}, b"\xff", math.nan]
                ),
            ),
        ]
        hint, draw = rnd.choice(leaves)
        return Made(hint, draw, hashable=hint is not Any)

    def _moment(self, zone: Any) -> datetime:
        years = self.random.choice([1, 1900, 2026, 9999])
        fold = 1 if zone is None and self.random.random() < 0.3 else 0
        return datetime(years, 6, self.random.randint(1, 28), 2, 30, 1, self.random.randint(0, 999999), zone, fold=fold)

    # --- containers

    def _optional(self, depth: int) -> Made:
        inner = self.any(depth)
        return Made(
            _union_of(inner.hint, None),
            lambda: inner.draw() if self.random.random() < 0.7 else None,
            inner.calm,
            inner.hashable,
        )

    def _union(self, depth: int) -> Made:
        parts = [self.any(depth) for _ in range(self.random.randint(2, 3))]
        if any(part.hint is Any for part in parts):
            return parts[0]
        hint = _union_of(*(part.hint for part in parts))
        return Made(hint, lambda: self.random.choice(parts).draw(), all(part.calm for part in parts), False)

    def _list(self, depth: int) -> Made:
        inner = self.any(depth)
        return Made(
            list[inner.hint], lambda: [inner.draw() for _ in range(self.random.randint(0, 3))], inner.calm, False
        )

    def _tuple(self, depth: int) -> Made:
        if self.random.random() < 0.4:
            inner = self.any(depth)
            return Made(tuple[inner.hint, ...], lambda: (inner.draw(), inner.draw()), inner.calm, inner.hashable)
        parts = [self.any(depth) for _ in range(2)]
        calm, hashable = all(part.calm for part in parts), all(part.hashable for part in parts)
        return Made(
            tuple.__class_getitem__(tuple(part.hint for part in parts)),
            lambda: tuple(part.draw() for part in parts),
            calm,
            hashable,
        )

    def _set(self, depth: int) -> Made:
        inner, kind = self._key(), self.random.choice([set, frozenset])
        return Made(kind[inner.hint], lambda: kind(inner.draw() for _ in range(3)), inner.calm, False)

    def _dict(self, depth: int) -> Made:
        key, inner = self._key(), self.any(depth)
        if self.random.random() < 0.5:
            key = Made(str, lambda: self.random.choice(["a", "b", "$t", ""]))
        return Made(dict[key.hint, inner.hint], lambda: {key.draw(): inner.draw() for _ in range(2)}, inner.calm, False)

    def _key(self) -> Made:
        while not (made := self.any(1, hashable=True)).hashable:
            pass
        return made

    def _limited(self, depth: int) -> Made:
        return Made(Annotated[int, msgspec.Meta(ge=0)], lambda: self.random.randint(0, 9))

    def _generic(self, depth: int) -> Made:
        inner = self.any(depth)
        if self.random.random() < 0.5:
            return Made(Box[inner.hint], lambda: Box(inner.draw()), inner.calm, False)
        return self._checked(Holder[inner.hint], lambda: {"item": inner.draw()}, False)

    # --- classes

    def _fields(self, depth: int) -> dict[str, Made]:
        return {f"f{index}": self.any(depth) for index in range(self.random.randint(1, 3))}

    def _name(self) -> str:
        self._count += 1
        return f"Made{self._count}"

    def _dataclass(self, depth: int) -> Made:
        fields, hook = self._fields(depth), self.random.random() < 0.4
        space: dict[str, Any] = {}
        pairs: list[Any] = [(name, made.hint) for name, made in fields.items()]
        if hook:
            space["__post_init__"] = self._post_init(list(fields))
            if self.random.random() < 0.3:
                pairs.append(("late", dataclasses.InitVar[int], 1))
        kind = dataclasses.make_dataclass(
            self._name(), pairs, namespace=space, frozen=not hook, slots=self.random.random() < 0.5
        )
        return self._class(kind, fields, hook)

    def _struct(self, depth: int) -> Made:
        fields, hook = self._fields(depth), self.random.random() < 0.4
        space = {"__post_init__": self._post_init(list(fields))} if hook else {}
        options = self.random.choice(
            [{}, {"rename": "camel"}, {"omit_defaults": True}, {"array_like": True}, {"kw_only": True}]
        )
        pairs: list[Any] = [(name, made.hint) for name, made in fields.items()]
        return self._class(msgspec.defstruct(self._name(), pairs, namespace=space, **options), fields, hook)

    def _named_tuple(self, depth: int) -> Made:
        fields = self._fields(depth)
        kind = NamedTuple(self._name(), [(name, made.hint) for name, made in fields.items()])  # type: ignore[misc]
        return self._class(kind, fields, False)

    def _typed_dict(self, depth: int) -> Made:
        fields = self._fields(depth)
        kind = TypedDict(self._name(), {name: made.hint for name, made in fields.items()})  # type: ignore[misc]
        return Made(
            kind,
            lambda: {name: made.draw() for name, made in fields.items()},
            all(made.calm for made in fields.values()),
            False,
        )

    def _post_init(self, names: list[str]) -> Any:
        what, name = self.random.choice(["nothing", "grow", "flip"]), names[0]

        def run(made: Any, *late: int) -> None:
            value = getattr(made, name)
            if what == "grow" and isinstance(value, int | float | str | list):
                setattr(made, name, value + value)
            if what == "flip" and isinstance(value, bool):
                setattr(made, name, not value)

        return run

    def _class(self, kind: Any, fields: dict[str, Made], hook: bool) -> Made:
        calm = not hook and all(made.calm for made in fields.values())
        return Made(kind, lambda: kind(**{name: made.draw() for name, made in fields.items()}), calm, False)

    def _model(self, depth: int) -> Made:
        """A pydantic model. Its values are never `calm`: pydantic's own types restrict and convert."""
        fields = self._fields(depth)
        config = self.random.choice(
            [
                {},
                {},
                {"extra": "allow"},
                {"frozen": True},
                {"use_enum_values": True},
                {"strict": True},
                {"ser_json_bytes": "base64"},
            ]
        )
        pairs = {name: (made.hint, Field(**self._options(name))) for name, made in fields.items()}
        space = self._validators(next(iter(fields)))
        kind = pydantic.create_model(
            self._name(), __config__=ConfigDict(arbitrary_types_allowed=True, **config), __validators__=space, **pairs
        )
        aliases = {name: kind.model_fields[name].validation_alias or name for name in fields}
        return self._checked(kind, lambda: {str(aliases[name]): made.draw() for name, made in fields.items()}, True)

    def _options(self, name: str) -> dict[str, Any]:
        other = f"{name}Alias"
        ways: list[dict[str, Any]] = [*[{}] * 12, {"alias": other}, {"exclude": True}]
        ways += [{"validation_alias": other}, {"serialization_alias": other}]
        return self.random.choice(ways)

    def _validators(self, name: str) -> dict[str, Any]:
        def twice(value: Any) -> Any:
            return value + value if isinstance(value, int | str | list) else value

        def cut(value: Any) -> Any:
            return value[:1] if isinstance(value, str | list) else value

        def keep(value: Any) -> Any:
            return value

        return self.random.choice(
            [
                {},
                {},
                {"v": pydantic.field_validator(name, mode="before")(twice)},
                {"v": pydantic.field_validator(name, mode="after")(keep)},
                {"v": pydantic.field_serializer(name)(cut)},
            ]
        )

    def _checked(self, kind: Any, fields: Callable[[], dict[str, Any]], subclasses: bool) -> Made:
        """Values of a model: as pydantic makes them, or made without its checks, or of a subclass."""

        def draw() -> Any:
            values, way = fields(), self.random.random()
            if way < 0.1:
                return kind.model_construct(**dict(zip(kind.model_fields, values.values(), strict=True)))
            if way < 0.2 and subclasses:
                return _subclass(kind).model_construct(
                    **dict(zip(kind.model_fields, values.values(), strict=True)), more=1
                )
            try:
                return kind(**values)
            except (pydantic.ValidationError, OverflowError):
                return kind.model_construct(**dict(zip(kind.model_fields, values.values(), strict=True)))

        return Made(kind, draw, False, False)


def _union_of(*hints: Any) -> Any:
    return typing.Union[hints]  # noqa: UP007  # of types found at run time


_subclasses: dict[Any, Any] = {}


def _subclass(kind: Any) -> Any:
    if kind not in _subclasses:
        _subclasses[kind] = pydantic.create_model(f"{kind.__name__}Sub", __base__=kind, more=(int, 0))
    return _subclasses[kind]
