"""The text of a call whose signature is not known, and the plain JSON of checked values."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from treadle.core.errors import BadArgument
from treadle.serialization import tagged_json
from treadle.serialization.parameters import Envelope
from treadle.serialization.tagged_json import Codec, decode_any, has_mark
from treadle.serialization.tags import Unstorable, found
from treadle.serialization.type_check import encode_plain

_read_array = msgspec.json.Decoder(list[msgspec.Raw]).decode
_read_object = msgspec.json.Decoder(Envelope).decode


def encode_foreign_call(args: Sequence[object], kwargs: Mapping[str, object], name: str = "stub") -> str:
    """The payload of a call whose signature is not known here: values in tagged JSON, which every task reads, also for
    annotated parameters. `name`: the task, for messages. Raises BadArgument."""
    if tagged_json.is_plain([*args, *kwargs.values()]):
        text = plain_json({"args": args, "kwargs": dict(kwargs)} if kwargs else args)
        if text is not None:
            return text
    try:
        return write_call(
            name, [tagged_json.tag(value) for value in args], {k: tagged_json.tag(v) for k, v in kwargs.items()}
        )
    except Unstorable as error:
        raise BadArgument(name, None, str(error)) from None


def decode_foreign_call(text: str) -> tuple[tuple[object, ...], dict[str, object]]:
    """The arguments of a payload as plain values, without the task's code. Raises Unstorable."""
    tree = decode_any(text)
    args, kwargs = (tree, {}) if isinstance(tree, list) else _envelope(tree)
    if not isinstance(args, list) or not isinstance(kwargs, dict) or not all(type(name) is str for name in kwargs):
        raise Unstorable(f"expected a payload of args and kwargs, got {found(tree)}")
    return tuple(args), kwargs


def write_call(task: str, args: list[object], kwargs: dict[str, object]) -> str:
    try:
        return tagged_json.write_tagged({"args": args, "kwargs": kwargs} if kwargs else args)
    except ValueError as error:  # a keyword that UTF-8 cannot encode
        raise BadArgument(task, None, f"cannot be stored: {error}") from None


def plain_json(value: object) -> str | None:
    """The plain JSON of a checked value. None if only the tagged form represents it: lone surrogates, integers beyond
    4,300 digits, models that lose something, texts that look tagged."""
    try:
        text = encode_plain(value).decode()
    except Exception:  # also errors of a user's model; the tagged form then raises the precise error
        return None
    return None if has_mark(text) else text


def encoded_by(codec: Codec, value: object) -> str:
    text = codec.encode(value)
    if not isinstance(text, str):
        raise ValueError(f"{codec!r} must encode to str, got {found(text)}")
    return text


def _envelope(tree: Any) -> tuple[Any, Any]:
    if not isinstance(tree, dict) or tree.keys() - {"args", "kwargs"}:
        return None, None
    return tree.get("args", []), tree.get("kwargs", {})
