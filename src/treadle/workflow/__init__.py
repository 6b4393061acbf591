"""Workflows: how compositions are written, how they are stored as rows, and how a parent ends.

Storages need no code for workflows, and no central process runs them.
"""

from treadle.workflow.chain import chain
from treadle.workflow.checks import acyclic
from treadle.workflow.continuation import Followups, decode_followups, encode_followups, followups_of
from treadle.workflow.enqueue_args import flatten, waiting
from treadle.workflow.finisher import WorkflowFinisher, failure_of, rows_of, waits_again
from treadle.workflow.flow import Conclude, Flow, Gather, flow, gather
from treadle.workflow.fold import causes, contributions, decode_of, encoding_of, failure, fatal

__all__ = [
    "Conclude",
    "Flow",
    "Followups",
    "Gather",
    "WorkflowFinisher",
    "acyclic",
    "causes",
    "chain",
    "contributions",
    "decode_followups",
    "decode_of",
    "encode_followups",
    "encoding_of",
    "failure",
    "failure_of",
    "fatal",
    "flatten",
    "flow",
    "followups_of",
    "gather",
    "rows_of",
    "waiting",
    "waits_again",
]
