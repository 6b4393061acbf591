"""Middleware for every app of this process, also for those that were made before: for instrumentation that is switched
on for a program, not for an app."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any
from weakref import WeakKeyDictionary

from treadle.execution import middleware
from treadle.execution.middleware import Middleware

Make = Callable[[Any], Middleware | None]

_lock = threading.Lock()
_makers: list[Make] = []
_apps: WeakKeyDictionary[Any, list[Middleware]] = WeakKeyDictionary()  # an app -> its layers


def add(make: Make) -> Callable[[], None]:
    """Add a middleware to every app, outside of its own. A worker that runs already keeps the ones it has.

    make  called once for each app, with the App; it returns None for an app that needs none
    Returns a function that undoes it, for new workers. Raises what `make` and `Middleware.added` raise.
    """
    made: list[Middleware] = []

    def make_one(app: Any) -> Middleware | None:
        layer = make(app)
        if layer is not None:
            made.append(layer)
        return layer

    with _lock:
        _makers.append(make_one)
        apps = list(_apps.items())
    for app, layers in apps:
        _put(app, layers, make_one)

    def undo() -> None:
        with _lock:
            _makers.remove(make_one)
            known = list(_apps.values())
        for layers in known:
            layers[:] = [layer for layer in layers if not any(layer is each for each in made)]

    return undo


def joined(app: Any, layers: list[Middleware]) -> None:
    """An app was made, with these layers."""
    with _lock:
        _apps[app] = layers
        makers = list(_makers)
    for make in makers:
        _put(app, layers, make)


def _put(app: Any, layers: list[Middleware], make: Make) -> None:
    if (made := make(app)) is not None:
        put_outermost(app, layers, made)


def put_outermost(app: Any, layers: list[Middleware], layer: Middleware) -> None:
    """Add a middleware to an app with these layers, outside of all."""
    found = middleware.check(layer)
    found.added(app)
    layers.insert(0, found)
