"""Parameters whose values the worker provides: they are not part of a call."""

from __future__ import annotations

import functools
import inspect
import sys
import typing
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import SimpleNamespace
from typing import Any, Final

from treadle.core.errors import BadDependency

# Classes of markers that other libraries resolve: FastAPI, fast_depends, taskiq. Each has the attribute `dependency`.
FOREIGN: Final = ("Depends", "Security", "Dependant", "Dependency")


class Injected:
    """The base of a parameter's default that stands for a value of the worker."""

    __slots__ = ()


if sys.version_info >= (3, 14):  # annotations are evaluated when they are read
    from annotationlib import Format, get_annotations

    signature_of = functools.partial(inspect.signature, annotation_format=Format.FORWARDREF)

    def annotations_of(function: Any) -> Mapping[str, Any]:
        """The annotations of a function, with ForwardRef in the place of names that are unknown; {}: it has none."""
        return get_annotations(function, format=Format.FORWARDREF)

else:
    signature_of = inspect.signature

    def annotations_of(function: Any) -> Mapping[str, Any]:
        """The annotations of a function, some of them as texts; {}: it has none."""
        hints: Mapping[str, Any] = getattr(function, "__annotations__", {})
        return hints


def call_signature(function: Callable[..., Any]) -> inspect.Signature:
    """The signature of a call, without the parameters that the worker fills. Raises TypeError and ValueError."""
    whole = signature_of(function)
    kept = [parameter for parameter in whole.parameters.values() if not isinstance(parameter.default, Injected)]
    return whole if len(kept) == len(whole.parameters) else whole.replace(parameters=kept)


def injected_names(function: Callable[..., Any]) -> tuple[str, ...]:
    """The names of the parameters that the worker fills; none if the signature cannot be read."""
    try:
        parameters = signature_of(function).parameters.values()
    except (TypeError, ValueError):
        return ()
    return tuple(parameter.name for parameter in parameters if isinstance(parameter.default, Injected))


def refuse_misplaced(name: str, parameters: Iterable[inspect.Parameter], hints: Mapping[str, Any]) -> None:
    """Raise BadDependency for a parameter with the marker of another library, or with `depends(...)` in its annotation:
    the worker would not fill it. `name` is that of the function."""
    for parameter in parameters:
        metadata = getattr(hints.get(parameter.name), "__metadata__", ())
        for marker in (parameter.default, *metadata):
            provider = getattr(getattr(marker, "dependency", None), "__name__", "provider")
            if type(marker).__name__ in FOREIGN and hasattr(marker, "dependency"):
                raise BadDependency(
                    name,
                    f"the parameter {parameter.name!r} has {type(marker).__name__}(...) of "
                    f"{type(marker).__module__.partition('.')[0]}, which a worker does not resolve: write "
                    f"`{parameter.name}: ... = depends({provider})` with `from treadle import depends`",
                )
            if isinstance(marker, Injected) and marker is not parameter.default:
                raise BadDependency(
                    name,
                    f"the annotation of the parameter {parameter.name!r} contains {marker!r}, expected it as the "
                    f"default: write `{parameter.name}: ... = {marker!r}`",
                )


def evaluated(function: Any, without: Sequence[str] = ()) -> dict[str, Any]:
    """The evaluated annotations of a function, except for these names: the worker fills such parameters, and their
    types may be imported for type checkers only. Raises NameError and AttributeError."""
    if not without:
        return typing.get_type_hints(function, include_extras=True)
    return evaluated_in(
        function, {name: hint for name, hint in annotations_of(function).items() if name not in without}
    )


def evaluated_in(function: Any, hints: Mapping[str, Any]) -> dict[str, Any]:
    """These annotations, evaluated in the module in which the function is defined. Raises NameError and
    AttributeError."""
    known = getattr(function, "__globals__", {})
    return typing.get_type_hints(SimpleNamespace(__annotations__=hints), known, include_extras=True)


def hints_of(function: Any, final: bool, provided: Sequence[str] = ()) -> dict[str, Any]:
    """Evaluates the annotations of a function, method, partial or callable object, except `provided`."""
    while isinstance(function, functools.partial):
        function = function.func
    function = inspect.unwrap(function)
    if not inspect.isroutine(function):
        function = function.__init__ if inspect.isclass(function) else type(function).__call__
    try:
        return evaluated(function, provided)
    except (NameError, AttributeError):
        if not final:
            raise
    return evaluated(function, ("return", *provided))
