"""Encodes calls and results as text, and checks that they fit the function before anything is stored.

The payload of a call is JSON: an array of the positional arguments, ``[]`` for none; or, when arguments can only be
given by name, ``{"args": [...], "kwargs": {...}}``. Keywords that continue the positional arguments are stored as
positional ones. Secrets (`has_secret_name`) and the arguments after them are stored by name. Defaults are not stored.
Annotated values have the plain form of msgspec: datetimes, dates, times and durations as ISO 8601, bytes as base64,
Decimal and UUID as text, enum members as their values, sets and tuples as arrays, dataclasses, Structs and models as
objects. A result is such a value by itself. A text that contains ``"$t"`` is tagged as a whole instead
(`serialization/tagged_json.py`). Treadle writes the tagged form only where the plain form would lose something, and
reads it for every parameter.

A value fits if it is an instance of the annotated type. A str is refused for a datetime or a sequence, a dict for a
dataclass, a tuple for a list, a datetime for a date, a bool for an int, and a member's value for an enum. An int fits
float if it converts exactly. Subclasses fit str and int (and lose their class), but not other types. Abstract
annotations accept list and tuple (``Iterable`` and ``Collection`` also sets), return a list, set or dict, and never
consume an iterator. Decoding is more lenient, because other programs also write payloads: there a value may also be the
JSON form of its annotation.
"""

from __future__ import annotations

import inspect
import typing
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any, Final, NoReturn

import msgspec

from treadle.core.errors import ARGUMENTS, UNREADABLE, BadArgument, BadResult, BadTask
from treadle.core.injected import call_signature, hints_of, injected_names, refuse_misplaced
from treadle.core.job import returned
from treadle.core.plain_json import DEEPEST, read_json, refuse_deep
from treadle.core.stored_text import FORMS, lacks
from treadle.serialization import tagged_json, tagged_reader, tags
from treadle.serialization.annotations import AnnotationCompiler
from treadle.serialization.call_text import (
    _envelope,
    _read_array,
    _read_object,
    decode_foreign_call,
    encode_foreign_call,
    plain_json,
)
from treadle.serialization.class_hooks import ALWAYS, NEVER
from treadle.serialization.default_codec import DefaultCodec
from treadle.serialization.nesting import too_deep
from treadle.serialization.own_codec import OwnCodec
from treadle.serialization.parameters import Envelope, Param, Parameters, param_of
from treadle.serialization.read_back import changed_argument, changed_result, tagged_call, unstorable_result
from treadle.serialization.tagged_json import Codec, decode_any, encode_any, has_mark
from treadle.serialization.tags import RemoteError, Unstorable, found, reason
from treadle.serialization.type_check import MISSING

__all__ = [
    "MISSING",
    "CallCodec",
    "Codec",
    "RemoteError",
    "Unstorable",
    "decode_any",
    "decode_foreign_call",
    "encode_any",
    "encode_foreign_call",
]


# Errors that the arguments cause, so each attempt raises them again. Any other error, such as one of the network, may
# not occur in the next attempt.
UNFIT: Final = (*UNREADABLE, TypeError, LookupError, AttributeError, ArithmeticError, AssertionError)

_Call = tuple[tuple[object, ...], dict[str, object]]
Folds = Callable[[Any], Any]


class CallCodec:
    """Encodes and decodes the arguments and the result of one task. Built once per task; cheap to call.

    `codec` replaces the forms described above by the user's own; arguments and results are still checked. `folds` maps
    the type of the children's values to the type of the workflow's value; None: the same type.

    Raises BadTask for a function without a signature or with invalid annotations. Names that are not defined yet (a
    class further down the module) are looked up again at the first use, which raises BadTask if they are still unknown.
    An unknown name in the return annotation only leaves the result untyped."""

    def __init__(
        self, name: str, function: Callable[..., object], codec: Codec | None = None, folds: Folds | None = None
    ) -> None:
        self.name = name
        self._function, self._folds = function, folds
        self._codec = None if type(codec) is DefaultCodec else codec
        self._names: Mapping[type, str] = {}
        self._classes: Mapping[str, type] = {}
        self._plan: Parameters | None = None
        self._rest: Parameters | None = None
        self._result: Param | None = None
        self._value: Param | None = None
        self._own: OwnCodec  # once the annotations are known, if there is a codec of the user's
        self._whole: Callable[[str], tuple[Any, ...]] | None = None  # decodes an ordinary call, if that is possible
        self._exact: frozenset[type] = frozenset()  # types of results that plain JSON represents exactly
        self._risk = self._result_risk = self._tagged_risk = NEVER
        with suppress(NameError, AttributeError):  # a forward reference: resolved at the first use
            self._resolve()

    def encode_call(self, args: Sequence[object], kwargs: Mapping[str, object], *, first_later: bool = False) -> str:
        """The payload of a call. `first_later`: the first positional argument is passed at run time, and `args` are the
        others. The values are not changed. Raises BadArgument, with the name of the parameter that is missing, unknown,
        given twice, of the wrong type, or cannot be stored. 0.4 us for one int."""
        plan = self._late() if first_later else self._plan or self._ready()
        by_place = plan.positional
        if kwargs or not plan.low <= len(args) <= plan.high or not plan.direct:
            if first_later:
                self._only_later(kwargs)
            args, kwargs = plan.arrange(self.name, args, kwargs)
            by_place = plan.places(len(args))
        if not args and not kwargs and self._codec is None:
            return "[]"
        plain, index, name = True, 0, None
        try:
            for value in args:
                if type(value) not in by_place[index].exact:
                    plain = by_place[index].check(value) and plain
                index += 1
            for name, value in kwargs.items():
                plain = plan.by(name).check(value) and plain
        except (Unstorable, RecursionError) as error:
            value = args[index] if name is None else kwargs[name]
            why = error if isinstance(error, Unstorable) else too_deep(value)
            raise BadArgument(self.name, name or by_place[index].name, str(why)) from None
        if self._codec is not None:
            return self._by_codec(plan, {"args": list(args), "kwargs": dict(kwargs)})
        if plain:
            text = plain_json({"args": args, "kwargs": kwargs} if kwargs else args)
            if text is not None and (self._risk < ALWAYS or not changed_argument(self, plan, text, args, kwargs)):
                return text
        return tagged_call(self, plan, args, kwargs)

    def decode_call(self, text: str, *, first: object = MISSING) -> tuple[tuple[object, ...], dict[str, object]]:
        """The arguments of any payload as values of their annotated types. `first` is the first argument for a payload
        made with `first_later`; it is checked (or decoded from the JSON form of its annotation). Raises only
        BadArgument, for a payload that does not fit. The error is `permanent`, unless a user's codec raised, or a
        user's class raised an error that its arguments do not cause. 0.6 us for one int."""
        whole = self._whole if text[:1] == "[" and "$" not in text and len(text) <= DEEPEST else None
        if whole is not None and first is MISSING:
            try:
                return whole(text), {}
            except Exception:  # the slow path finds the error; `suppress` would cost 0.15 us
                pass
        plan = (self._plan or self._ready()) if first is MISSING else self._late()
        tree = MISSING if self._codec is None or text.startswith(FORMS) else self._own.call(self.name, text)
        try:
            args, kwargs = self._arguments(plan, text) if tree is MISSING else self._read_tree(plan, tree)
            if first is not MISSING:
                args = (self._accept(self._ready().at(0), first), *args)
        except BadArgument as error:
            error.fails_as = ARGUMENTS if error.__cause__ is None else None
            raise
        return args, kwargs

    def encode_result(self, value: object) -> str:
        """The text of the function's result. Raises BadResult if it does not match the return annotation, or, without
        one, cannot be stored."""
        if type(value) in self._exact:  # 0.5 us less than the slow path
            text = plain_json(value)
            if text is not None:
                return text
        return self._encode(self._returns(), value)

    def encode_value(self, value: object) -> str:
        """The text of the workflow's value, as `encode_result`."""
        self._ready()
        return self._encode(typing.cast("Param", self._value), value)

    def check_late(self, text: str) -> None:
        """Raise BadArgument unless the payload lacks only the first argument, which is passed at run time. The payload
        was made for a direct call, so its first positional argument was meant for the first parameter."""
        args, _ = self._arguments(self._late(), text)
        if args:
            raise BadArgument(
                self.name,
                None,
                f"in a chain the first argument is the result of the job before, found {args[0]!r} there; "
                f"{self.by_name(len(args))}, or use options(pass_result=True).job(...)",
            )

    def by_name(self, count: int) -> str:
        """Advice for a chain: how to give this number of arguments by name."""
        names = [param.name for param in self._late().positional[:count]] or ["name"]
        return f"give the rest by name: {self.name}.job({', '.join(f'{name}=...' for name in names)})"

    def positional_names(self) -> tuple[str, ...]:
        """The names of the parameters that can be given by position."""
        try:
            return tuple(param.name for param in (self._plan or self._ready()).positional)
        except BadTask:  # an annotation cannot be resolved: no job of it can run
            return ()

    def _encode(self, param: Param, value: object) -> str:
        shape = param.shape
        try:
            if self._codec is not None:
                return self._own.result(shape, value)
            untyped = shape.untyped
            plain = type(value) in shape.exact or (tagged_json.is_plain(value) if untyped else shape.check(value, 0))
            text = plain_json(value) if plain else None
            if text is not None and (self._result_risk < ALWAYS or not changed_result(self, param, text, value)):
                return text
            text = tagged_json.write_tagged(tagged_json.tag(value, self._names, flatten=not untyped))
            if self._tagged_risk and (changed := changed_result(self, param, text, value)) is not None:
                raise changed
            return text
        except BadResult:
            raise
        except Exception as error:  # a user's codec may raise anything
            raise unstorable_result(self.name, value, error) from error

    def decode_result(self, text: str) -> object:
        """The value that `encode_result` encoded, or that another worker wrote in the JSON form of the return
        annotation. Raises BadResult for any other text; a job that raises this is retried."""
        return self._decode(self._result or self._returns(), text)

    def decode_value(self, text: str) -> object:
        """The value that `encode_value` encoded. Raises BadResult."""
        self._ready()
        return self._decode(typing.cast("Param", self._value), text)

    def _decode(self, result: Param, text: str) -> object:
        may_be_marked = "$" in text  # FORMS have it, too; most results have not, and are read in one call
        if may_be_marked and text.startswith(FORMS) and (why := lacks(text)) is not None:
            raise BadResult.of_stored(self.name, why)
        try:
            if self._codec is not None:
                return result.shape.accept(self._own.read(text))
            if may_be_marked and has_mark(text):
                return result.shape.accept(decode_any(text, self._classes))
            if len(text) > DEEPEST:
                refuse_deep(text)
            return result.shape.accept(result.decode(text)) if result.shape.loose else result.decode(text)
        except Unstorable as error:
            raise BadResult.of_stored(self.name, f"as stored: {error}") from None
        except Exception as error:  # constructors and codecs are user code
            raise BadResult.of_stored(self.name, f"as stored: {Unstorable(*reason(error))}") from None

    # --- building -------------------------------------------------------------------------------------------------

    def _ready(self) -> Parameters:
        if self._plan is None:
            try:
                self._resolve(final=True)
            except (NameError, AttributeError) as error:
                raise BadTask(
                    f"{self.name}: an annotation uses a name that is unknown where the function is defined: "
                    f"{error}; define or import it at module level, outside TYPE_CHECKING"
                ) from error
        return typing.cast("Parameters", self._plan)

    def _resolve(self, final: bool = False) -> None:
        try:
            parameters = list(call_signature(self._function).parameters.values())
            provided = injected_names(self._function)
            hints = hints_of(self._function, final, provided)
        except (TypeError, ValueError, SyntaxError) as error:
            raise BadTask(f"{self.name}: the signature of {self._function!r} cannot be read: {error}") from error
        refuse_misplaced(self.name, parameters, hints)
        shapes = AnnotationCompiler(self._codec is None)
        params = [
            (p.kind, param_of(p.name, shapes.of(hints.get(p.name, Any)), p.default is p.empty)) for p in parameters
        ]
        kinds = inspect.Parameter
        by_place = [p for kind, p in params if kind in (kinds.POSITIONAL_ONLY, kinds.POSITIONAL_OR_KEYWORD)]
        by_name = {p.name: p for kind, p in params if kind in (kinds.POSITIONAL_OR_KEYWORD, kinds.KEYWORD_ONLY)}
        more = next((p for kind, p in params if kind is kinds.VAR_POSITIONAL), None)
        rest = next((p for kind, p in params if kind is kinds.VAR_KEYWORD), None)
        own, value = returned(hints.get("return", Any))
        if self._folds is not None:
            value = self._folds(value)
            own = typing.Union[own, value]  # noqa: UP007  # of types found at run time
        of_result = AnnotationCompiler(self._codec is None, shapes)
        self._result = param_of("return", of_result.of(own), False)
        self._value = param_of("value", of_result.of(value), False)
        self._risk, self._result_risk = shapes.risk, of_result.risk
        self._tagged_risk = max(shapes.risk, of_result.risk)  # an untyped result may hold a class of a parameter
        self._names, self._classes = shapes.names, shapes.classes
        if self._codec is not None:
            self._own = OwnCodec(self._codec, shapes.names, shapes.classes)
            for _, param in params:
                self._own.probe(param.shape, hints.get(param.name, Any), f"{param.name!r} of {self.name}", in_call=True)
            self._own.probe(self._result.shape, own, f"the result of {self.name}")
            self._own.probe(self._value.shape, value, f"the value of the workflow of {self.name}")
        if by_place or more:
            later = {name: p for name, p in by_name.items() if not by_place or p is not by_place[0]}
            self._rest = Parameters(by_place[1:], more, later, rest, provided, by_place[0].name if by_place else "")
        self._plan = plan = Parameters(by_place, more, by_name, rest, provided)
        if self._codec is None:
            self._whole, self._exact = plan.whole, self._result.shape.exact

    def _late(self) -> Parameters:
        self._ready()
        if self._rest is None:
            raise BadArgument(
                self.name,
                None,
                "has no positional parameter for the result of the job before it: add one, or use pass_result=False",
            )
        return self._rest

    def _returns(self) -> Param:
        self._ready()
        return typing.cast("Param", self._result)

    def _only_later(self, kwargs: Mapping[str, object]) -> None:
        plan = self._ready()
        if plan.positional and plan.positional[0].name in kwargs and plan.positional[0].name in plan.named:
            raise BadArgument(
                self.name, plan.positional[0].name, "is given, but its value is the result of the job before"
            )

    # --- arguments to text ----------------------------------------------------------------------------------------

    def _by_codec(self, plan: Parameters, call: dict[str, Any]) -> str:
        text = self._own.write_call(self.name, call)
        if not tagged_json.is_plain(call):  # JSON values were tried at the declaration
            sent, sent_by_name = plan.bind(self.name, **call)
            back, back_by_name = self._read_tree(plan, self._own.call(self.name, text))
            trips = [(plan.at(i), value, back[i]) for i, value in enumerate(sent)]
            trips += [(plan.by(name), value, back_by_name[name]) for name, value in sent_by_name.items()]
            for param, value, copy in trips:
                try:
                    self._own.compare(param.shape, value, copy)
                except Unstorable as error:
                    raise BadArgument(self.name, param.name, str(error)) from None
        return text

    # --- text to arguments ----------------------------------------------------------------------------------------

    def _arguments(self, plan: Parameters, text: str) -> _Call:
        if text.startswith(FORMS) and (why := lacks(text)) is not None:
            raise BadArgument(self.name, None, why)
        if self._codec is not None:
            return self._read_tree(plan, self._own.call(self.name, text))
        if has_mark(text):
            try:
                return self._read_tree(plan, read_json(text), tags=True)
            except UNREADABLE as error:
                if isinstance(error, BadArgument):
                    raise
                raise BadArgument(self.name, None, f"expected a payload of JSON: {error}") from None
        if plan.whole is not None and text[:1] == "[":
            with suppress(Exception):  # the slow path finds the error
                refuse_deep(text)
                return plan.whole(text), {}
        elif text == "[]" and plan.simple:
            return (), {}
        return self._one_by_one(plan, text)

    def _one_by_one(self, plan: Parameters, text: str) -> _Call:
        """Decode each argument by itself: for calls with keywords, and to find the wrong argument."""
        try:
            refuse_deep(text)
            if text.lstrip()[:1] == "[":
                envelope = Envelope(_read_array(text))
            else:
                envelope = _read_object(text)
        except Exception as error:  # MsgspecError, UnicodeEncodeError, RecursionError
            what = Unstorable(*reason(error))
            raise BadArgument(
                self.name,
                None,
                f"expected a payload of JSON, an array or an object of args and kwargs, got {tags.short(text)}: {what}",
            ) from None
        by_place, named = plan.bind(self.name, envelope.args, envelope.kwargs)
        args = tuple(self._read(plan.at(i), raw) for i, raw in enumerate(by_place))
        return args, {name: self._read(plan.by(name), raw, name) for name, raw in named.items()}

    def _read(self, param: Param, raw: msgspec.Raw, name: str | None = None) -> object:
        try:
            value = param.decode(raw)
            return param.shape.accept(value) if param.shape.loose else value
        except Exception as error:  # the constructors of annotated classes are user code
            self._refuse(name or param.name, error)

    def _read_tree(self, plan: Parameters, tree: object, tags: bool = False) -> _Call:
        """Arguments from a tagged text or a user's codec: values, or trees that contain tags."""
        args, kwargs = (tree, {}) if isinstance(tree, list) else _envelope(tree)
        if not isinstance(args, list) or not isinstance(kwargs, dict) or not all(type(k) is str for k in kwargs):
            raise BadArgument(self.name, None, f"expected a payload of args and kwargs, got {found(tree)}")
        by_place, named = plan.bind(self.name, args, kwargs)
        values = [self._accept(plan.at(i), value, None, tags) for i, value in enumerate(by_place)]
        return tuple(values), {k: self._accept(plan.by(k), value, k, tags) for k, value in named.items()}

    def _accept(self, param: Param, value: object, name: str | None = None, tags: bool = False) -> object:
        try:
            return param.shape.accept(tagged_reader.untag(value, self._classes) if tags else value)
        except Exception as error:  # user code compares and creates these values
            self._refuse(name or param.name, error)

    def _refuse(self, parameter: str, error: Exception) -> NoReturn:
        """Raise BadArgument. The error is its cause if another attempt may succeed."""
        why = error if isinstance(error, Unstorable) else Unstorable(*reason(error))
        raise BadArgument(self.name, parameter, str(why)) from None if isinstance(error, UNFIT) else error
