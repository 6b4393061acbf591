"""Operations on stored jobs, workflows, limits and queues: `app.jobs`, `app.dead`, `app.workflows`, `app.limits`,
`app.queues`, `app.metrics`, `app.audit` and `app.events`."""

from treadle.admin.audit import Audit
from treadle.admin.dead import Dead
from treadle.admin.estimate import Change, Estimate, QueuePlan, Range
from treadle.admin.event_feed import EventFeed
from treadle.admin.job_history import JobAttempt, JobHistory, Signal, Step
from treadle.admin.jobs import Filter, Jobs
from treadle.admin.limit_holds import LimitHolds
from treadle.admin.limits import Limits
from treadle.admin.metrics import MetricsReader
from treadle.admin.operations import Operations
from treadle.admin.orphaned_workflows import OrphanedWorkflows
from treadle.admin.queues import Queues
from treadle.admin.workflows import Workflows

__all__ = [
    "Audit",
    "Change",
    "Dead",
    "Estimate",
    "EventFeed",
    "Filter",
    "JobAttempt",
    "JobHistory",
    "Jobs",
    "LimitHolds",
    "Limits",
    "MetricsReader",
    "Operations",
    "OrphanedWorkflows",
    "QueuePlan",
    "Queues",
    "Range",
    "Signal",
    "Step",
    "Workflows",
]
