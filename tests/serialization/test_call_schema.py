"""The JSON Schema of a task's arguments, from its annotations."""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Callable
from datetime import datetime
from typing import Annotated, Any, Literal, Optional

import msgspec
import pytest

from treadle.serialization.call_codec import CallCodec
from treadle.serialization.call_schema import call_schema


class Color(enum.Enum):
    RED = "red"
    BLUE = "blue"


@dataclasses.dataclass
class Address:
    street: str
    zip: int = 0


class Odd:
    """A class without a schema."""


def schema(function: Callable[..., Any]) -> dict[str, Any]:
    found = call_schema(CallCodec("t", function))
    assert found is not None
    msgspec.json.encode(found)  # it must be JSON
    return found


def plain(to: str, copies: int = 1, rate: float = 0.5, *, urgent: bool = False) -> None: ...


def test_parameters_with_names_types_and_defaults() -> None:
    assert schema(plain) == {
        "type": "object",
        "properties": {
            "to": {"type": "string"},
            "copies": {"type": "integer", "default": 1},
            "rate": {"type": "number", "default": 0.5},
            "urgent": {"type": "boolean", "default": False},
        },
        "required": ["to"],
        "additionalProperties": False,
    }


def rich(
    at: datetime,
    until: Optional[datetime] = None,  # noqa: UP045  # both spellings
    every: list[datetime] = [],  # noqa: B006
    kind: Literal["a", "b"] = "a",
    color: Color = Color.RED,
    home: Address | None = None,
    tags: Annotated[list[str], msgspec.Meta(max_length=3)] = [],  # noqa: B006
) -> None: ...


def test_times_choices_classes_and_bounds() -> None:
    found = schema(rich)
    of = found["properties"]
    moment = {"type": "string", "format": "date-time"}
    assert of["at"] == moment
    assert of["until"] == {"anyOf": [moment, {"type": "null"}], "default": None}
    assert of["every"]["items"] == moment
    assert of["kind"] == {"enum": ["a", "b"], "default": "a"}
    assert of["color"] == {"$ref": "#/$defs/Color", "default": "red"}
    assert of["home"]["anyOf"][0] == {"$ref": "#/$defs/Address"}
    assert of["tags"]["maxItems"] == 3
    assert found["$defs"]["Color"]["enum"] == ["blue", "red"]
    assert found["$defs"]["Address"]["required"] == ["street"]
    assert found["required"] == ["at"]


def test_arguments_without_names() -> None:
    def by_place(first: int, /, second: str = "", *more: float, **named: bool) -> None: ...

    found = schema(by_place)
    assert list(found["properties"]) == ["first", "second"]
    assert (found["x-positional"], found["x-args"]) == (["first"], {"type": "number"})
    assert found["additionalProperties"] == {"type": "boolean"}


def test_parameters_without_a_usable_annotation_accept_anything() -> None:
    def loose(odd: Odd, free, anything: Any = Odd()) -> None: ...  # type: ignore[no-untyped-def]  # noqa: B008

    found = schema(loose)
    assert found["properties"] == {"odd": {}, "free": {}, "anything": {}}
    assert found["required"] == ["odd", "free"]


def test_annotations_that_cannot_be_resolved_have_no_schema() -> None:
    def unknown(a: Nowhere) -> None: ...  # type: ignore[name-defined]  # noqa: F821

    assert call_schema(CallCodec("t", unknown)) is None


def test_a_pydantic_model_has_its_own_schema() -> None:
    pydantic = pytest.importorskip("pydantic")

    class Order(pydantic.BaseModel):  # type: ignore[misc, name-defined]
        id: int

    def take(order: Order) -> None: ...

    take.__annotations__["order"] = Order
    assert "id" in str(schema(take))
