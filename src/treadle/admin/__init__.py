"""Operations on stored jobs, workflows, limits and queues: `app.jobs`, `app.dead`, `app.workflows`, `app.limits`,
`app.queues`, `app.metrics`, `app.audit` and `app.events`."""

from treadle.admin.acts import cancelled, delete_now
from treadle.admin.audit import Audit
from treadle.admin.dead import Dead
from treadle.admin.dropped_parts import dropped
from treadle.admin.emptied import EmptiedWatch
from treadle.admin.error_signature import signature
from treadle.admin.estimate import Change, Estimate, QueuePlan, Range
from treadle.admin.event_feed import EventFeed
from treadle.admin.explain.wording import set_limit, start_worker
from treadle.admin.filter_words import ENDED, UNFINISHED, words_of
from treadle.admin.job_filters import query_of, text_of
from treadle.admin.job_history import JobAttempt, JobHistory, Signal, Step
from treadle.admin.job_search import Hide, Search, near_id
from treadle.admin.jobs import Filter, Jobs
from treadle.admin.limit_holds import LimitHolds
from treadle.admin.limits import Limits
from treadle.admin.metrics import MetricsReader
from treadle.admin.moved_looks import Moved
from treadle.admin.operations import AT_ONCE, Operation, Operations, TooManyOperations, Verb
from treadle.admin.orphaned_workflows import OrphanedWorkflows
from treadle.admin.queues import Queues
from treadle.admin.selection import Selection
from treadle.admin.workflow_graph import FOLD, Graph
from treadle.admin.workflow_text import lines_of, mermaid_of
from treadle.admin.workflows import MOST, WorkflowPage, Workflows

__all__ = [
    "AT_ONCE",
    "ENDED",
    "FOLD",
    "MOST",
    "UNFINISHED",
    "Audit",
    "Change",
    "Dead",
    "EmptiedWatch",
    "Estimate",
    "EventFeed",
    "Filter",
    "Graph",
    "Hide",
    "JobAttempt",
    "JobHistory",
    "Jobs",
    "LimitHolds",
    "Limits",
    "MetricsReader",
    "Moved",
    "Operation",
    "Operations",
    "OrphanedWorkflows",
    "QueuePlan",
    "Queues",
    "Range",
    "Search",
    "Selection",
    "Signal",
    "Step",
    "TooManyOperations",
    "Verb",
    "WorkflowPage",
    "Workflows",
    "cancelled",
    "delete_now",
    "dropped",
    "lines_of",
    "mermaid_of",
    "near_id",
    "query_of",
    "set_limit",
    "signature",
    "start_worker",
    "text_of",
    "words_of",
]
