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
_NAMES: Final[dict[str, dict[str, str]]] = {  # our class -> the right name -> names of other job queues
    "Retry": {
        FIRST_TOO: "max_retries retries num_retries retry times",
        "attempts=": "max_attempts max_tries tries",
        "base=": "countdown delay default_retry_delay retry_delay min_backoff interval interval_start",
        "base= and factor=": "backoff retry_backoff",
        "factor=": "interval_step multiplier exponent backoff_factor",
        "max=": "max_backoff retry_backoff_max interval_max max_delay",
        "jitter=": "retry_jitter",
    },
    "Limit": {
        "slots=": "concurrency max_concurrency max_running max_workers max",
        "slots= or rate=": "limit",
        "max_waiting=": "max_length maxlen max_size maxsize max_queued",
        "when_full=": "overflow on_full",
        "name=": "key",
        "rate= and per=": "rate_limit",
        "rate=": "max_calls calls count",
        "per=": "period interval duration window seconds",
        'how="bucket"': "bucket",
        "how=": "strategy",
        "hold=": "until",
    },
    "Key": {
        "key=": "name id",
        "window=": "ttl expires timeout period unique_for",
        "conflict=": "on_conflict",
        "shared=": "scope",
        "until=": "unique_until",
    },
    "Redrive": {
        "max_times=": "max_retries retries attempts",
        "every=": "interval",
        "backoff=": "base delay",
        "longest=": "max max_backoff",
        "limit=": "count",
    },
    "When": {
        "required=": "n need needs count",
        "of=": "status",
    },
    "Sizes": {
        "payload=": "args arguments",
        "result=": "results",
        "headers=": "meta",
    },
}
ELSEWHERE: Final = {
    kind: {name: right for right, names in by_right.items() for name in names.split()}
    for kind, by_right in _NAMES.items()
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
