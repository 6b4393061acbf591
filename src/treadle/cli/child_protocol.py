"""The messages between a supervisor and a worker process: lines of JSON.

They go through a socket, because URLs in argv would be visible in `ps`. The first line is the Orders. After that the
supervisor sends requests, and the worker process sends its Hello and one reply to each Probe and Count, from its event
loop. It also sends its last numbers when it stops.
"""

from __future__ import annotations

from msgspec import Struct

from treadle.compat.delayed.delivery import Delivery
from treadle.metrics import Numbers
from treadle.worker import WorkerHealth


class Orders(Struct, kw_only=True):
    """How to run one worker; sent by the supervisor. None: the library's default."""

    app: str  # "": no app of the user; `url` is the storage
    search: bool = False  # no app was named: the process finds the only one of the project
    found: str = ""  # what it found
    url: str | None = None
    delayed: bool = False  # deliver delayed jobs: to the app's own handler, or by `delivery`
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
    loop: str = "auto"  # one of event_loop.LOOPS
    log_level: str = "info"
    log_json: bool = False
    metrics: bool = True
    relay: bool = True
    capture_logs: str | None = None  # a level; None: log lines are not kept
    labels: dict[str, str] = {}
    resources: dict[str, int] = {}  # of each process
    count: bool = False  # the supervisor sends Count


class Probe(Struct, tag="probe"):
    """Asks for the Vitals. Sent when the last one has been answered, so that at most one waits."""


class Drain(Struct, tag="drain"):
    """Claim no more, let the running jobs end, then exit: the process is replaced."""

    reason: str
    grace: float  # s


class Count(Struct, tag="count"):
    """Asks for the Counted."""


class Vitals(Struct, tag="vitals"):
    """The reply to a Probe."""

    health: WorkerHealth
    memory: int  # bytes, resident


class Counted(Struct, tag="counted"):
    """The reply to a Count: what the process has counted since it started."""

    numbers: Numbers


class Hello(Struct, kw_only=True, tag="hello"):
    """Sent by the worker process when it starts to claim: its name, storage, queues and tasks."""

    worker: str
    url: str
    queues: dict[str, int]
    tasks: list[str]
    slots: int
    grace: float
    found: str = ""  # the app that was searched for, and its modules
    labels: dict[str, str] = {}
    resources: dict[str, int] = {}
    misplaced: list[str] = []  # tasks whose needs the worker does not meet
    strangers: dict[str, int] = {}  # unfinished jobs in those queues per task that this app does not have


Request = Probe | Drain | Count
Message = Hello | Vitals | Counted
