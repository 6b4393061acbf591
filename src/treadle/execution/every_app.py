"""Middleware for every app of this process, also for those that were made before: for instrumentation that is switched
on for a program, not for an app."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any
from weakref import WeakSet

from treadle.execution import middleware
from treadle.execution.middleware import Middleware

Make = Callable[[Any], Middleware | None]

_lock = threading.Lock()
_makers: list[Make] = []
_apps: WeakSet[Any] = WeakSet()  # not with their layers, which refer to the app and would keep it alive


def add(make: Make) -> Callable[[], None]:
    """Add a middleware to every app, outside of its own. A worker that runs already keeps the ones it has.

    make  called once for each app, with the App; it returns None for an app that needs none
    Returns a function that undoes it, for new workers. Raises what `make` and `Middleware.added` raise.
    """
    added: WeakSet[Middleware] = WeakSet()

    def make_one(app: Any) -> Middleware | None:
        layer = make(app)
        if layer is not None:
            added.add(layer)
        return layer

    with _lock:
        _makers.append(make_one)
        apps = list(_apps)
    for app in apps:
        put_outermost(app, make_one(app))

    def undo() -> None:
        with _lock:
            _makers.remove(make_one)
            known = list(_apps)
        for app in known:
            layers = layers_of(app)
            layers[:] = [layer for layer in layers if layer not in added]

    return undo


def joined(app: Any) -> None:
    """An app was made."""
    with _lock:
        _apps.add(app)
        makers = list(_makers)
    for make in makers:
        put_outermost(app, make(app))


def put_outermost(app: Any, layer: Middleware | None) -> None:
    """Add a middleware to an app, outside of all that it has; None: none."""
    if layer is not None:
        checked = middleware.check(layer)
        checked.added(app)
        layers_of(app).insert(0, checked)


def layers_of(app: Any) -> list[Middleware]:
    """The middleware of an app, outermost first."""
    layers: list[Middleware] = app._core.layers
    return layers
