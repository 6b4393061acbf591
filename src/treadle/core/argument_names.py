"""Checks the names of the options that users declare: `Retry(max_retries=3)` raises BadOption with the right name.

Users bring the names of other job queues, and the TypeError of a Struct does not suggest the right one.
"""

from __future__ import annotations

import difflib
from collections.abc import Collection
from typing import TYPE_CHECKING, Any, Final

from msgspec import Struct, StructMeta

from treadle.core.errors import BadOption

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
    "When": {"n": "required=", "need": "required=", "needs": "required=", "count": "required=", "status": "of="},
    "Sizes": {"args": "payload=", "arguments": "payload=", "results": "result=", "meta": "headers="},
}


def refuse_unknown(what: str, given: Collection[str], known: Collection[str]) -> None:
    """Raise BadOption for the first name in `given` that `what`, a class or a function, does not take."""
    for name in given:
        if name not in known:
            close = difflib.get_close_matches(name, known, 1)
            meant = ELSEWHERE.get(what, {}).get(name) or (f"{close[0]}=" if close else "")
            hint = f"; did you mean {meant}?" if meant else ""
            raise BadOption(
                what, f"unknown argument {name}={hint}; expected {', '.join(f'{parameter}=' for parameter in known)}"
            )


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
