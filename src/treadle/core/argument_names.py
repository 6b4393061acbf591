"""Checks the argument names that users write: `Retry(max_retries=3)` or `App(broker=...)` raises BadOption with the
right name.

Users bring the argument names of other job queues, and Python's own TypeError does not suggest the right one.
"""

from __future__ import annotations

import difflib
import functools
import inspect
from collections.abc import Callable, Collection
from typing import TYPE_CHECKING, Any, Final, TypeVar, cast

from msgspec import Struct, StructMeta

from treadle.core.errors import BadOption

T = TypeVar("T")
F = TypeVar("F", bound=Callable[..., Any])

BY_NAME: Final = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)

FIRST_TOO: Final = "attempts=, which also counts the first attempt"
ELSEWHERE: Final[dict[str, dict[str, str]]] = {
    "Retry": {
        "max_retries": FIRST_TOO,
        "retries": FIRST_TOO,
        "num_retries": FIRST_TOO,
        "retry": FIRST_TOO,
        "max_attempts": "attempts=",
        "max_tries": "attempts=",
        "tries": "attempts=",
        "times": FIRST_TOO,
        "countdown": "base=",
        "delay": "base=",
        "default_retry_delay": "base=",
        "retry_delay": "base=",
        "min_backoff": "base=",
        "backoff": "base= and factor=",
        "retry_backoff": "base= and factor=",
        "interval": "base=",
        "interval_start": "base=",
        "interval_step": "factor=",
        "multiplier": "factor=",
        "exponent": "factor=",
        "backoff_factor": "factor=",
        "max_backoff": "max=",
        "retry_backoff_max": "max=",
        "interval_max": "max=",
        "max_delay": "max=",
        "retry_jitter": "jitter=",
    },
    "Limit": {
        "concurrency": "slots=",
        "max_concurrency": "slots=",
        "max_running": "slots=",
        "max_workers": "slots=",
        "limit": "slots= or rate=",
        "max_length": "max_waiting=",
        "maxlen": "max_waiting=",
        "max_size": "max_waiting=",
        "maxsize": "max_waiting=",
        "max_queued": "max_waiting=",
        "overflow": "when_full=",
        "on_full": "when_full=",
        "max": "slots=",
        "key": "name=",
        "rate_limit": "rate= and per=",
        "max_calls": "rate=",
        "calls": "rate=",
        "count": "rate=",
        "period": "per=",
        "interval": "per=",
        "duration": "per=",
        "window": "per=",
        "seconds": "per=",
        "bucket": 'how="bucket"',
        "strategy": "how=",
        "until": "hold=",
    },
    "Key": {
        "name": "key=",
        "id": "key=",
        "ttl": "window=",
        "expires": "window=",
        "timeout": "window=",
        "period": "window=",
        "unique_for": "window=",
        "on_conflict": "conflict=",
        "scope": "shared=",
        "unique_until": "until=",
    },
    "Defer": {
        "seconds": "its first argument, as in Defer(30)",
        "delay": "its first argument, as in Defer(30)",
        "countdown": "its first argument, as in Defer(30)",
        "eta": "until=",
        "run_at": "until=",
        "key": "limit=",
        "max_retries": "Retry(attempts=...): a deferral does not count as an attempt",
        "queue": 'limit="queue:<name>"',
    },
    "Abort": {"reason": "message=", "error": "message=", "text": "message="},
    "Redrive": {
        "max_retries": "max_times=",
        "retries": "max_times=",
        "attempts": "max_times=",
        "interval": "every=",
        "base": "backoff=",
        "delay": "backoff=",
        "max": "longest=",
        "max_backoff": "longest=",
        "count": "limit=",
    },
    "AIMD": {"delay": "base=", "max_delay": "max=", "multiplier": "factor=", "fail_rate": "max_fail_rate="},
    "App": {
        "broker": "url=",
        "broker_url": "url=",
        "backend": "url=",
        "result_backend": "url=",
        "database": "url=",
        "database_url": "url=",
        "dsn": "url=",
        "connection": "url=",
        "redis_url": "url=",
        "db": "url=",
        "max_retries": "retry=Retry(attempts=...)",
        "retries": "retry=Retry(attempts=...)",
        "serializer": "codec=",
        "api_key": "token=",
        "prefix": "namespace=",
    },
    "Worker": {
        "workers": "concurrency=",
        "max_workers": "concurrency=",
        "max_jobs": "concurrency=",
        "slots": "concurrency=",
        "prefetch": "concurrency=",
        "queue": "queues=",
        "functions": "tasks=",
        "shutdown_timeout": "grace=",
        "graceful_timeout": "grace=",
        "stop_timeout": "grace=",
        "timeout": "grace=",
        "visibility_timeout": "lease=",
        "poll_interval": "poll=",
        "interval": "poll=",
        "poll_delay": "poll=",
        "retry": "recovery=",
    },
    "cron": {"timezone": "tz=", "zone": "tz=", "cron": "line=", "expression": "line=", "schedule": "line="},
    "When": {"n": "required=", "need": "required=", "needs": "required=", "count": "required=", "status": "of="},
    "at_least": {"required": "its first argument, as in at_least(2)", "count": "its first argument, as in at_least(2)"},
    "Sizes": {"args": "payload=", "arguments": "payload=", "results": "result=", "meta": "headers="},
}


def refuse_unknown(what: str, given: Collection[str], known: Collection[str]) -> None:
    """Raise BadOption for the first name in `given` that `what`, a class or a function, does not take."""
    for name in given:
        if name not in known:
            close = difflib.get_close_matches(name, known, 1)
            meant = ELSEWHERE.get(what, {}).get(name) or (f"{close[0]}=" if close else "")
            hint = f"; did you mean {meant}?" if meant else ""
            raise BadOption(what, f"unknown argument {name}={hint}; expected {', '.join(f'{each}=' for each in known)}")


class _Meta(StructMeta):
    if not TYPE_CHECKING:  # type checkers read the fields

        def __call__(cls, *args: Any, **kwargs: Any) -> Any:
            try:
                return super().__call__(*args, **kwargs)
            except TypeError:
                refuse_unknown(cls.__name__, kwargs, cls.__struct_fields__)
                raise


if TYPE_CHECKING:

    class Spelled(Struct, frozen=True):
        """A Struct whose wrong field names raise BadOption."""

else:

    class Spelled(Struct, frozen=True, metaclass=_Meta):
        """A Struct whose wrong field names raise BadOption."""


def spelled(kind: type[T]) -> type[T]:
    """The class, with an `__init__` of its own, whose wrong argument names raise BadOption."""
    kind.__init__ = _checked(kind.__init__, kind.__name__)  # type: ignore[method-assign]
    return kind


def spelled_call(function: F) -> F:
    """The function or method, whose wrong argument names raise BadOption."""
    found: Any = _checked(function, function.__name__)
    return cast("F", found)


def _checked(function: Callable[..., Any], what: str) -> Callable[..., Any]:
    @functools.wraps(function)
    def checked(*args: Any, **kwargs: Any) -> Any:
        try:
            return function(*args, **kwargs)
        except TypeError:
            check_spelling(function, kwargs, what)
            raise

    return checked


def check_spelling(function: Callable[..., Any], given: Collection[str], what: str | None = None) -> None:
    """Raise BadOption for the first name that a function does not take. `what`: its name in the error."""
    known = inspect.signature(function).parameters.values()
    if not any(each.kind is each.VAR_KEYWORD for each in known):
        names = [
            each.name for each in known if each.kind in BY_NAME and each.name != "self" and not each.name.endswith("_")
        ]
        refuse_unknown(what or function.__name__, given, names)
