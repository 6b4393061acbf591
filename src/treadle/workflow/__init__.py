"""Workflows: how compositions are written, how they are stored as rows, and how a parent ends.

Storages need no code for workflows, and no central process runs them.
"""

from treadle.workflow.approvals import Approval as Approval
from treadle.workflow.chain import chain as chain
from treadle.workflow.checks import acyclic as acyclic
from treadle.workflow.cleaning import after_cleanup as after_cleanup
from treadle.workflow.cleaning import clean_late as clean_late
from treadle.workflow.cleaning import reopened as reopened
from treadle.workflow.cleaning import whole_rows as whole_rows
from treadle.workflow.cleaning import with_steps as with_steps
from treadle.workflow.continuation import Followups as Followups
from treadle.workflow.continuation import decode_followups as decode_followups
from treadle.workflow.continuation import encode_followups as encode_followups
from treadle.workflow.continuation import followups_of as followups_of
from treadle.workflow.enqueue_args import flatten as flatten
from treadle.workflow.enqueue_args import specs_of as specs_of
from treadle.workflow.enqueue_args import waiting as waiting
from treadle.workflow.finisher import WorkflowFinisher as WorkflowFinisher
from treadle.workflow.finisher import failure_of as failure_of
from treadle.workflow.finisher import waits_again as waits_again
from treadle.workflow.flow import Conclude as Conclude
from treadle.workflow.flow import Flow as Flow
from treadle.workflow.flow import Gather as Gather
from treadle.workflow.flow import flow as flow
from treadle.workflow.flow import gather as gather
from treadle.workflow.fold import causes as causes
from treadle.workflow.fold import contributions as contributions
from treadle.workflow.fold import decode_of as decode_of
from treadle.workflow.fold import decoded as decoded
from treadle.workflow.fold import encoding_of as encoding_of
from treadle.workflow.fold import failure as failure
from treadle.workflow.fold import fatal as fatal
from treadle.workflow.subtree import cancel_subtree as cancel_subtree
from treadle.workflow.subtree import is_below as is_below
from treadle.workflow.subtree import may_have_children as may_have_children
from treadle.workflow.subtree import rows_of as rows_of
