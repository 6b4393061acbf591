"""All metrics that Treadle shows to Prometheus: names, labels, kinds and help texts.

The exposition, the page of metrics in the documentation and the tests use this catalogue. No label has a worker, a
host, an id, a key, a lane, a partition or a label of a job: their number has no bound.
"""

from __future__ import annotations

from typing import Final, Literal

from msgspec import Struct

Kind = Literal["gauge", "counter", "histogram"]
Join = Literal["sum", "max", "min"]


class Metric(Struct, frozen=True):
    """One metric.

    labels  the names of its labels, in order
    join    what several values of the same labels become, such as those of all tasks that are shown as `other`
    """

    name: str
    kind: Kind
    help: str
    labels: tuple[str, ...] = ()
    join: Join = "sum"


def _gauge(name: str, help: str, *labels: str, join: Join = "sum") -> Metric:
    return Metric(f"treadle_{name}", "gauge", help, labels, join)


def _counter(name: str, help: str, *labels: str) -> Metric:
    return Metric(f"treadle_{name}", "counter", help, labels)


def _histogram(name: str, help: str, *labels: str) -> Metric:
    return Metric(f"treadle_{name}", "histogram", help, labels)


# --- what is stored

JOBS: Final = _gauge("jobs", "Stored jobs, those that have ended included.", "queue", "task", "state")
QUEUED: Final = _gauge("jobs_queued", "Ready and due jobs that a worker can claim now.", "queue", "task")
BLOCKED: Final = _gauge("jobs_blocked", "Ready jobs that a limit blocks.", "queue", "task")
OLDEST: Final = _gauge(
    "queue_oldest_seconds", "Seconds for which the first queued job has been queued; 0: none.", "queue", join="max"
)
PAUSED: Final = _gauge("queue_paused", "1 if the queue is paused, for example by an operator.", "queue", join="max")
MAX_WAITING: Final = _gauge(
    "queue_max_waiting", "Ready jobs that the queue takes; missing if it has no bound.", "queue", join="max"
)
QUEUE_WORKERS: Final = _gauge(
    "queue_workers", "Live workers that claim from the queue; one of several queues counts in each.", "queue"
)
WORKERS: Final = _gauge("workers", "Live workers.")
WORKER_SLOTS: Final = _gauge("worker_slots", "Jobs that the live workers can run at once.")
WORKER_RUNNING: Final = _gauge("worker_running", "Jobs that the live workers run, by their last heartbeats.")
LIMIT_SLOTS: Final = _gauge("limit_slots", "Slots of the limit; each partition has as many.", "limit", join="max")
LIMIT_USED: Final = _gauge("limit_used", "Slots of the limit in use, in all partitions.", "limit")
LIMIT_PARTITIONS: Final = _gauge("limit_partitions", "Partitions of the limit that are in use.", "limit")
LIMIT_BLOCKED: Final = _gauge("limit_blocked", "Jobs that the limit blocks.", "limit")
LIMIT_PAUSED: Final = _gauge("limit_paused", "1 if the limit or a partition is paused.", "limit", join="max")
SCHEDULE_NEXT: Final = _gauge(
    "schedule_next_timestamp_seconds",
    "Next tick of the schedule, in seconds since 1970; missing while it is paused.",
    "schedule",
    join="min",
)
SCHEDULE_PAUSED: Final = _gauge("schedule_paused", "1 if the schedule is paused.", "schedule", join="max")
SCHEDULE_FAILING: Final = _gauge(
    "schedule_failing", "1 if the last job of the schedule could not be enqueued.", "schedule", join="max"
)
OUTBOX_UP: Final = _gauge("outbox_up", "1 if the database of the outbox answered the last read.")
OUTBOX_ROWS: Final = _gauge("outbox_rows", "Jobs in the outbox that are not delivered yet.")
OUTBOX_OLDEST: Final = _gauge("outbox_oldest_seconds", "Age of the oldest job in the outbox, in seconds; 0: none.")
OUTBOX_FAILING: Final = _gauge("outbox_failing", "Jobs in the outbox whose last delivery was refused.")
OUTBOX_GIVEN_UP: Final = _gauge("outbox_given_up", "Jobs in the outbox that no relay tries again by itself.")
OUTBOX_RELAYED: Final = _gauge("outbox_relayed", "1 if a process relays the outbox.")
STORAGE_UP: Final = _gauge("storage_up", "1 if the storage answered the last read.")
STATS_SECONDS: Final = _gauge("stats_seconds", "Duration of the read that the values above come from, in seconds.")
STATS_AGE: Final = _gauge(
    "stats_age_seconds", "Age of the values above, in seconds; it grows while the storage is away."
)

STORED: Final = tuple(metric for metric in tuple(vars().values()) if isinstance(metric, Metric))

# --- what happens

RUNS: Final = _counter(
    "runs",
    "Runs that ended: succeeded, failed (the job is dead), retried (the attempt failed or the lease expired), other "
    "(deferred, released, cancelled, expired, or waiting for jobs).",
    "queue",
    "task",
    "outcome",
)
RUN_SECONDS: Final = _histogram(
    "run_seconds",
    "Durations of a sample of the runs, 64 a second at most; the sum is exact to 12 %.",
    "queue",
    "task",
)
WAIT_SECONDS: Final = _histogram(
    "wait_seconds",
    "Seconds from the queue to the first start of a sample of the jobs; the sum is exact to 12 %.",
    "queue",
)
ENQUEUED: Final = _counter(
    "enqueued",
    "Jobs that these processes stored, follow-up jobs and ticks included. Jobs of users' transactions are not counted.",
    "queue",
    "task",
)
LOST: Final = _counter(
    "lost", "Jobs whose lease had expired, because their worker died, when these workers claimed them.", "queue", "task"
)
LOOP_LAG: Final = _histogram("loop_lag_seconds", "How late the event loops ran, a sample every half second.")
CALL_SECONDS: Final = _histogram(
    "storage_seconds", "Durations of calls to the storage, failed ones included; the sum is exact to 12 %.", "verb"
)
CALL_ERRORS: Final = _counter("storage_errors", "Calls to the storage that failed.", "verb")
PROCESSES: Final = _gauge("worker_processes", "Live worker processes of the supervisor.")
RESTARTS: Final = _counter("worker_restarts", "Worker processes that died and were started again.")

HAPPENED: Final = tuple(
    metric for metric in tuple(vars().values()) if isinstance(metric, Metric) and metric not in STORED
)
