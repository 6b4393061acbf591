"""A codec of the user's own: what is tried at the declaration, what at each call, and wrapping the default one."""

from __future__ import annotations

import dataclasses
import enum
import json
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Annotated, Any, Literal, TypedDict
from uuid import UUID

import msgspec
import pytest

from treadle import App, DefaultCodec, Worker, current, flow
from treadle.errors import BadArgument, BadCodec, BadResult
from treadle.serialization.call_codec import CallCodec, Codec, decode_any, encode_any

MOMENT = datetime(2026, 3, 1, 12, 30, tzinfo=UTC)


class Hex:
    """The tagged form, spelled in hexadecimal."""

    def encode(self, value: object, /) -> str:
        return encode_any(value).encode().hex()

    def decode(self, text: str, /) -> object:
        return decode_any(bytes.fromhex(text).decode())


class Bare:
    """The JSON of the standard library."""

    def encode(self, value: object, /) -> str:
        return json.dumps(value)

    def decode(self, text: str, /) -> object:
        return json.loads(text)


class Point:
    """A class that only `Points` can store."""

    def __init__(self, x: int) -> None:
        self.x = x

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Point) and self.x == other.x

    def __hash__(self) -> int:
        return self.x


class Points:
    """One tagged class; the default codec has the rest."""

    def __init__(self, inner: Codec | None = None) -> None:
        self._inner = inner or DefaultCodec()

    def encode(self, value: object, /) -> str:
        return self._inner.encode(walk(value, lambda one: {"point": one.x} if isinstance(one, Point) else one))

    def decode(self, text: str, /) -> object:
        return walk(self._inner.decode(text), lambda one: Point(one["point"]) if is_tagged(one) else one)


def is_tagged(value: object) -> bool:
    return isinstance(value, dict) and value.keys() == {"point"}


def walk(value: Any, change: Any) -> Any:
    value = change(value)
    if isinstance(value, list | tuple):
        return type(value)(walk(one, change) for one in value)
    return {key: walk(one, change) for key, one in value.items()} if type(value) is dict else value


def refusal(function: Any, codec: Codec) -> str:
    with pytest.raises(BadCodec) as raised:
        CallCodec("mail.send", function, codec)
    return str(raised.value)


# --- at the declaration


def test_a_codec_is_tried_with_what_the_annotations_allow() -> None:
    def plain(a: int, b: str, c: list[dict[str, float | None]], *more: bool, **rest: str) -> None: ...
    def moment(at: datetime) -> None: ...
    def price(value: int) -> dict[str, list[tuple[Decimal, int]]]: ...

    CallCodec("t", plain, Bare())
    said = refusal(moment, Bare())
    assert "cannot encode datetime.datetime(" in said
    assert "TypeError: Object of type datetime is not JSON serializable" in said
    assert said.endswith("which 'at' of mail.send allows")
    assert "Decimal('1.10')" in refusal(price, Bare())
    assert "the result of mail.send allows" in refusal(price, Bare())


def test_without_annotations_a_codec_is_tried_with_json_values() -> None:
    CallCodec("t", lambda a, b=1: a, Bare())
    App("memory://", codec=Bare())

    class NoLists(Bare):
        def decode(self, text: str, /) -> object:
            return walk(super().decode(text), lambda one: tuple(one) if isinstance(one, list) else one)

    class Doubles(Bare):
        def encode(self, value: object, /) -> str:
            return json.dumps(walk(value, lambda one: float(one) if type(one) is int else one))

    assert "does not restore" in refusal(lambda a: a, NoLists())
    assert "does not restore int (1) but returns float (1.0)" in refusal(lambda a: a, Doubles())
    for declare in (lambda codec: App("memory://", codec=codec), lambda codec: App("memory://").task(codec=codec)(id_)):
        with pytest.raises(BadCodec, match="does not restore int"):
            declare(Doubles())


async def id_(value):
    return value


def test_a_codec_may_leave_the_type_to_the_annotation() -> None:
    class Texts(Bare):
        def encode(self, value: object, /) -> str:
            return json.dumps(value, default=str)

    def send(at: datetime, of: UUID, pair: tuple[int, str], total: Decimal) -> None: ...

    task = CallCodec("t", send, Texts())
    call = (MOMENT, UUID(int=3), (1, "a"), Decimal("2.50")), {}
    assert task.decode_call(task.encode_call(*call)) == call
    assert "invalid base64" in refusal(_blob, Texts())


def _blob(data: bytes) -> None: ...


class Colour(enum.Enum):
    RED = "red"


class Row(TypedDict):
    id: int
    tags: list[str]


@pytest.mark.parametrize(
    ("hint", "lost"),
    [
        (float, lambda one: None if one == math.inf else one),
        (Decimal, lambda one: Decimal(str(one).rstrip("0")) if isinstance(one, Decimal) else one),
        (int, lambda one: int(float(one)) if type(one) is int else one),
        (str, lambda one: one.encode(errors="replace").decode() if isinstance(one, str) else one),
        (bool, lambda one: int(one) if type(one) is bool else one),
        (set[int], lambda one: set() if isinstance(one, set) else one),
        (frozenset[str] | None, lambda one: None if isinstance(one, frozenset) else one),
        (dict[int, str], lambda one: one | {7: ""} if isinstance(one, dict) and 1 in one else one),
        (tuple[int, ...], lambda one: one[:0] if isinstance(one, tuple) else one),
        (Annotated[int, msgspec.Meta(ge=1)], lambda one: one + 1 if type(one) is int else one),
        (Literal["a", 7], lambda one: 8 if one == 7 else one),
        (Sequence[timedelta], lambda one: abs(one) if isinstance(one, timedelta) else one),
        (list[Row], lambda one: {**one, "id": 0} if isinstance(one, dict) and "id" in one else one),
        (Colour, lambda one: "blue" if isinstance(one, Colour) else one),
        (Exception, lambda one: "gone" if isinstance(one, Exception) else one),
    ],
)  # fmt: skip
def test_a_codec_that_loses_what_an_annotation_allows_is_refused(hint: Any, lost: Any) -> None:
    class Whole:
        """Keeps every value as it is."""

        def encode(self, value: object, /) -> str:
            self.value = value
            return "text"

        def decode(self, text: str, /) -> object:
            return self.value

    class Losing(Whole):
        def encode(self, value: object, /) -> str:
            return super().encode(walk(value, lost))

    def takes(value: Any) -> None: ...
    def gives() -> Any: ...

    takes.__annotations__["value"] = gives.__annotations__["return"] = hint
    for function, owner in ((takes, "'value' of mail.send"), (gives, "the result of mail.send")):
        CallCodec("t", function, Whole())
        assert refusal(function, Losing()).endswith(f", which {owner} allows")


def test_a_codec_may_refuse_an_extreme_value_but_must_read_what_it_wrote() -> None:
    class Small(Bare):
        def encode(self, value: object, /) -> str:
            return json.dumps(walk(value, small), allow_nan=False)

    def small(one: object) -> object:
        if type(one) is int and one.bit_length() > 63:
            raise OverflowError("at most 64 bits")
        return one

    def send(count: int, share: float) -> int: ...

    task = CallCodec("t", send, Small())
    with pytest.raises(BadArgument, match=r"was refused by .*at most 64 bits"):
        task.encode_call((2**70, 1.0), {})
    with pytest.raises(BadArgument, match=r"was refused by .*not JSON compliant"):
        task.encode_call((1, math.nan), {})

    class Blind(Hex):
        def decode(self, text: str, /) -> object:
            raise LookupError("no key")

    assert "cannot decode what it encoded for 1 (LookupError: no key)" in refusal(send, Blind())

    class Numbers(Hex):
        def encode(self, value: object, /) -> str:
            return 5

    assert "must encode to str, got int (5)" in refusal(send, Numbers())


def test_annotations_that_are_known_later_are_tried_at_the_first_use() -> None:
    def send(at: Later) -> None: ...  # noqa: F821

    task = CallCodec("mail.send", send, Bare())
    send.__globals__["Later"] = datetime
    try:
        for _ in range(2):
            with pytest.raises(BadCodec, match=r"'at' of mail\.send"):
                task.encode_call((MOMENT,), {})
    finally:
        del send.__globals__["Later"]


# --- at the call


def test_a_call_compares_what_json_cannot_represent() -> None:
    task = CallCodec("mail.send", lambda a, *more, **rest: a, Bare())
    assert task.decode_call(task.encode_call(([1, {"a": None}],), {"b": "c"})) == (([1, {"a": None}],), {"b": "c"})
    for args, kwargs, parameter in (
        ((1, (2, 3)), {}, "more"),
        ((1,), {"x": {1: 2}}, "rest"),
        ((math.nan, ()), {}, "more"),
    ):
        with pytest.raises(BadArgument, match=re.escape("is changed by <")) as raised:
            task.encode_call(args, kwargs)
        assert raised.value.parameter == parameter
    assert math.isnan(task.decode_call(task.encode_call((math.nan,), {}))[0][0])
    with pytest.raises(BadResult, match=r"is changed by .*: tuple \(\(1, 2\)\) becomes list \(\[1, 2\]\)"):
        task.encode_result((1, 2))
    with pytest.raises(BadArgument, match="was refused by"):
        task.encode_call(({1},), {})
    with pytest.raises(BadResult, match="cannot be stored"):
        task.encode_result({1})


def test_an_instance_without_equality_is_compared_by_its_class() -> None:
    class Mark:
        pass

    class Marks(Bare):
        def encode(self, value: object, /) -> str:
            return json.dumps(value, default=lambda one: {"mark": 1})

        def decode(self, text: str, /) -> object:
            return json.loads(text, object_hook=lambda one: Mark() if one == {"mark": 1} else one)

    task = CallCodec("t", lambda a: a, Marks())
    assert isinstance(task.decode_call(task.encode_call((Mark(),), {}))[0][0], Mark)
    with pytest.raises(BadArgument, match="is changed by"):
        task.encode_call((object(),), {})


def test_a_signature_with_a_codec() -> None:
    def send(to: str, subject: str, *tags: int, at: datetime | None = None) -> int: ...
    def few(a: int, b: int = 2) -> int: ...

    task = CallCodec("mail.send", send, codec=Hex())
    call = ("a", "b", 1), {"at": MOMENT}
    text = task.encode_call(*call)
    assert bytes.fromhex(text)
    assert task.decode_call(text) == call
    assert task.decode_result(task.encode_result(5)) == 5
    with pytest.raises(BadArgument, match="'to' expected str"):
        task.encode_call((1, "b"), {"at": MOMENT})
    with pytest.raises(BadResult, match="expected int"):
        task.encode_result("5")
    for wrong in ("zz", Hex().encode([1]), Hex().encode({"args": 1, "kwargs": {}}), Hex().encode(3)):
        with pytest.raises(BadArgument):
            task.decode_call(wrong)
    with pytest.raises(BadResult):
        task.decode_result("zz")
    few_hex = CallCodec("few", few, codec=Hex())
    assert few_hex.decode_call(few_hex.encode_call((), {"b": 3}, first_later=True), first=1) == ((1, 3), {})
    assert few_hex.decode_call(few_hex.encode_call((1,), {})) == ((1,), {})


# --- wrapping the default codec


@dataclass
class Order:
    id: int
    colour: Colour
    total: Decimal


@pytest.mark.parametrize("inner", [Bare(), DefaultCodec()])
def test_a_codec_hands_all_but_one_class_to_another_codec(inner: Codec) -> None:
    def move(to: Point, path: list[Point], *, labels: dict[str, Any] | None = None) -> Point: ...

    for function in (move, lambda to, path, labels=None: to):
        task = CallCodec("t", function, Points(inner))
        call = (Point(1), [Point(2)]), {"labels": {"a": [Point(3), {"b": 1.5}]}}
        args, kwargs = task.decode_call(task.encode_call(*call))
        assert (args, kwargs or {"labels": args[2]}) == call or args == (*call[0], call[1]["labels"])
        assert task.decode_result(task.encode_result(Point(4))) == Point(4)


def test_the_wrapped_default_codec_stores_the_annotated_classes() -> None:
    def pay(order: Order, to: Point, colours: set[Colour]) -> Order: ...

    task, order = CallCodec("t", pay, Points()), Order(1, Colour.RED, Decimal("1.10"))
    text = task.encode_call((order, Point(2), {Colour.RED}), {})
    assert task.decode_call(text) == ((order, Point(2), {Colour.RED}), {})
    assert task.decode_result(task.encode_result(order)) == order
    with pytest.raises(BadArgument, match=r"was refused by .*no annotation names Order"):
        CallCodec("t", lambda a: a, Points()).encode_call((order,), {})
    with pytest.raises(ValueError, match="no annotation names Order"):
        DefaultCodec().encode(order)
    fields = {"id": 1, "colour": "RED", "total": Decimal("1.10")}
    assert Points().decode(text) == {"args": [fields, Point(2), {"RED"}], "kwargs": {}}


def test_the_default_codec_reads_what_it_wrote() -> None:
    for value in (None, {1: "a", (2, 3): b"x"}, [math.inf, {"$t": 1}], MOMENT, "\ud800", frozenset({1})):
        assert DefaultCodec().decode(DefaultCodec().encode(value)) == value
    with pytest.raises(ValueError, match="expected JSON"):
        DefaultCodec().decode("{")


def looked_up(order: Order) -> Order:
    return order


async def test_values_of_a_wrapped_codec_pass_through_steps_and_workflows(storage: Any) -> None:
    app = App(storage=storage, codec=Points())

    @app.task
    async def move(to: Point, order: Order) -> Point:
        kept = await current().step("kept", looked_up, order)
        return Point(to.x + kept.id)

    @app.task
    async def both(to: Point, order: Order):
        return flow(move.job(to, order)).then(move.job(Point(40), dataclasses.replace(order, id=2)))

    order = Order(1, Colour.RED, Decimal("1.10"))
    async with app, Worker(app):
        assert await (await move.enqueue(Point(1), order)).result(timeout=30) == Point(2)
        job = await both.enqueue(Point(1), order)
        assert await job.workflow.result(timeout=30) == Point(42)


class Mood(enum.StrEnum):
    GOOD = "good"


class Level(enum.IntEnum):
    HIGH = 3


def test_the_wrapped_default_codec_writes_subclasses_as_the_annotated_base() -> None:
    def task(mood: str, levels: list[int], *, by_name: dict[str, float] | None = None) -> list[str]: ...

    codec = CallCodec("t", task, Points())
    args, kwargs = codec.decode_call(codec.encode_call((Mood.GOOD, [Level.HIGH]), {"by_name": {Mood.GOOD: Level.HIGH}}))
    assert (args, kwargs) == (("good", [3]), {"by_name": {"good": 3.0}})
    assert type(args[0]) is str
    assert type(args[1][0]) is int
    back = codec.decode_result(codec.encode_result([Mood.GOOD]))
    assert type(back[0]) is str  # type: ignore[index]
    with pytest.raises(ValueError, match="no annotation names Mood"):
        DefaultCodec().encode(Mood.GOOD)


def test_the_wrapped_default_codec_does_not_change_what_no_annotation_names() -> None:
    codec = CallCodec("t", lambda a: a, Points())
    with pytest.raises(BadArgument, match=r"is changed by .*: Mood .* becomes str"):
        codec.encode_call((Mood.GOOD,), {})
    with pytest.raises(BadResult, match=r"is changed by .*: list .*Level.HIGH.* becomes list"):
        codec.encode_result([Level.HIGH])
