"""The JSON Schema of a call's arguments, from the annotations of the task, for forms and other programs."""

from __future__ import annotations

import hashlib
import inspect
import json
from datetime import datetime, time
from types import UnionType
from typing import Annotated, Any, Final, Union, get_args, get_origin

import msgspec
from msgspec import Meta

from treadle.core.errors import BadTask
from treadle.core.injected import call_signature
from treadle.serialization import tags
from treadle.serialization.call_codec import CallCodec
from treadle.serialization.parameters import Param
from treadle.serialization.type_check import enc_hook

REF: Final = "#/$defs/{name}"
# msgspec gives a format only to moments with a zone; forms need one for all of them.
FORMATS: Final = {
    datetime: Annotated[datetime, Meta(extra_json_schema={"format": "date-time"})],
    time: Annotated[time, Meta(extra_json_schema={"format": "time"})],
}


def call_schema(codec: CallCodec) -> dict[str, Any] | None:
    """An object with one property for each parameter, in order; None if the annotations cannot be resolved.

    A parameter without a usable annotation accepts anything: its schema is {}. Besides the words of JSON Schema there
    are two of our own:

    x-positional  the parameters that can be given by position only
    x-args        the schema of further arguments by position (`*args`)
    """
    try:
        plan = codec._ready()
    except BadTask:
        return None
    kinds = {parameter.name: parameter for parameter in call_signature(codec._function).parameters.values()}
    params = {param.name: param for param in (*plan.positional, *plan.named.values())}
    others = [param for param in (plan.more, plan.rest) if param is not None]
    schemas, components = _schemas([*params.values(), *others])
    properties = {name: _with_default(schemas.pop(0), kinds.get(name)) for name in params}
    schema: dict[str, Any] = {
        "type": "object",
        "properties": properties,
        "required": [name for name, param in params.items() if param.required],
        "additionalProperties": False,
    }
    if by_place := [name for name in params if name not in plan.named]:
        schema["x-positional"] = by_place
    if plan.more is not None:
        schema["x-args"] = schemas.pop(0)
    if plan.rest is not None:
        schema["additionalProperties"] = schemas.pop(0)
    return {**schema, "$defs": components} if components else schema


def version_of(codec: CallCodec) -> str:
    """Eight characters that change when calls are encoded or read in another way: with the parameters, the types of
    their values, or the codec."""
    known = None if codec._codec is None else type(codec._codec).__qualname__
    text = json.dumps([known, call_schema(codec)], sort_keys=True, default=repr)
    return hashlib.blake2b(text.encode("utf-8", "replace"), digest_size=4).hexdigest()


def _schemas(params: list[Param]) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """The schemas of these parameters, and the classes that they name."""
    wires = [_with_format(param.shape.wire) for param in params]
    try:
        schemas, components = msgspec.json.schema_components(wires, schema_hook=_of_model, ref_template=REF)
        return list(schemas), components
    except Exception:  # msgspec, and the schema that a user's class provides, may raise anything
        return [_alone(wire) for wire in wires], {}


def _with_format(wire: Any) -> Any:
    """The type with formats for moments, also in X | None and list[X]."""
    if wire in (datetime, time):
        return FORMATS[wire]
    parts = tuple(map(_with_format, get_args(wire))) if get_origin(wire) in (Union, UnionType, list) else ()
    if not parts:
        return wire
    return list.__class_getitem__(parts) if get_origin(wire) is list else Union[parts]  # noqa: UP007  # of a tuple


def _alone(wire: Any) -> dict[str, Any]:
    """The schema of one annotation; {} if it has none."""
    try:
        schema: dict[str, Any] = msgspec.json.schema(wire, schema_hook=_of_model)
    except Exception:  # as in `_schemas`
        return {}
    return schema


def _of_model(kind: type) -> dict[str, Any]:
    if tags.is_model(kind):
        schema: dict[str, Any] = kind.model_json_schema()  # type: ignore[attr-defined]
        return schema
    raise NotImplementedError


def _with_default(schema: dict[str, Any], parameter: inspect.Parameter | None) -> dict[str, Any]:
    """The schema with the default of the function, if JSON can represent it."""
    if parameter is None or parameter.default is parameter.empty:
        return schema
    try:
        default = msgspec.json.decode(msgspec.json.encode(parameter.default, enc_hook=enc_hook))
    except Exception:  # as in `_schemas`
        return schema
    return {**schema, "default": default}
