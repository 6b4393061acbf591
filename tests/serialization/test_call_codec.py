"""Arguments and results as text: which values fit, which come back, and texts that other programs wrote."""

from __future__ import annotations

import copy
import dataclasses
import enum
import functools
import json
import math
import pickle
import re
import sys
from collections import OrderedDict
from collections.abc import Collection, Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from contextlib import suppress
from datetime import UTC, date, datetime, time, timedelta, timezone
from decimal import Decimal
from typing import (
    TYPE_CHECKING,
    Annotated,
    Any,
    Generic,
    Literal,
    NamedTuple,
    NewType,
    NotRequired,
    Optional,
    TypedDict,
    TypeVar,
    Union,
)
from uuid import UUID
from zoneinfo import ZoneInfo

import msgspec
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from treadle.core.job import JobSpec
from treadle.core.model import NewJob
from treadle.errors import BadArgument, BadResult, BadTask
from treadle.serialization.call_codec import (
    CallCodec,
    RemoteError,
    Unstorable,
    decode_any,
    encode_any,
)
from treadle.serialization.call_text import encode_foreign_call
from treadle.serialization.comparison import same
from treadle.serialization.tags import MARK, short
from treadle_testkit.shows import shows

try:
    import pydantic
except ImportError:  # the library works without it
    pydantic = None

if TYPE_CHECKING:
    from nowhere import Nothing


class Colour(enum.Enum):
    RED = "red"
    BLUE = "blue"


class Mixed(enum.Enum):
    TEXT = "a"
    PAIR = (1, 2)


class Level(enum.IntEnum):
    LOW = 1
    HIGH = 2


class Mode(enum.StrEnum):
    FAST = "fast"


class Right(enum.Flag):
    READ = 1
    WRITE = 2


@dataclasses.dataclass
class Point:
    x: int
    y: float = 0.0


@dataclasses.dataclass
class Circle:
    centre: Point
    radius: float
    drawn: datetime | None = None
    area: float = dataclasses.field(init=False)

    def __post_init__(self) -> None:
        self.area = self.radius * 2


@dataclasses.dataclass(frozen=True)
class Loose:
    what: Any
    shape: Point | Circle


@dataclasses.dataclass
class Span:
    end: tuple[int, int] | Annotated[int, msgspec.Meta(ge=0)]


@dataclasses.dataclass
class Node:
    name: str
    below: list[Node] = dataclasses.field(default_factory=list)


class Record(msgspec.Struct):
    id: UUID
    tags: set[str] = set()


class Tagged(msgspec.Struct, tag_field="$t", tag="kind"):
    n: int


class Movie(TypedDict):
    title: str
    year: NotRequired[int]


class Pair(NamedTuple):
    left: int
    right: str


T = TypeVar("T")


@dataclasses.dataclass
class Box(Generic[T]):
    held: T
    more: list[T]


UserId = NewType("UserId", int)
MAYBE = Optional[int]  # noqa: UP045  (the old spelling is another type)
MIXED = Union[str, int, None]  # noqa: UP007
Positive = Annotated[int, msgspec.Meta(gt=0)]


def label(part: object) -> str:
    """The id of a test, the same in every test process: without addresses, with sets in order."""
    if isinstance(part, set | frozenset):
        part = sorted(part, key=repr)
    return re.sub(r" at 0x[0-9a-f.]+", "", ascii(short(part, 40)))


def one(hint: Any) -> CallCodec:
    """The codec of a task with one parameter, `x`, and a result, both of that type."""

    def task(x):
        return x

    task.__annotations__ = {"x": hint, "return": hint}
    return CallCodec("a.task", task)


def alike(a: Any, b: Any) -> bool:
    """`same`, which also finds NaN inside of dataclasses."""
    if dataclasses.is_dataclass(a) and type(a) is type(b):
        return all(alike(getattr(a, f.name), getattr(b, f.name)) for f in dataclasses.fields(a))
    if type(a) is list and type(b) is list:
        return len(a) == len(b) and all(map(alike, a, b))
    return same(a, b)


def through(hint: Any, value: object) -> object:
    """The value after encoding and decoding the call; checks that the result's codec agrees and that the value is
    unchanged."""
    before = copy.deepcopy(value)
    task = one(hint)
    (back,), named = task.decode_call(task.encode_call((value,), {}))
    assert named == {}
    assert alike(task.decode_result(task.encode_result(value)), back)
    assert alike(value, before)
    return back


PARIS = ZoneInfo("Europe/Paris")
ODD = timezone(timedelta(minutes=9, seconds=21))
MOMENT = datetime.fromisoformat("2026-02-28T23:59:59.999999")
# fmt: off
KEEPS = [
    (str, "h\u00e9"), (str, "\ud800"), (str, "$t"), (str, '"$t"'), (int, 5), (int, -(2**300)), (int, 10**5000),
    (float, 1.5), (float, math.nan), (float, -math.inf), (bool, True), (None, None), (bytes, b"\x00\xff"),
    (datetime, MOMENT), (datetime, MOMENT.replace(tzinfo=UTC)), (datetime, MOMENT.replace(tzinfo=PARIS)),
    (datetime, MOMENT.replace(tzinfo=ODD)), (datetime, MOMENT.replace(fold=1)), (Any, MOMENT.replace(fold=1)),
    (time, time(2, 30, fold=1)), (datetime, MOMENT.replace(tzinfo=timezone(timedelta(microseconds=-5)))),
    (datetime, MOMENT.replace(tzinfo=timezone(timedelta(seconds=61, microseconds=5)))),
    (date, date.min), (time, time(1, 2, 3, 4)), (time, time(1, tzinfo=UTC)),
    (time, time(1, tzinfo=ODD)), (timedelta, timedelta.min), (timedelta, timedelta(-1, 3, 7)),
    (Decimal, Decimal("1.10")), (Decimal, Decimal("-Infinity")), (UUID, UUID(int=9)),
    (Colour, Colour.RED), (Mixed, Mixed.PAIR), (Mixed, Mixed.TEXT), (Level, Level.HIGH), (Mode, Mode.FAST),
    (Right, Right.READ | Right.WRITE), (Right, Right.READ),
    (Literal["a", 1, True], True), (Literal["a", 1], 1), (Literal[Colour.RED, "x"], Colour.RED), (Literal[b"x"], b"x"),
    (MAYBE, None), (int | None, 3), (Any | None, b"x"), (MIXED, "x"), (int | float, 1), (int | float, 1.0),
    (Decimal | float, 1.5), (Decimal | float, Decimal("1.5")), (date | datetime, MOMENT), (date | datetime, date.max),
    (bytes | str, b"a"), (bytes | str, "a"), (UUID | str, UUID(int=1)), (str | Colour, Colour.RED), (str | Mode,
    "fast"),
    (list[int] | set[int], {1}), (list[int] | dict[str, int], {"a": 1}), (tuple[int, int] | list[int], (1, 2)),
    (list[int], [1, 2]), (list, [1, (2, {3})]), (list[Any], [None, b""]), (list[float], [1.0, math.inf]),
    (tuple[int, str], (1, "a")), (tuple[int, ...], (1, 2)), (tuple[()], ()), (tuple, (1, [b"x"])),
    (tuple[date | datetime, ...], (MOMENT, date.max)), (tuple[int, *tuple[str, ...]], (1, "a", "b")),
    (set[int], {1, 2}), (frozenset[str], frozenset("ab")), (set, {1, (2, 3)}), (set[tuple[int, int]], {(1, 2)}),
    (dict[str, int], {"a": 1}), (dict[int, str], {1: "a", -2: "b"}), (dict[UUID, int], {UUID(int=1): 1}),
    (dict[tuple[int, int], str], {(1, 2): "a"}), (dict[float, int], {1.5: 1}), (dict[bool, int], {True: 1}),
    (dict[int | str, int], {1: 1, "1": 2}), (dict[Colour, int], {Colour.RED: 1}), (dict[Level, int], {Level.LOW: 1}),
    (dict[date, int], {date.max: 1}), (dict[Literal["a", "b"], int], {"a": 1}), (dict[bytes, int], {b"x": 1}),
    (dict[Decimal, int], {Decimal("1.0"): 1}), (dict[datetime, int], {MOMENT.replace(tzinfo=ODD): 1}),
    (dict[None, int], {None: 1}), (dict[Mixed, int], {Mixed.PAIR: 1}), (dict, {1: {"$t": 2}}),
    (dict[str, Any], {"$t": 1}),
    (dict[str, Any], {"a": (1, None)}), (dict[Any, int], {None: 1, "a": 2}), (dict[str, str], {"$t": "tuple",
    "v": "x"}),
    (Sequence[int], [1]), (Iterable[str], ["a"]), (Collection[int], [1]), (Mapping[str, int], {"a": 1}),
    (AbstractSet[int], {1}), (Mapping[int, list[date]], {1: [date.max]}),
    (Point, Point(1, 2.5)), (Point, Point(1, math.nan)), (Circle, Circle(Point(1), 2.0, MOMENT)),
    (Circle, Circle(Point(1), math.inf)), (Loose, Loose({1: 2}, Point(3))), (Loose, Loose("x", Circle(Point(1), 1.0))),
    (Node, Node("a", [Node("b", [Node("c")]), Node("d")])), (Record, Record(UUID(int=1), {"a"})), (Tagged, Tagged(3)),
    (Record | None, None), (Point | Circle, Circle(Point(1), 2.0)), (Point | Record | str, Point(4)),
    (list[Point | dict[str, int]], [Point(1), {"x": 1}]), (Movie, {"title": "M"}), (Movie, {"title": "M", "year": 1}),
    (list[Movie], [{"title": "\ud800"}]), (Pair, Pair(1, "a")), (Pair | list[int], Pair(1, "a")),
    (Box[int], Box(1, [2])), (Box[Box[date]], Box(Box(date.max, []), [])), (Box[Any], Box({1}, [b""])),
    (Span, Span((1, 2))), (list[Span | None], [Span(1)]), (tuple[int, int] | Positive, 5), (UserId, UserId(5)),
    (Positive, 5), (list[Positive], [1, 2]),
    (Annotated[list[Point], msgspec.Meta(max_length=1)], [Point(1)]),
    (Annotated[str, "a note"], "x"), (Annotated[datetime, msgspec.Meta(tz=True)], MOMENT.replace(tzinfo=UTC)),
    (Annotated[float, msgspec.Meta(ge=0)], math.inf), (object, {"a": (1,)}), (Any, [1, 1.0, True, None]),
    (T, (1,)), (list[T], [(1,)]), (dict[str, list[tuple[int, Decimal | None]]], {"a": [(1, None), (2, Decimal(3))]}),
]
# fmt: on


@pytest.mark.parametrize(("hint", "value"), KEEPS, ids=label)
def test_values_come_back_as_they_were(hint: Any, value: object) -> None:
    assert alike(through(hint, value), value)


def test_values_come_back_with_their_types() -> None:
    assert type(through(float, 3)) is float
    assert through(Sequence[int], (1, 2)) == [1, 2]
    assert through(Iterable[int], frozenset({1})) == [1]
    assert through(AbstractSet[int], frozenset({1})) == {1}
    assert type(through(str, Mode.FAST)) is str
    assert type(through(int, Level.LOW)) is int
    assert through(datetime, MOMENT.replace(tzinfo=PARIS)).utcoffset() == timedelta(hours=1)
    assert math.isnan(through(Point, Point(1, math.nan)).y)
    mixed = CallCodec("a.task", two)
    assert mixed.decode_call(mixed.encode_call((Mode.FAST, math.nan), {}))[0][0] == "fast"


def two(x: str, y: float) -> None: ...


# fmt: off
PLAIN = [
    (datetime, MOMENT, '["2026-02-28T23:59:59.999999"]'), (bytes, b"a", '["YQ=="]'), (set[int], {1}, "[[1]]"),
    (Point, Point(1), '[{"x":1,"y":0.0}]'), (Colour, Colour.RED, '["red"]'), (Decimal, Decimal("1.10"), '["1.10"]'),
    (dict[int, int], {1: 2}, '[{"1":2}]'), (Any, {"a": [1, None]}, '[{"a":[1,null]}]'), (str, "\\\"$t\\\"", None),
    (float, math.inf, '[{"$t":"float","v":"inf"}]'), (Any, {"$t": 1}, '[{"$t":"dict","v":[["$t",1]]}]'),
    (Any, date.max, '[{"$t":"date","v":"9999-12-31"}]'),
    (Loose, Loose(1, Point(1)), '[{"$t":"object","of":"Loose","v":{"what":1,"shape":'
                                '{"$t":"object","of":"Point","v":{"x":1,"y":0.0}}}}]'),
]
# fmt: on


@pytest.mark.parametrize(("hint", "value", "text"), PLAIN, ids=label)
def test_the_text_is_the_documented_one(hint: Any, value: object, text: str | None) -> None:
    written = one(hint).encode_call((value,), {})
    assert json.loads(written) is not None
    if text is not None:
        assert written == text


# fmt: off
REFUSED = [
    (str, 42, "parameter 'x' expected str, got int (42)"), (int, True, "expected int, got bool (True)"),
    (int, "1", "expected int, got str ('1')"), (int, 1.0, "expected int, got float (1.0)"), (float, "1",
    "expected float"),
    (float, True, "expected float, got bool"), (float, 2**53 + 1, "no float equals"), (float, 10**400, "no float"),
    (str, None, "expected str, got None"), (str, b"a", "expected str, got bytes"), (bytes, "a", "expected bytes"),
    (bytes, bytearray(b"a"), "expected bytes"), (datetime, "2020-01-01T00:00:00", "expected datetime, got str"),
    (date, MOMENT, "expected date, got datetime"), (datetime, date.max, "expected datetime, got date"),
    (time, time(1, tzinfo=PARIS), "fixed offset"), (Any, time(1, tzinfo=PARIS), "needs a date"),
    (UUID, str(UUID(int=1)), "expected UUID, got str"), (Decimal, 1, "expected Decimal, got int"),
    (Colour, "red", "expected Colour, got str ('red')"), (Level, 1, "expected Level, got int"),
    (Literal["a", 1], "b", "expected Literal['a', 1], got str ('b')"), (Literal[1], True, "expected Literal[1]"),
    (int | None, "a", "expected int | None, got str"), (MAYBE, "a", "got str ('a')"),
    (list[int], (1,), "expected list[int], got tuple"), (list[int], [1, "a"], "at [1] expected int, got str ('a')"),
    (Sequence[str], "ab", "expected Sequence[str], got str ('ab')"), (Sequence[int], {1},
    "expected Sequence[int], got set"),
    (Iterable[int], iter([1]), "expected Iterable[int]"), (set[int], [1], "expected set[int], got list"),
    (tuple[int, str], (1,), "expected tuple[int, str]"), (tuple[int, str], (1, 2), "at [1] expected str"),
    (tuple[int, ...], [1], "expected tuple[int, ...]"), (frozenset[int], {1}, "expected frozenset[int]"),
    (dict[str, int], {"a": "b"}, "at ['a'] expected int"), (dict[str, int], {1: 1}, "at [1] expected str, got int (1)"),
    (dict[str, int], [("a", 1)], "expected dict[str, int], got list"), (dict, OrderedDict(), "got OrderedDict"),
    (Point, {"x": 1, "y": 2.0}, "expected Point, got dict"), (Point, Point("a"), "at .x expected int, got str ('a')"),
    (list[Point], [Point(1), Point(1, "z")], "at [1].y expected float"),
    (Point | None, Point("a"), "at .x expected int"), (Point | Circle, Pair(1, "a"),
    "expected Point | Circle, got Pair"),
    (Record, Record(UUID(int=1), {1}), "at .tags[0] expected str"), (Pair, (1, "a"), "expected Pair, got tuple"),
    (Movie, {}, "missing keys: title"), (Movie, {"title": "a", "b": 1}, "keys: 'b'"), (Movie, {"title": 1},
    "at ['title'] expected str"),
    (Positive, 0, "expected int >= 1"), (Annotated[str, msgspec.Meta(max_length=2)], "abc", "length <= 2"),
    (Annotated[datetime, msgspec.Meta(tz=True)], MOMENT, "timezone"), (Box[int], Box("a", []), "at .held expected int"),
    (Any, Colour.RED, "annotate the parameter"), (Any, [Point(1)], "at [0] holds Point"), (Any, Mode.FAST, "annotate"),
    (Any, Pair(1, "a"), "annotate"), (Any, object(), "cannot be stored"), (Any, {"a": [lambda: 1]},
    "at ['a'][0] holds function"),
    (Any, OrderedDict(), "pass dict(value)"), (dict[str, Any], {"a": Colour.RED}, "at ['a'] holds Colour"),
    (complex, 1j, "cannot be stored"), (Loose, Loose(object(), Point(1)), "at .what holds object"), (bytearray, b"",
    "expected bytearray"),
]
# fmt: on


@pytest.mark.parametrize(("hint", "wrap"), [(Any, False), (JobSpec, False), (Any, True), (list[JobSpec[int]], True)])
def test_a_spec_is_refused_as_an_argument_of_any_type(hint: Any, wrap: bool) -> None:
    spec = JobSpec[int](NewJob(id="a", task="t"))
    with pytest.raises(BadArgument, match="cannot be stored: pass plain data"):
        one(hint).encode_call(([spec] if wrap else spec,), {})


@pytest.mark.parametrize(("hint", "value", "problem"), REFUSED, ids=label)
def test_a_wrong_argument_raises_where_the_call_is_made(hint: Any, value: object, problem: str) -> None:
    with pytest.raises(BadArgument) as caught:
        one(hint).encode_call((value,), {})
    assert problem in str(caught.value)
    assert caught.value.parameter == "x"
    assert str(caught.value).startswith("a.task: parameter 'x' ")
    with pytest.raises(BadResult) as result:
        one(hint).encode_result(value)
    assert str(result.value).startswith("a.task: the result ")


def send(to: str, /, body: str, *rest: int, urgent: bool = False, at: datetime, **headers: bytes) -> int: ...


def few(a: int, b: int = 2, c: int = 3) -> None: ...


def test_a_message_as_the_documentation_shows_it() -> None:
    def mail(to: str) -> None: ...

    with pytest.raises(BadArgument, match=r"^mail.send: parameter 'to' expected str, got int \(42\)$"):
        CallCodec("mail.send", mail).encode_call((42,), {})


def test_all_kinds_of_parameters() -> None:
    task = CallCodec("mail.send", send)
    call = ("a", "b", 1, 2), {"at": MOMENT, "x": b"1", "to": b"2", "$t": b"3"}
    assert task.decode_call(task.encode_call(*call)) == call
    text = task.encode_call(("a",), {"body": "b", "at": MOMENT})
    assert json.loads(text) == {"args": ["a", "b"], "kwargs": {"at": MOMENT.isoformat()}}
    assert task.decode_call(text) == (("a", "b"), {"at": MOMENT})
    assert task.decode_call(task.encode_call(("a", "b", 1), {"at": MOMENT, "urgent": True}))[1]["urgent"] is True
    text = CallCodec("few", few).encode_call((), {"b": 5, "a": 1})
    assert text == "[1,5]"
    assert CallCodec("few", few).encode_call((1,), {"c": 1}) == '{"args":[1],"kwargs":{"c":1}}'
    assert CallCodec("few", few).decode_call('{"kwargs":{"c":1,"a":3}}') == ((3,), {"c": 1})
    assert CallCodec("none", lambda: None).encode_call((), {}) == "[]"
    assert CallCodec("none", lambda: None).decode_call(" [ ] ") == ((), {})


@pytest.mark.parametrize(
    ("args", "kwargs", "name", "problem"),
    [
        ((), {"at": MOMENT}, "to", "is missing: expected str"),
        (("a",), {"at": MOMENT}, "body", "is missing"),
        (("a", "b"), {}, "at", "is missing: expected datetime"),
        (("a", "b"), {"body": "c", "at": MOMENT}, "body", "given twice"),
        (("a", "b", "c"), {"at": MOMENT}, "rest", "expected int"),
        (("a", "b"), {"at": MOMENT, "h": 1}, "h", "expected bytes"),
        (("a", "b"), {"at": "now"}, "at", "expected datetime, got str ('now')"),
    ],
)
def test_a_call_that_does_not_bind(args: Any, kwargs: Any, name: str, problem: str) -> None:
    with pytest.raises(BadArgument) as caught:
        CallCodec("mail.send", send).encode_call(args, kwargs)
    assert caught.value.parameter == name
    assert problem in str(caught.value)


def test_too_many_or_unknown_arguments_are_refused() -> None:
    with pytest.raises(BadArgument, match="at most 3 positional arguments, got 4"):
        CallCodec("few", few).encode_call((1, 2, 3, 4), {})
    with pytest.raises(BadArgument, match=r"'d' is not one of its parameters \(a, b, c\)"):
        CallCodec("few", few).encode_call((1,), {"d": 4})
    with pytest.raises(BadArgument, match=r"an option of the job is given as \.options\(queue=\.\.\.\)"):
        CallCodec("few", few).encode_call((1,), {"queue": "mail"})


def test_a_mistyped_name_is_reported_instead_of_the_parameter_that_it_leaves_out() -> None:
    with pytest.raises(BadArgument, match=r"'d' is not one of its parameters \(a, b, c\)"):
        CallCodec("few", few).encode_call((), {"d": 4})


def test_a_call_without_its_first_argument_names_its_source() -> None:
    task = CallCodec("n", lambda a, b=1: None)
    for args, kwargs, problem in (
        ((), {"c": 1}, r"'c' is not one of its parameters \(b"),
        ((1, 2), {}, "takes at most 1"),
    ):
        with pytest.raises(BadArgument, match=f"{problem}.*; 'a' gets the result of the job before"):
            task.encode_call(args, kwargs, first_later=True)


def test_the_first_argument_may_come_later() -> None:
    task = CallCodec("few", few)
    text = task.encode_call((), {"b": 5}, first_later=True)
    assert text == "[5]"
    assert task.decode_call(text, first=1) == ((1, 5), {})
    assert task.decode_call(task.encode_call((), {}, first_later=True), first=1) == ((1,), {})
    assert CallCodec("s", lambda *many: None).decode_call("[2]", first=1) == ((1, 2), {})
    with pytest.raises(BadArgument, match="'a' expected int, got str"):
        task.decode_call(text, first="x")
    with pytest.raises(BadArgument, match="'a' is given, but its value is the result"):
        task.encode_call((), {"a": 1}, first_later=True)
    with pytest.raises(BadArgument, match="'b' expected int"):
        task.encode_call(("x",), {}, first_later=True)
    with pytest.raises(BadArgument, match="at most 2"):
        task.encode_call((1, 2, 3), {}, first_later=True)
    with pytest.raises(BadArgument, match="pass_result=False"):
        CallCodec("n", lambda: None).encode_call((), {}, first_later=True)
    assert one(Point).decode_call("[]", first={"x": 1}) == ((Point(1),), {})
    assert one(datetime).decode_call("[]", first=MOMENT.isoformat()) == ((MOMENT,), {})
    assert one(int).decode_call("[]", first=None if False else 4) == ((4,), {})
    with pytest.raises(BadArgument):
        one(int).decode_call("[]", first=None)


def ahead(x: Later, y: list[Later] | None = None) -> Later | None: ...


def absent(x: Nothing) -> int: ...


def absent_result(x: int) -> Nothing: ...


EARLY = CallCodec("ahead", ahead)


@dataclasses.dataclass
class Later:
    n: int


def test_forward_references_are_resolved() -> None:
    text = EARLY.encode_call((Later(1), [Later(2)]), {})
    assert text == '[{"n":1},[{"n":2}]]'
    assert EARLY.decode_call(text) == ((Later(1), [Later(2)]), {})
    assert EARLY.decode_result(EARLY.encode_result(Later(3))) == Later(3)
    with pytest.raises(BadTask, match="Nothing"):
        CallCodec("absent", absent).encode_call((1,), {})
    task = CallCodec("absent", absent_result)
    assert task.decode_result(task.encode_result((1, task.encode_call((1,), {})))) == (1, "[1]")


class Caller:
    def method(self, x: int) -> str: ...
    def __call__(self, x: int) -> str: ...


@pytest.mark.parametrize(
    "function",
    [
        Caller().method,
        Caller(),
        functools.partial(few, 1),
        functools.wraps(one)(lambda *a: None),
    ],
)
def test_each_kind_of_callable_has_a_codec(function: Any) -> None:
    task = CallCodec("c", function)
    assert task.decode_call(task.encode_call((1,), {})) == ((1,), {})


def test_a_function_that_cannot_be_read() -> None:
    def wrong(x: "1 +") -> None: ...  # noqa: F722

    with pytest.raises(BadTask):
        CallCodec("w", wrong)


def test_a_result_is_checked_against_its_annotation() -> None:
    task = CallCodec("s", few)
    assert task.decode_result(task.encode_result(None)) is None
    with pytest.raises(BadResult, match=r"^s: the result expected None, got int \(1\)$"):
        task.encode_result(1)
    with pytest.raises(BadResult, match="expected int, got str"):
        one(int).encode_result("x")
    with pytest.raises(BadResult, match="expected int, got str"):
        one(int).decode_result('"x"')
    with pytest.raises(BadResult):
        one(list[date | datetime]).decode_result('{"$t":"tuple","v":"x"}')
    free = CallCodec("f", lambda x: x)
    assert same(free.decode_result(free.encode_result({"a": (1, MOMENT)})), {"a": (1, MOMENT)})
    assert one(Point).decode_result('{"x":1}') == Point(1)
    assert decode_any(one(Point | Circle).encode_result(Point(1))) == {"x": 1, "y": 0.0}
    assert decode_any(one(datetime).encode_result(MOMENT)) == MOMENT.isoformat()
    assert decode_any(one(Mixed).encode_result(Mixed.PAIR)) == "PAIR"


def test_exceptions_are_encoded_as_data() -> None:
    back = through(list[int | Exception], [1, ValueError("no")])
    assert back == [1, RemoteError("ValueError", "no")]
    assert str(back[1]) == "no"
    assert through(list[int | Exception], back) == back
    assert same(through(Any, {"e": KeyError("k")}), {"e": KeyError("k")})
    assert through(ValueError, ValueError("x")) == RemoteError("ValueError", "x")

    assert back[1].stack == "", "it was never raised"

    class Broken(Exception):
        def __str__(self) -> str:
            raise RuntimeError

    assert decode_any(encode_any(Broken())).message == "(its message cannot be read)"


def raised(error: Exception) -> Exception:
    try:
        raise error
    except Exception as found:
        return found


@shows("an exception that travels as data keeps the text of its traceback")
def test_the_traceback_of_an_exception_is_encoded_as_text() -> None:
    """The stack of an exception that was raised, cut to a limit; also if it is sent on, or if its text cannot be
    made."""
    [back] = through(list[Exception], [raised(ValueError("no"))])
    assert back == RemoteError("ValueError", "no")
    assert back.stack.startswith("Traceback (most recent call last):")
    assert "in raised\n    raise error" in back.stack
    assert back.stack.endswith("ValueError: no")
    [on] = through(list[Exception], [back])
    assert on.stack == copy.copy(back).stack == pickle.loads(pickle.dumps(back)).stack == back.stack
    [long] = through(list[Exception], [raised(ValueError("x" * 100_000))])
    assert len(long.stack) < 5_000

    class Broken(Exception):
        def __str__(self) -> str:
            raise RuntimeError

    assert "in raised" in through(list[Exception], [raised(Broken())])[0].stack


def test_cycles_and_deep_values_are_refused() -> None:
    cycle: list[Any] = []
    cycle += [cycle, cycle]
    node = Node("a")
    node.below.append(node)
    deep: Any = 1
    for _ in range(100):
        deep = [deep]
    assert through(Any, deep) == deep
    assert through(list[Any], deep) == deep
    tags: Any = (1,)
    for _ in range(99):
        tags = (tags,)
    assert through(Any, tags) == tags
    for hint, value in ((Any, [deep]), (Any, (tags,))):
        with pytest.raises(BadArgument, match="is nested more than 100 deep"):
            one(hint).encode_call((value,), {})
    for hint, value, steps in (
        (Any, cycle, "[0]"),
        (list, cycle, "[0]"),
        (Node, node, ".below[0]"),
        (Any, {"a": cycle}, "[0]"),
    ):
        with pytest.raises(BadArgument) as caught:
            one(hint).encode_call((value,), {})
        assert caught.value.problem == f"holds a value that contains itself: its {steps} is that value again"
    with pytest.raises(Unstorable, match="contains itself"):
        encode_any(cycle)
    for text in ('{"$t":"set","v":' * 3000, '["$t",' + "[" * 400 + "]" * 401, "[" * 100_000 + "]" * 100_000):
        with pytest.raises(BadArgument):
            one(Any).decode_call(text)
        with pytest.raises(Unstorable):
            decode_any(text)


# fmt: off
GARBAGE = [
    "", " ", "null", "5", "{", "[", "[1", "nope", '"x"', "[1] 2", '{"args":1}', '{"args":[],"kwargs":[]}', '{"a":1}',
    "[1,2,3]",
    '{"args":[1],"kwargs":{"x":1}}', '{"args":[1],"kwargs":{"y":1}}', '{"args":[{"$t":"x"}]}', '[{"$t":"tuple"}]',
    '[{"$t":[],"v":[]}]', '[{"$t":"set","v":[[1]]}]', '[{"$t":"dict","v":[[1]]}]', '[{"$t":"dict","v":[[[1],2]]}]',
    '[{"$t":"bytes","v":"?"}]', '[{"$t":"datetime","v":"x"}]', '[{"$t":"decimal","v":"x"}]', '[{"$t":"uuid","v":"x"}]',
    '[{"$t":"int","v":"x"}]', '[{"$t":"float","v":"1"}]', '[{"$t":"str","v":[99999999999]}]',
    '[{"$t":"str","v":["x"]}]',
    '[{"$t":"error","v":{}}]', '[{"$t":"timedelta","v":"x"}]', '[{"$t":"time","v":5}]',
    '[{"$t":"enum","of":"Colour","v":"x"}]',
    '[{"$t":"object","of":"Point","v":{"q":1}}]', '[{"$t":"object","of":"Point","v":3}]',
    '[{"$t":"object","of":[],"v":{}}]',
    '{"$t":"tuple","v":[]}', '{"args":{"$t":"tuple","v":[1]}}', '{"args":[1],"kwargs":{"$t":1}}', "\ud800",
    '["\\ud800"]', "\x00",
    "[1e999]", '{"args":[1],"kwargs":null}', '{"args":[{"$t":"frozenset","v":[]}],"kwargs":{"\\u0000":1}}',
    "[" + "9" * 5000 + "]",
]
# fmt: on


@pytest.mark.parametrize("text", GARBAGE, ids=lambda text: ascii(text)[:30])
@pytest.mark.parametrize("hint", [int, Point, Colour, Colour | Point, Decimal | date, list[float]], ids=str)
def test_garbage_is_never_anything_but_a_bad_argument(text: str, hint: Any) -> None:
    with pytest.raises(BadArgument):
        one(hint).decode_call(text)
    if hint != list[float]:  # some of these texts are a list of floats
        with pytest.raises(BadResult):
            one(hint).decode_result(text if text != "5" else "null")


def test_foreign_texts_that_fit() -> None:
    assert one(Point).decode_call('[{"x":1}]') == ((Point(1),), {})
    assert one(Point).decode_call('{"args":[],"kwargs":{"x":{"x":1,"later":2}}}') == ((Point(1),), {})
    assert one(datetime).decode_call('[{"$t":"datetime","v":"2026-02-28T23:59:59.999999"}]') == ((MOMENT,), {})
    assert one(list[datetime]).decode_call(f'[["{MOMENT.isoformat()}",{{"$t":"datetime","v":"2026-02-28"}}]]')[0][
        0
    ] == [MOMENT, datetime.fromisoformat("2026-02-28")]
    assert one(dict[int, int]).decode_call('[{"1":2}, "$t"]'.replace(', "$t"', "")) == (({1: 2},), {})
    assert one(set[int]).decode_call('[{"$t":"set","v":[1]}]') == (({1},), {})
    assert one(Any).decode_call('[{"\\u0024t":"set","v":[1]}]') == (({"$t": "set", "v": [1]},), {})
    with pytest.raises(BadArgument, match=r"^a.task: parameter 'x' at .x expected int, got str$"):
        one(Point).decode_call('[{"x":"a"}]')
    with pytest.raises(BadArgument, match=r"parameter 'x' at \[1\] expected int, got str"):
        one(list[int]).decode_call('[[1,"a"]]')
    with pytest.raises(BadArgument, match=r"parameter 'at' (expected datetime|invalid RFC)"):
        CallCodec("mail.send", send).decode_call('{"args":["a","b"],"kwargs":{"at":"now"}}')


def test_foreign_texts_are_checked_against_annotations_without_a_decoder() -> None:
    """`Decimal | int` is one. Plain JSON is read in one pass, and each argument is checked all the same."""

    def price(net: Decimal | int, gross: Decimal | int = 0) -> None: ...

    task = CallCodec("price", price)
    assert task.decode_call("[7]") == ((7,), {})
    assert task.decode_call("[7,8]") == ((7, 8), {})
    assert one(Decimal | int).decode_call("[7]") == ((7,), {})
    for call, text in ((one(Decimal | int), '["x"]'), (task, '["x"]'), (task, '[1,"x"]'), (task, "[1,[2]]")):
        with pytest.raises(BadArgument, match=r"expected Decimal \| int, got (str|list)"):
            call.decode_call(text)


def test_no_object_is_made_without_an_annotation() -> None:
    for text in ('[{"$t":"object","of":"Point","v":{"x":1}}]', '[{"$t":"object","of":"os.system","v":{"x":1}}]'):
        assert one(Any).decode_call(text) == (({"x": 1},), {})
        assert type(one(Any).decode_call(text)[0][0]) is dict


def test_calls_to_tasks_that_are_not_installed() -> None:
    assert encode_foreign_call((), {}) == "[]"
    assert encode_foreign_call((1, "a"), {}) == '[1,"a"]'
    call = ("a", "b", 1), {"at": MOMENT, "x": b"y", "$t": b"z"}
    assert CallCodec("mail.send", send).decode_call(encode_foreign_call(*call)) == call
    assert CallCodec("m", send).decode_call(
        encode_foreign_call((), {"at": MOMENT.isoformat(), "body": "b"} | {}).replace('"args":[]', '"args":["a"]')
    ) == (("a", "b"), {"at": MOMENT})
    assert one(Point).decode_call(encode_foreign_call(({"x": 1, "y": math.inf},), {})) == ((Point(1, math.inf),), {})
    with pytest.raises(BadArgument, match="far: holds Point"):
        encode_foreign_call((Point(1),), {}, "far")
    with pytest.raises(BadArgument):
        encode_foreign_call((1,), {"\ud800": 1})


def test_the_same_name_twice() -> None:
    first, second = Point, dataclasses.make_dataclass("Point", [("z", int)])
    assert through(tuple[first | dict[str, int], second | list[int]], (Point(1), second(2))) == (Point(1), second(2))


@pytest.mark.skipif(pydantic is None, reason="pydantic is not installed")
def test_pydantic_models_are_encoded_and_decoded() -> None:
    class User(pydantic.BaseModel):
        name: str = pydantic.Field(alias="userName")
        born: date | None = None
        key: bytes = b""
        score: float = 0.0
        colour: Colour = Colour.RED

    @dataclasses.dataclass
    class Holder:
        user: Any

    Holder.__annotations__["user"] = User
    user = User(userName="a", born=date.max)
    task = one(User)
    assert json.loads(task.encode_call((user,), {}))[0]["userName"] == "a"
    for value in (
        user,
        User(userName="\u20ac", key=b"\xff\x00"),
        User(userName="b", colour=Colour.BLUE, score=math.inf),
    ):
        assert through(User, value) == value
        assert through(list[User], [value]) == [value]
        assert through(User | Point, value) == value
        assert through(Holder, Holder(value)) == Holder(value)
        assert type(through(User | None, value)) is User
    assert math.isnan(task.decode_call(task.encode_call((User(userName="a", score=math.nan),), {}))[0][0].score)
    with pytest.raises(BadArgument, match="expected User, got dict"):
        task.encode_call(({"userName": "a"},), {})
    assert task.decode_call('[{"userName":"x"}]')[0][0] == User(userName="x")
    for text in ('[{"name":1}]', '[{"userName":[]}]', "[3]", '[{"$t":"object","of":"User","v":{}}]'):
        with pytest.raises(BadArgument):
            task.decode_call(text)


@pytest.mark.skipif(sys.version_info < (3, 12), reason="the statement is newer")
def test_type_aliases_are_resolved() -> None:
    made: dict[str, Any] = {}
    exec("type Tree = int | list[Tree]\ntype Label = str", made)
    text = made["Label"]
    assert through(text, "a") == "a"
    assert through(list[text | None], ["a", None]) == ["a", None]
    with pytest.raises(BadArgument, match="expected str"):
        one(text).encode_call((1,), {})
    assert through(made["Tree"], [1, [2]]) == [1, [2]]
    with pytest.raises(BadArgument, match="expected"):
        one(made["Tree"]).encode_call((["a"],), {})


def test_limits_msgspec_cannot_apply_are_left_to_the_task() -> None:
    assert through(Annotated[date | datetime, msgspec.Meta(gt=3)], MOMENT) == MOMENT


# --- properties -------------------------------------------------------------------------------------------------------

fixed = st.integers(-1439 * 60, 1439 * 60).map(lambda s: timezone(timedelta(seconds=s)))
leaves = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(),
    st.text(st.characters(), max_size=5),
    st.binary(max_size=5),
    st.datetimes(),
    st.datetimes(timezones=fixed),
    st.dates(),
    st.times(),
    st.times(timezones=fixed),
    st.timedeltas(),
    st.decimals(),
    st.uuids(),
    st.sampled_from(["$t", "v", '"$t"', "tuple", "\ud800"]),
)
keys = st.one_of(
    st.integers(),
    st.text(max_size=3),
    st.booleans(),
    st.none(),
    st.dates(),
    st.tuples(st.integers()),
    st.just("$t"),
    st.binary(max_size=2),
    st.frozensets(st.integers(), max_size=2),
)
anything = st.recursive(
    leaves,
    lambda inner: st.one_of(
        st.lists(inner, max_size=4),
        st.tuples(inner, inner),
        st.dictionaries(st.text(max_size=3), inner, max_size=4),
        st.dictionaries(keys, inner, max_size=3),
        st.sets(keys, max_size=3),
        st.frozensets(keys, max_size=3),
        st.fixed_dictionaries({"$t": inner, "v": inner}),
    ),
    max_leaves=12,
)


@pytest.mark.slow
@shows("any value without a type hint comes back as it was, also one that looks like a tag")
@given(anything)
@settings(max_examples=400, deadline=None)
def test_any_untyped_value_comes_back(value: object) -> None:
    assert same(decode_any(encode_any(value)), value)
    free = CallCodec("f", lambda *args, **kwargs: None)
    call = (value, 1), {"k": value, "$t": value}
    assert same(free.decode_call(free.encode_call(*call)), call)
    assert same(free.decode_call(encode_foreign_call(*call)), call)
    assert same(free.decode_result(free.encode_result(value)), value)


points = st.builds(Point, st.integers(), st.floats())
# fmt: off
BY_TYPE: list[tuple[Any, st.SearchStrategy[Any]]] = [
    (str, st.text(st.characters())), (int, st.integers()), (float, st.floats()), (bool, st.booleans()),
    (bytes, st.binary()),
    (datetime, st.datetimes()), (datetime, st.datetimes(timezones=fixed)), (date, st.dates()), (time, st.times()),
    (time, st.times(timezones=fixed)), (timedelta, st.timedeltas()), (Decimal, st.decimals()), (UUID, st.uuids()),
    (Colour, st.sampled_from(Colour)), (Mixed, st.sampled_from(Mixed)), (int | None, st.none() | st.integers()),
    (int | float | str, st.integers() | st.floats() | st.text()), (Decimal | float, st.decimals() | st.floats()),
    (date | datetime | time, st.dates() | st.datetimes() | st.times()),
    (bytes | str | None, st.binary() | st.text() | st.none()),
    (timedelta | float, st.timedeltas() | st.floats()), (datetime | int, st.datetimes() | st.integers()),
    (list[int | str], st.lists(st.integers() | st.text())), (tuple[int, str], st.tuples(st.integers(), st.text())),
    (set[int], st.sets(st.integers())), (frozenset[date | None], st.frozensets(st.dates() | st.none())),
    (dict[int, float], st.dictionaries(st.integers(), st.floats())),
    (dict[str, Any], st.dictionaries(st.text(), anything)),
    (dict[date | int, str], st.dictionaries(st.dates() | st.integers(), st.text())),
    (dict[datetime, int], st.dictionaries(st.datetimes(), st.integers())),
    (dict[UUID, int], st.dictionaries(st.uuids(), st.integers())),
    (Point, points), (Point | Circle | None, points | st.none() | st.builds(Circle, points, st.floats(),
    st.datetimes())),
    (list[Point], st.lists(points)), (Pair, st.builds(Pair, st.integers(), st.text())), (Any, anything),
    (Record, st.builds(Record, st.uuids(), st.sets(st.text()))), (Loose, st.builds(Loose, anything, points)),
    (Node, st.recursive(st.builds(Node, st.text(), st.just([])), lambda n: st.builds(Node, st.text(), st.lists(n,
    max_size=3)))),
]
# fmt: on


@shows("a value of each supported type comes back as it was")
@pytest.mark.parametrize(("hint", "values"), BY_TYPE, ids=lambda part: "" if hasattr(part, "map") else label(part))
def test_typed_values_come_back(hint: Any, values: st.SearchStrategy[Any]) -> None:
    task = one(hint)

    @given(values)
    @settings(max_examples=60, deadline=None)
    def check(value: Any) -> None:
        text = task.encode_call((value,), {})
        assert alike(task.decode_call(text)[0][0], value)
        assert alike(task.decode_result(task.encode_result(value)), value)

    check()


pieces = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=4)
    | st.sampled_from(
        ["tuple", "dict", "object", "enum", "Point", "Colour", "datetime", "2020-01-01", "int", "error", "str"]
    ),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["$t", "v", "of", "args", "kwargs", "x", "y", "type", "message"]), inner, max_size=4
        )
    ),
    max_leaves=10,
)
TASKS = [CallCodec("mail.send", send)]
TASKS += map(one, (int, Any, Point, Point | Circle, Colour | date, dict[int, Point], Loose, Movie))


@pytest.mark.slow
@given(pieces | pieces.map(lambda p: [p]) | pieces.map(lambda p: {"args": [p], "kwargs": {"x": p}}), st.data())
@example({"$t": "dict", "v": [[{"$t": "dict", "v": []}, 1]]}, None)
@settings(max_examples=400, deadline=None)
def test_foreign_trees_raise_nothing_else(tree: object, data: Any) -> None:
    text = json.dumps(tree)
    if data is not None and data.draw(st.booleans()):
        cut = data.draw(st.integers(0, len(text)))
        text = text[:cut] + data.draw(st.text(st.characters(), max_size=2)) + text[cut + 1 :]
    for task in TASKS:
        with suppress(BadArgument):
            task.decode_call(text)
        with suppress(BadResult):
            task.decode_result(text)


@pytest.mark.slow
def test_big_payloads_are_decoded_unchanged() -> None:
    rows = [{"id": i, "name": f"name {i}", "score": i / 3, "tags": ["a", None]} for i in range(50_000)]
    free = one(Any)
    assert free.decode_call(free.encode_call((rows,), {})) == ((rows,), {})
    points = [Point(i, i / 2) for i in range(20_000)]
    assert one(list[Point]).decode_call(one(list[Point]).encode_call((points,), {})) == ((points,), {})
    numbers = list(range(1_200_000))
    assert MARK not in free.encode_call((numbers,), {})
    assert free.decode_call(free.encode_call(([numbers, (1,)],), {}))[0][0][1] == (1,)


def test_secrets_are_stored_by_name_for_each_way_to_pass_them() -> None:
    def charge(order: int, db_password: str = "", times: int = 1) -> None: ...

    def tagged(token: str, *more: int) -> None: ...

    codec = CallCodec("charge", charge)
    text = '{"args":[1],"kwargs":{"db_password":"x","times":2}}'
    for args, kwargs in (
        ((1, "x", 2), {}),
        ((1, "x"), {"times": 2}),
        ((), {"times": 2, "db_password": "x", "order": 1}),
    ):
        written = codec.encode_call(args, kwargs)
        assert json.loads(written) == json.loads(text)
        assert codec.decode_call(written) == ((1, "x", 2), {})
    assert codec.encode_call((1,), {}) == "[1]"
    assert codec.decode_call('[1,"x",2]') == ((1, "x", 2), {}), "as other programs store it"
    assert CallCodec("tagged", tagged).encode_call(("t", 1), {}) == '["t",1]', "no name can carry what follows it"
