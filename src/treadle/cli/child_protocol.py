"""What a supervisor tells a worker process at its start, and what the process answers: one line of JSON each.

Without it both sides would have to agree on argv, and `ps` would show URLs.
"""

from __future__ import annotations

from msgspec import Struct

from treadle.compat.delayed.delivery import Delivery


class Orders(Struct, kw_only=True):
    """How to run one worker. None: the library's default."""

    app: str  # "": none of the user's; then `url` says where jobs live
    url: str | None = None
    delayed: bool = False  # delayed jobs are to be delivered, by the app or as `delivery` says
    delivery: Delivery | None = None
    ordered: bool = False
    name: str | None = None
    number: int = 1
    concurrency: int | None = None
    queues: dict[str, int] | None = None
    tasks: list[str] | None = None
    grace: float | None = None
    lease: float | None = None
    poll: float | None = None
    role: str | None = None
    loop: str = "auto"  # one of loops.LOOPS
    log_level: str = "info"
    log_json: bool = False


class Hello(Struct, kw_only=True):
    """The process claims now: as whom, where, what."""

    worker: str
    url: str
    queues: dict[str, int]
    tasks: list[str]
    slots: int
    grace: float
    strangers: dict[str, int] = {}  # tasks of jobs in those queues that this app does not have
