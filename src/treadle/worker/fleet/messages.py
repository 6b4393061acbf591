"""The messages between a supervisor and a worker process: lines of JSON.

They go through a socket, because URLs in argv would be visible in `ps`. The first line is the Orders. After that the
supervisor sends requests, and the worker process sends its Hello and one reply to each Probe, Count, NoteDeath and
RenewFor, from its event loop. It also sends its last numbers when it stops.

The package may be upgraded under a running supervisor, so the supervisor and its processes may have different versions.
`Orders.helps` and `Hello.helps` say that the other side knows the messages about the jobs of other processes and about
trials.
"""

from __future__ import annotations

from typing import Any, Final, Literal

from msgspec import Struct

from treadle.core import defaults
from treadle.metrics import Numbers
from treadle.worker import Death, Lease, Place, Suspect, WorkerHealth

OPTIONS: Final = (  # options of a worker; None: the library's default
    *("ordered", "concurrency", "queues", "tasks", "grace", "lease", "poll", "role"),
    *("metrics", "relay", "capture_logs", "labels", "resources"),
)


class Orders(Struct, kw_only=True):
    """How to run one worker; sent by the supervisor. None: the library's default."""

    app: str  # "": no app of the user; `url` is the storage
    search: bool = False  # no app was named: the process finds the only one of the project
    found: str = ""  # the name of the app that was found
    url: str | None = None
    delayed: bool = False  # deliver delayed jobs: to the app's own handler, or by `delivery`
    delivery: dict[str, Any] | None = None  # how, as `GuestProtocol.handling` returns it
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
    resources: dict[str, int] = {}  # resources of each process
    count: bool = False  # the supervisor sends Count
    helps: bool = False  # the supervisor knows Suspects, Trial, Stopping and Found
    trial: bool = False  # it claims nothing, and runs the suspects that it gets, one at a time

    def worker_options(self) -> dict[str, Any]:
        """The arguments of a `Worker` that these orders name."""
        return {name: value for name in OPTIONS if (value := getattr(self, name)) is not None}

    @property
    def lease_or_default(self) -> float:
        return defaults.LEASE if self.lease is None else self.lease


class Probe(Struct, tag="probe"):
    """Asks for the Vitals. Sent when the last one has been answered, so that at most one waits."""


class Drain(Struct, tag="drain"):
    """Claim no more, let the running jobs end, then exit: the process is replaced."""

    reason: str
    grace: float  # s


class Count(Struct, tag="count"):
    """Asks for the Counted."""


class NoteDeath(Struct, tag="death"):
    """Asks to note the end of another process in its jobs, and to end their leases; replied to by Found."""

    number: int  # number of the request, which the reply repeats
    death: Death


class RenewFor(Struct, tag="renew"):
    """Asks to renew the leases of another process, which is stuck; replied to by Found."""

    number: int
    worker: str
    jobs: list[Lease] = []  # leases that it has besides those under its name


class Try(Struct, tag="try"):
    """Asks a trial process to run this suspect; it sends a Trial at each stage."""

    suspect: Suspect


class HandOver(Struct, tag="hand_over"):
    """Asks to leave this suspect to a trial process; replied to by HandedOver.

    explained  workers whose end other suspects explain
    """

    suspect: Suspect
    explained: list[str] = []


class TrialsFailed(Struct, tag="trials_failed"):
    """No trial process could start: the holder tries its suspects itself."""


class Vitals(Struct, tag="vitals"):
    """The reply to a Probe.

    threads  the native id, the identifier and the name of each thread of Python, the main thread first
    lease    seconds of the shortest lease that it renews
    """

    health: WorkerHealth
    memory: int  # bytes, resident
    threads: list[tuple[int, int, str]] = []
    lease: float = 0.0


class Counted(Struct, tag="counted"):
    """The reply to a Count: what the process has counted since it started."""

    numbers: Numbers


class Hello(Struct, kw_only=True, tag="hello"):
    """Sent by the worker process before its first claim: its name, storage, queues and tasks."""

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
    notes: list[str] = []  # why producers may use another file
    helps: bool = False  # it answers NoteDeath and RenewFor


class Found(Struct, tag="found"):
    """The reply to NoteDeath and RenewFor: the jobs of that process. None: the storage did not answer."""

    number: int
    jobs: list[Place] | None


class Stopping(Struct, tag="stopping"):
    """It stops on request, from a signal or a message: the jobs that it leaves behind are not a sign of a crash."""


class Suspects(Struct, tag="suspects"):
    """It holds these suspects, and asks to have them tried."""

    suspects: list[Suspect]


class HandedOver(Struct, tag="handed_over"):
    """The reply to HandOver.

    held  from now on it no longer renews this lease or releases the job. False: it does not hold it any more
    """

    suspect: Suspect
    held: bool


class Trial(Struct, tag="trial"):
    """Sent by a trial process for the suspect of a Try.

    taken   it runs the suspect from now on
    ended   the outcome of that run is stored, or the suspect is another one's now
    """

    suspect: Suspect
    stage: Literal["taken", "ended"]


Request = Probe | Drain | Count | NoteDeath | RenewFor | Try | HandOver | TrialsFailed
Message = Hello | Vitals | Counted | Found | Stopping | Suspects | HandedOver | Trial
