"""Values of classes that arrive as their annotations say, so that a call with them is not refused."""

from __future__ import annotations

import dataclasses
import enum
import functools
import queue
import threading
import uuid
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Annotated, Any

import pydantic
import pytest
from pydantic import BaseModel, ConfigDict, Field, HttpUrl, PrivateAttr, SecretStr

from tests.serialization.test_call_codec import label, one
from treadle.errors import BadArgument, BadResult
from treadle.serialization import comparison
from treadle.serialization.class_hooks import ALWAYS, TAGGED, may_change
from treadle.serialization.comparison import difference


class Color(enum.Enum):
    RED = "r"


class Defaults(BaseModel):  # pydantic does not validate them
    total: Decimal = 0  # type: ignore[assignment]
    parts: list[Decimal] = [0]  # type: ignore[list-item]
    path: Path = "/tmp"  # type: ignore[assignment]
    wait: timedelta = 60  # type: ignore[assignment]
    url: HttpUrl = "http://x/"  # type: ignore[assignment]
    word: SecretStr = ""  # type: ignore[assignment]


class ExactDefaults(BaseModel):  # only fields that JSON restores
    words: list[str] = ()  # type: ignore[assignment]
    color: Color = "r"  # type: ignore[assignment]
    on: bool = 0  # type: ignore[assignment]
    n: int = 1.0  # type: ignore[assignment]


class Values(BaseModel):
    model_config = ConfigDict(use_enum_values=True)
    color: Color = Color.RED


class Times(BaseModel):
    cents: int = "3"  # type: ignore[assignment]

    @pydantic.field_validator("cents")
    @classmethod
    def times(cls, value: int) -> int:
        return value * 100


def arrives(hint: Any, value: Any) -> Any:
    """The value as it comes out of a call, and the same out of a result."""
    codec = one(hint)
    (back,), _ = codec.decode_call(codec.encode_call((value,), {}))
    assert repr(codec.decode_result(codec.encode_result(value))) == repr(back)
    return back


def refused(hint: Any, value: Any) -> str:
    """Why a call with this value is refused, as its result is."""
    refused_result(hint, value)
    with pytest.raises(BadArgument) as caught:
        one(hint).encode_call((value,), {})
    return str(caught.value)


def refused_result(hint: Any, value: Any) -> str:
    with pytest.raises(BadResult) as caught:
        one(hint).encode_result(value)
    return str(caught.value)


@pytest.mark.parametrize("kind", [Defaults, ExactDefaults, Values], ids=label)
def test_a_default_of_another_type_arrives_as_its_annotation_reads_it(kind: Any) -> None:
    written = kind.model_validate(kind().model_dump(warnings=False))
    assert repr(arrives(kind, kind())) == repr(written)
    assert repr(arrives(list[kind], [kind()])) == repr([written])


def test_only_the_untouched_default_may_change() -> None:
    assert "at .total int (1) would arrive as Decimal" in refused(Defaults, Defaults().model_copy(update={"total": 1}))
    grown = Defaults()
    grown.parts.append(1)  # type: ignore[arg-type]
    assert "at .parts[0] int (0) would arrive as Decimal" in refused(Defaults, grown)
    assert "at .cents str ('3') would arrive as int (300)" in refused(Times, Times())
    assert "at .words tuple (('a',))" in refused(ExactDefaults, ExactDefaults().model_copy(update={"words": ("a",)}))


def test_a_model_is_compared_for_a_default_of_another_type_only() -> None:
    class Plain(BaseModel):
        seconds: float = 5
        words: list[str] = []
        name: str = None  # type: ignore[assignment]
        color: Color | None = Color.RED
        mood: str = Mood.GOOD

    assert may_change(Plain) == TAGGED
    assert may_change(ExactDefaults) == ALWAYS


class Vector:
    """Compares like an array of numpy: item by item, and without a bool if there are several."""

    def __init__(self, items: Any) -> None:
        self.items = list(items)

    def __eq__(self, other: object) -> Any:
        return Vector(a == b for a, b in zip(self.items, getattr(other, "items", ()), strict=False))

    __hash__ = None  # type: ignore[assignment]

    def __bool__(self) -> bool:
        if len(self.items) != 1:
            raise ValueError("the truth of several items")
        return bool(self.items[0])

    def __reduce__(self) -> Any:
        return Vector, (self.items,)

    def __repr__(self) -> str:
        return f"Vector({self.items})"


class Measured(BaseModel):
    model_config = ConfigDict(arbitrary_types_allowed=True)
    at: Vector

    @pydantic.field_validator("at", mode="before")
    @classmethod
    def read(cls, value: Any) -> Any:
        return value if isinstance(value, Vector) else Vector(value)

    @pydantic.field_serializer("at")
    def write(self, value: Vector) -> list[float]:
        return value.items[:3]


@pytest.mark.parametrize("items", [[], [1.5], [1.5, 2.5], [0.0, float("nan"), 1.0]], ids=label)
def test_an_array_is_compared_by_its_parts(items: Any) -> None:
    assert arrives(Measured, Measured(at=items)).at.items == pytest.approx(items, nan_ok=True)


def test_an_array_that_would_change_is_refused() -> None:
    for items in ([1.0, 2.0, 3.0, 4.0], [1.0] * 4):
        assert "at .at Vector (Vector([1.0" in refused(Measured, Measured(at=items))
    assert difference(Vector([1]), Vector([True])) is not None
    assert difference(Vector([1, 2]), Vector([1, 3])) is not None


class Count:
    seen = 0

    def __call__(self) -> None:
        self.seen += 1


class Tools(BaseModel):
    n: int
    _ready: Any = PrivateAttr(default_factory=threading.Event)
    _queue: Any = PrivateAttr(default_factory=queue.Queue)
    _key: Any = PrivateAttr(default_factory=lambda: lambda item: item)
    _count: Any = PrivateAttr(default_factory=Count)
    _part: Any = PrivateAttr(default_factory=lambda: functools.partial(print, 1))
    _at: datetime = PrivateAttr(default_factory=lambda: datetime.now(UTC))
    _run: Any = None
    _id: uuid.UUID = PrivateAttr(default_factory=uuid.uuid4)

    def model_post_init(self, context: Any) -> None:
        self._run = self.run

    def run(self) -> int:
        return self.n


def test_private_attributes_that_the_class_makes_again_are_no_change() -> None:
    assert arrives(Tools, Tools(n=1)).n == 1


def test_private_attributes_that_were_changed_are_refused() -> None:
    for name, value in (
        ("_key", len),
        ("_part", functools.partial(print, 2)),
        ("_run", None),
        ("_queue", queue.Queue(3)),
    ):
        tools = Tools(n=1)
        setattr(tools, name, value)
        assert f"at .{name}" in refused(Tools, tools)
    tools = Tools(n=1)
    tools._ready.set()
    assert "at ._ready" in refused(Tools, tools)
    tools = Tools(n=1)
    tools._queue.put(1)
    assert "at ._queue" in refused(Tools, tools)
    tools = Tools(n=1)
    tools._count()
    assert "at ._count" in refused(Tools, tools)


def test_functions_are_compared_by_name_in_private_attributes_only() -> None:
    def function() -> Any:
        return lambda: 1

    assert difference(function(), function()) is not None


class Real(float):
    """Like `numpy.float64`."""


class Text(str):
    __slots__ = ()


class Mood(enum.StrEnum):
    GOOD = "good"


@dataclasses.dataclass
class Note:
    text: Any


class Mixed(BaseModel):
    total: Decimal = Decimal(1)  # compared
    numbers: list[float] = []
    counts: list[int] = []
    more: dict[str, tuple[Annotated[float, Field(gt=0)] | None, ...]] = {}
    either: list[Mood | float] = []
    animals: dict[str, Mood] = {}
    anything: dict[str, Any] = {}
    bare: dict[str, list] = {}  # type: ignore[type-arg]
    notes: dict[str, Note] = {}
    texts: list[Mood | str] = []


def mixed(**fields: Any) -> Mixed:
    return Mixed().model_copy(update=fields)


def test_a_subclass_of_a_base_below_a_field_arrives_as_the_base_that_the_field_names() -> None:
    sent = mixed(
        numbers=[Real(1.5), 2], more={Text("a"): (Real(1), None)}, either=[Real(2)], animals={Text("b"): Mood.GOOD}
    )
    back = arrives(Mixed, sent)
    assert type(back.numbers[0]) is type(back.more["a"][0]) is type(back.either[0]) is float
    assert [*map(type, (*back.more, *back.animals))] == [str, str]


def test_a_subclass_of_a_base_that_no_field_names_is_refused() -> None:
    for name, value in (
        ("anything", {"a": Real(1)}),
        ("anything", {"a": Text("b")}),
        ("bare", {"a": [Text("b")]}),
        ("notes", {"a": Note(Text("b"))}),
    ):
        assert f"at .{name}['a']" in refused(Mixed, mixed(**{name: value}))
    assert "at .counts[0] float (1.0) would arrive as int (1)" in refused(Mixed, mixed(counts=[1.0]))
    assert difference(Mixed(texts=[Mood.GOOD]), mixed(texts=["good"])) is not None


def test_the_annotation_of_a_field_is_read_only_where_types_differ(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(comparison, "get_args", None)
    assert difference(mixed(numbers=[1.5]), mixed(numbers=[1.5])) is None


class Closes(BaseModel):
    open: bool

    @pydantic.field_validator("open")
    @classmethod
    def still(cls, value: bool) -> bool:
        if not value:
            raise ValueError("is closed")
        return value


def test_an_error_of_the_class_is_not_called_a_change() -> None:
    shut = Closes.model_construct(open=False)
    for error in (refused(Closes, shut), refused_result(Closes, shut)):
        assert "could not be read again: at .open" in error
        assert "is closed; its class refuses what it wrote: pass a value that it accepts again" in error
        assert "does not read all" not in error
    assert "its class does not read all of what it writes" in refused(Times, Times())
