"""Values whose classes run code when they are written or read: they arrive as they were, or the call is refused."""

from __future__ import annotations

import dataclasses
import enum
import threading
from datetime import UTC, datetime
from decimal import Decimal
from typing import Annotated, Any, Generic, Literal, NamedTuple, TypeVar

import msgspec
import pydantic
import pytest
from pydantic import AliasChoices, BaseModel, ConfigDict, Field, HttpUrl, PrivateAttr, RootModel, SecretStr

from tests.kit import work
from tests.serialization.test_call_codec import label, one
from treadle import App, JobFailed, current
from treadle.errors import BadArgument, BadOption, BadResult
from treadle.serialization.class_hooks import ALWAYS, NEVER, TAGGED, may_change
from treadle.serialization.comparison import difference, same
from treadle.serialization.tags import MARK

T = TypeVar("T")


class Status(enum.StrEnum):
    NEW = "new"


class Animal(BaseModel):
    name: str


class Dog(Animal):
    owner: str = ""


class Order(BaseModel):
    pet: Animal
    more: list[Animal] = []


class Ward(BaseModel):
    pet: Animal
    total: Decimal = Decimal(1)  # compared


class Hidden(BaseModel):
    shown: int
    kept: int = Field(default=0, exclude=True)


class Cut(BaseModel):
    text: str

    @pydantic.field_serializer("text")
    def cut(self, value: str) -> str:
        return value[:3]


class Whole(BaseModel):
    n: int

    @pydantic.model_serializer
    def write(self) -> str:
        return str(self.n)

    @pydantic.model_validator(mode="before")
    @classmethod
    def read(cls, value: Any) -> Any:
        return {"n": int(value)} if isinstance(value, str) else value


class Price(BaseModel):
    cents: int

    @pydantic.field_validator("cents", mode="before")
    @classmethod
    def times(cls, value: int) -> int:
        return value * 100


class OneWay(BaseModel):
    x: int = Field(validation_alias=AliasChoices("a", "b"), serialization_alias="c")


class BothWays(BaseModel):
    x: int = Field(alias="userId")


class Secret(BaseModel):
    word: SecretStr


class Link(BaseModel):
    url: HttpUrl
    score: float = 0.0
    raw: bytes = b""


class Area(BaseModel):
    side: int

    @pydantic.computed_field
    @property
    def area(self) -> int:
        return self.side**2


class Cached(BaseModel):
    n: int
    _cache: dict[str, int] = PrivateAttr(default_factory=dict)
    _lock: Any = PrivateAttr(default_factory=threading.Lock)


class Open(BaseModel):
    model_config = ConfigDict(extra="allow")
    n: int


class Numbers(RootModel[list[float]]):
    pass


class Held(BaseModel, Generic[T]):
    item: T


class Cat(BaseModel):
    kind: Literal["cat"] = "cat"
    lives: int


class Fish(BaseModel):
    kind: Literal["fish"] = "fish"
    lives: int


class Pet(BaseModel):
    who: Annotated[Cat | Fish, Field(discriminator="kind")]


class Sloppy(BaseModel):
    name: str = None  # type: ignore[assignment]
    seconds: float = 5
    status: str = Status.NEW
    total: Decimal = Decimal(0)


class Exact(BaseModel):
    n: int
    text: str | None = None
    seconds: float = 5.0
    status: Status = Status.NEW
    parts: dict[str, list[Animal]] = {}


class Few(BaseModel):
    n: int = Field(gt=0)


class Self(BaseModel):
    other: Self | None = None
    note: Any = None


@dataclasses.dataclass
class Once:
    price: int
    times: dataclasses.InitVar[int]

    def __post_init__(self, times: int) -> None:
        self.price *= times


@dataclasses.dataclass
class Bare:
    price: int
    times: dataclasses.InitVar[int]


@dataclasses.dataclass
class Grows:
    price: int

    def __post_init__(self) -> None:
        self.price *= 100


@dataclasses.dataclass
class Checks:
    price: int

    def __post_init__(self) -> None:
        if self.price < 0:
            raise ValueError("negative")


@dataclasses.dataclass(frozen=True, slots=True)
class Plain:
    n: int
    more: tuple[str, ...] = ()


@dataclasses.dataclass
class Kennel:
    pet: Animal
    price: Price | None = None


class Doubles(msgspec.Struct):
    n: int

    def __post_init__(self) -> None:
        self.n *= 2


class Record(msgspec.Struct):
    n: int


class Gap(msgspec.Struct):
    n: int | msgspec.UnsetType


class Pair(NamedTuple):
    left: int
    right: str


def invalid(kind: Any, **fields: Any) -> Any:
    return kind.model_construct(**fields)


def private() -> Cached:
    made = Cached(n=1)
    made._cache["a"] = 1
    return made


def circle() -> Self:
    made = Self()
    made.other = made
    return made


KEPT: list[tuple[Any, Any]] = [
    (Order, Order(pet=Animal(name="Rex"), more=[Animal(name="\u20ac")])),
    (Ward, Ward(pet=Animal(name="Rex"))),
    (Hidden, Hidden(shown=1)),
    (Cut, Cut(text="abc")),
    (Whole, Whole(n=7)),
    (list[Whole], [Whole(n=7)]),
    (Price, Price(cents=0)),
    (BothWays, BothWays(userId=1)),
    (Area, Area(side=2)),
    (Cached, Cached(n=1)),
    (Open, Open(n=1, more="x", deep={"a": [1]})),
    (Numbers, Numbers([1.5])),
    (Numbers, Numbers([float("inf")])),
    (Numbers, Numbers([float("nan")])),
    (Held[int], Held[int](item=1)),
    (Held[list[Status]], Held[list[Status]](item=[Status.NEW])),
    (Pet, Pet(who=Fish(lives=1))),
    (Pet | None, Pet(who=Cat(lives=9))),
    (Few, Few(n=1)),
    (Cat | Fish, Fish(lives=2)),
    (Exact, Exact(n=2**70, text="", parts={"a": [Animal(name="x")]})),
    (Link, Link(url="http://x/\u00e9?q=1")),
    (Link, Link(url="http://x/", score=float("nan"))),
    (Link, Link(url="http://x/", raw=b"\xff\x00")),
    (dict[str, Link], {"a": Link(url="http://x/", score=float("inf"))}),
    (Self, Self(other=Self(note=[1, None]))),
    (Self, Self(note=datetime(2026, 1, 1, tzinfo=UTC))),
    (Checks, Checks(1)),
    (Plain, Plain(1, ("a",))),
    (Kennel, Kennel(Animal(name="Rex"))),
    (Record, Record(1)),
    (Gap, Gap(1)),
    (Pair, Pair(1, "a")),
    (Grows, Grows(0)),
    (Doubles, Doubles(0)),
]
CHANGED: list[tuple[Any, Any, str]] = [
    (Order, Order(pet=Dog(name="Rex")), "at .pet expected Animal, got Dog"),
    (Order, Order(pet=Animal(name="a"), more=[Dog(name="b")]), "at .more[0] expected Animal, got Dog"),
    (
        Ward,
        Ward(pet=Dog(name="Rex", owner="Ada")),
        "at .pet Dog (Dog(name='Rex', owner='Ada')) would arrive as Animal (Animal(name='Rex'))",
    ),
    (Kennel, Kennel(Dog(name="Rex")), "at .pet expected Animal, got Dog"),
    (Kennel, Kennel(Animal(name="a"), Price(cents=3)), "at .price.cents int (300) would arrive as int (30000)"),
    (Hidden, Hidden(shown=1, kept=7), "at .kept int (7) would arrive as int (0)"),
    (Cut, Cut(text="abcd"), "at .text str ('abcd') would arrive as str ('abc')"),
    (Price, Price(cents=3), "at .cents int (300) would arrive as int (30000)"),
    (list[Price], [Price(cents=0), Price(cents=3)], "at [1].cents int (300) would arrive as int (30000)"),
    (Price | Cut, Price(cents=3), "at .cents int (300) would arrive as int (30000)"),
    (OneWay, OneWay(a=1), "could not be read again: at .a cannot be restored as OneWay: field required"),
    (Secret, Secret(word="x"), "at .word SecretStr (SecretStr('**********')) would arrive changed"),
    (Cached, private(), "at ._cache dict ({'a': 1}) would arrive as dict ({})"),
    (Open, Open(n=1, at=datetime(2026, 1, 1, tzinfo=UTC), status=Status.NEW), "at .status Status"),
    (Few, invalid(Few, n=0), "at .n cannot be restored as Few: input should be greater than 0"),
    (Exact, invalid(Exact, n="x"), "at .n expected int, got str ('x')"),
    (Exact, invalid(Exact), "at .n expected int"),
    (Ward, invalid(Ward, pet=None), "at .pet cannot be restored as Ward: input should be a valid"),
    (Sloppy, Sloppy(), "at .name cannot be restored as Sloppy: input should be a valid string"),
    (
        Sloppy,
        Sloppy(name="a", total=Decimal(2)).model_copy(update={"total": 2}),
        "at .total int (2) would arrive as Decimal",
    ),
    (Animal, Dog(name="Rex"), "expected Animal, got Dog"),
    (BaseModel, Dog(name="Rex"), "no annotation names Dog"),
    (Self, circle(), "holds a value that contains itself: its .other is that value again"),
    (Once, Once(1, 2), "missing 1 required positional argument: 'times'"),
    (Bare, Bare(1, 2), "missing 1 required positional argument"),
    (Grows, Grows(1), "at .price int (100) would arrive as int (10000)"),
    (Doubles, Doubles(1), "at .n int (2) would arrive as int (4)"),
    (Gap, Gap(msgspec.UNSET), "holds UnsetType"),
]


@pytest.mark.parametrize(("hint", "value"), KEPT, ids=label)
def test_a_value_that_its_class_restores_arrives_as_it_was(hint: Any, value: Any) -> None:
    task = one(hint)
    (back,), _ = task.decode_call(task.encode_call((value,), {}))
    assert difference(value, back) is None
    assert type(back) is type(value)
    assert repr(back) == repr(value)
    assert repr(task.decode_result(task.encode_result(value))) == repr(value)


@pytest.mark.parametrize(("hint", "value", "problem"), CHANGED, ids=label)
def test_a_value_that_its_class_would_change_is_refused_with_the_field(hint: Any, value: Any, problem: str) -> None:
    with pytest.raises(BadArgument) as caught:
        one(hint).encode_call((value,), {})
    assert problem in str(caught.value)
    assert caught.value.parameter == "x"
    with pytest.raises(BadResult) as result:
        one(hint).encode_result(value)
    assert problem in str(result.value)


def test_a_conversion_by_an_annotation_is_no_change() -> None:
    sent = Sloppy(name="a")
    (back,), _ = one(Sloppy).decode_call(one(Sloppy).encode_call((sent,), {}))
    assert (back.seconds, back.status) == (5.0, "new")
    assert type(back.status) is str


def test_classes_are_compared_only_where_they_may_change_a_value() -> None:
    for kind in (Plain, Record, Pair, Gap):
        assert may_change(kind) == NEVER, kind
    for kind in (Animal, Order, Area, BothWays, Exact, Numbers, Self, Held[int], Bare):
        assert may_change(kind) == TAGGED, kind
    for kind in (Ward, Hidden, Cut, Whole, Price, OneWay, Cached, Open, Few, Once, Grows, Checks, Doubles):
        assert may_change(kind) == ALWAYS, kind


def test_models_of_exact_fields_have_their_plain_form() -> None:
    assert one(BothWays).encode_call((BothWays(userId=1),), {}) == '[{"userId":1}]'
    assert one(Numbers).encode_call((Numbers([1.0]),), {}) == "[[1.0]]"
    assert MARK in one(Numbers).encode_call((Numbers([float("nan")]),), {})


def test_an_untyped_result_of_a_class_that_a_parameter_names_is_compared_too() -> None:
    def task(order: Price): ...

    codec = type(one(int))("t", task)
    assert codec.decode_result(codec.encode_result(Price(cents=0))) == Price(cents=0)
    with pytest.raises(BadResult, match=r"at \.cents int \(300\) would arrive as int \(30000\)"):
        codec.encode_result(Price(cents=3))


def test_arguments_by_name_are_compared_under_their_names() -> None:
    def task(n: int, *more: Price, price: Price, **rest: Price) -> None: ...

    codec, good, bad = type(one(int))("t", task), Price(cents=0), Price(cents=1)
    assert codec.decode_call(codec.encode_call((1, good), {"price": good, "z": good})) == (
        (1, good),
        {"price": good, "z": good},
    )
    for args, kwargs, name in (
        ((1, bad), {"price": good}, "more"),
        ((1,), {"price": bad}, "price"),
        ((1,), {"price": good, "z": bad}, "z"),
    ):
        with pytest.raises(BadArgument) as caught:
            codec.encode_call(args, kwargs)
        assert caught.value.parameter == name


def test_a_difference_is_found_at_every_level() -> None:
    for sent, read, path in (
        ([1, [2]], [1, [3]], "[1][0]"),
        ({"a": {1: True}}, {"a": {1: 1}}, "['a'][1]"),
        (Plain(1, ("a",)), Plain(1, ("b",)), ".more[0]"),
        ({1: 2}, {True: 2}, "[1]"),
        (Held[Any](item={1}), Held[Any](item={True}), ".item"),
    ):
        changed = difference(sent, read)
        assert changed is not None
        assert changed.path == path
    assert same({float("nan"), 1}, {float("nan"), 1})
    assert same({float("nan"): 1}, {float("nan"): 1})
    assert not same({1, 2}, {1})
    assert not same((1,), [1])
    assert not same(datetime(2026, 1, 1, fold=1), datetime(2026, 1, 1))  # noqa: DTZ001
    assert not same(lambda: 1, lambda: 1)


async def test_a_value_arrives_or_is_refused_on_every_storage(app: App) -> None:
    @app.task(name="t")
    async def task(x: Any) -> Any:
        return x

    @app.task(name="price")
    async def price(x: Price) -> Price:
        return Price.model_construct(cents=x.cents + 3)

    @app.task(name="link")
    async def link(x: Link, at: datetime) -> Link:
        return x

    async with work(app):
        value, at = Link(url="http://x/", score=float("nan"), raw=b"\xff"), datetime(2026, 10, 25, 2, 30, fold=1)  # noqa: DTZ001
        read = await (await link.enqueue(value, at)).result(timeout=60)
        assert difference(value, read) is None
        assert (await (await task.enqueue(at)).result(timeout=60)).fold == 1
        with pytest.raises(BadArgument, match=r"price: parameter 'x' at \.cents int \(300\) would arrive"):
            await price.enqueue(Price(cents=3))
        with pytest.raises(JobFailed, match=r"at \.cents int \(3\) would arrive as int \(300\)") as failed:
            await (await price.enqueue(Price(cents=0))).result(timeout=60)
        assert failed.value.reason == "result"


async def test_a_step_that_its_class_would_change_fails_its_job(app: App) -> None:
    async def paid() -> Price:
        return Price(cents=3)

    @app.task(name="t")
    async def task() -> int:
        return (await current().step("pay", paid)).cents

    async with work(app):
        with pytest.raises(JobFailed, match=r"at \.cents int \(300\) would arrive as int \(30000\)"):
            await (await task.enqueue()).result(timeout=60)


class File(BaseModel, strict=True):
    name: str
    data: bytes
    size: float
    status: Status = Status.NEW
    at: datetime | None = None


@pytest.mark.parametrize("fields", [{}, {"status": "new", "at": datetime(2026, 1, 2, tzinfo=UTC)}])
async def test_the_fields_of_a_model_sent_as_plain_data_arrive_as_they_were(app: App, fields: dict[str, Any]) -> None:
    """A stub, a signal and a message do not know the class that the receiver reads."""

    @app.task(name="take")
    async def take(file: File, more: list[File]) -> bool:
        signalled = await current().wait_for("file", returns=File)
        expected = {"name": "a", "data": b"\xff", "size": float("inf"), "at": None} | fields | {"status": Status.NEW}
        assert signalled.model_dump() == file.model_dump() == more[0].model_dump() == expected
        return True

    sent = {"name": "a", "data": b"\xff", "size": float("inf"), **fields}
    job = await app.stub("take").enqueue(sent, [sent])
    await app.jobs.signal(job, "file", sent)
    async with work(app):
        assert await job.result(timeout=10)


async def test_instants_that_are_too_far_away_are_refused(app: App) -> None:
    @app.task(name="t")
    async def task() -> None: ...

    for option in ("run_at", "deadline"):
        with pytest.raises(BadOption, match=f"'{option}': expected a datetime within the next 100 years"):
            await task.options(**{option: datetime(9999, 12, 31, tzinfo=UTC)}).enqueue()  # type: ignore[arg-type]
