"""Tasks of a Flask application: `app_context` runs a function inside the application's context, as a view runs.

Views need nothing from here: they call `task.enqueue_sync(...)`.
"""

from __future__ import annotations

import functools
import inspect
import threading
from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar, cast

from treadle.core.errors import BadOption
from treadle.core.extras import needing

with needing(__name__, "flask", "flask"):
    from flask import Flask

P = ParamSpec("P")
R = TypeVar("R")


def app_context(app: Flask | Callable[[], Flask]) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """A decorator below `@jobs.task`: `current_app`, and extensions such as Flask-SQLAlchemy, work in the task.

    app  the application, or a function that makes it, such as `create_app`; it is called once, at the first run

    Each run has its own context, made and left in the thread of the task, so an extension's session ends with the run.
    Raises BadOption.
    """
    if not isinstance(app, Flask) and not callable(app):
        raise BadOption("app", f"expected a Flask application or a function that makes one, found {app!r}")

    once, known = threading.Lock(), list[Flask]()

    def made() -> Flask:
        if isinstance(app, Flask):
            return app
        with once:  # the first jobs may run in several threads
            if not known:
                host: object = app()
                if not isinstance(host, Flask):
                    raise BadOption("app", f"expected a function that makes a Flask application, it returned {host!r}")
                known.append(host)
        return known[0]

    def decorate(function: Callable[P, R]) -> Callable[P, R]:
        if inspect.iscoroutinefunction(function):

            @functools.wraps(function)
            async def awaited(*args: P.args, **kwargs: P.kwargs) -> Any:
                with made().app_context():
                    return await function(*args, **kwargs)

            return cast("Callable[P, R]", awaited)

        @functools.wraps(function)
        def run(*args: P.args, **kwargs: P.kwargs) -> R:
            with made().app_context():
                return function(*args, **kwargs)

        return run

    return decorate
