"""Which classes may return another value than the one that was written, because code of their author runs in between.

Values of the other classes are never compared with what is read from their text. A class that this module does not
understand counts as one that may change its values: then each of them is compared.
"""

from __future__ import annotations

import dataclasses
import functools
import typing
from datetime import date, datetime
from enum import Enum
from types import BuiltinFunctionType, MemberDescriptorType, NoneType, UnionType, WrapperDescriptorType
from typing import Any, Final, Literal, Union, get_args, get_origin
from uuid import UUID

from msgspec import Struct

from treadle.serialization import tags
from treadle.serialization.comparison import fits_field

NEVER: Final = 0
TAGGED: Final = 1  # only in the tagged form, which calls the class's own constructor; msgspec sets the fields itself
ALWAYS: Final = 2

# Settings of a pydantic model that change nothing of a valid value.
_CALM_WORDS = (
    "alias_generator arbitrary_types_allowed defer_build from_attributes frozen json_schema_extra "
    "populate_by_name protected_namespaces title use_attribute_docstrings validate_assignment"
)
_CALM: Final = frozenset(_CALM_WORDS.split())
_METHODS: Final = (
    "__get_pydantic_core_schema__",
    "model_dump",
    "model_dump_json",
    "model_validate",
    "model_validate_json",
)
_LEAVES: Final = frozenset({str, int, bool, NoneType, float, datetime, date, UUID, Any})
_LISTS: Final = (list, set, frozenset, tuple)


@functools.lru_cache(1_024)
def may_change(kind: Any) -> int:
    """NEVER, TAGGED or ALWAYS, for a Struct, dataclass, NamedTuple or pydantic class. 10 us, once per class."""
    if tags.is_model(kind):
        return TAGGED if is_exact_model(kind) else ALWAYS
    if any(_is_own(kind, name) for name in ("__post_init__", "__setattr__", "__new__")):
        return TAGGED if issubclass(kind, tuple) else ALWAYS
    if issubclass(kind, Struct):
        return TAGGED if _is_own(kind, "__init__") else NEVER
    if not dataclasses.is_dataclass(kind):
        return NEVER
    if any(_is_property(getattr(kind, name, None)) for name in tags.field_names(kind)):
        return ALWAYS
    hints = typing.get_type_hints(kind)
    init_only = any(isinstance(hints.get(name), dataclasses.InitVar) for name in kind.__dataclass_fields__)
    return TAGGED if init_only or _is_own(kind, "__init__") else NEVER


def is_exact_model(kind: Any) -> bool:
    """Whether pydantic's JSON restores each valid value of this class: only fields whose types are known to be exact,
    and none of the ways to change a value when it is written or read."""
    decorators = getattr(kind, "__pydantic_decorators__", None)
    if kind.__pydantic_complete__ is not True or decorators is None or kind.__private_attributes__:
        return False
    hooks = {name: getattr(decorators, name) for name in decorators.__slots__ if name != "computed_fields"}
    if any(hooks.values()) or kind.__pydantic_post_init__ is not None or kind.__pydantic_custom_init__:
        return False
    if any(name in vars(one) for one in kind.__mro__ if one.__module__ != "pydantic.main" for name in _METHODS):
        return False
    settings = dict(kind.model_config)
    if settings.pop("extra", None) == "allow" or not settings.keys() <= _CALM:
        return False
    fields = kind.model_fields.items()
    return all(_is_exact_field(field) for _, field in fields) and all(fits_field(kind, name) for name, _ in fields)


def _is_exact_field(field: Any) -> bool:
    if field.exclude or getattr(field, "exclude_if", None) or field.metadata or field.discriminator:
        return False
    return field.validation_alias == field.serialization_alias and _is_exact(field.annotation)


def _is_exact(hint: Any) -> bool:
    """Whether pydantic restores each value of this type from its JSON, apart from those for which the type's own check
    demands the tagged form. `AnnotationCompiler` asks about the classes inside by themselves."""
    origin, args = get_origin(hint), get_args(hint)
    if origin in (Union, UnionType):
        parts = [part for part in args if part is not NoneType]
        return len(parts) == 1 and _is_exact(parts[0])
    if origin is Literal:
        return {type(value) for value in args} in ({str}, {int})
    if origin is dict:
        return args[0] in (str, int) and _is_exact(args[1])
    if origin in _LISTS:
        return all(_is_exact(part) for part in args if part is not ...)
    if isinstance(hint, type) and issubclass(hint, Enum):
        return {type(one.value) for one in hint} in ({str}, {int}) and not hasattr(hint, _METHODS[0])
    return hint in _LEAVES or tags.is_model(hint)


def _is_property(default: object) -> bool:
    """Whether what a class has under the name of a field sets the field in a way of its own."""
    return hasattr(default, "__set__") and not isinstance(default, MemberDescriptorType)


def _is_own(kind: Any, name: str) -> bool:
    """Whether the author of the class wrote this method. Those of `dataclasses` and `NamedTuple` are made of text."""
    method = getattr(kind, name, None)
    code = getattr(method, "__code__", None)
    if code is None:
        return method is not None and not isinstance(method, WrapperDescriptorType | BuiltinFunctionType)
    return not code.co_qualname.startswith(("__create_fn__", "<lambda>"))
