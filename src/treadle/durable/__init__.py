"""Durable code: steps whose results are stored, so that after a crash the job continues behind the last one."""

from treadle.durable.checkpoints import Checkpoint as Checkpoint
from treadle.durable.checkpoints import Checkpoints as Checkpoints
from treadle.durable.checkpoints import Failure as Failure
from treadle.durable.checkpoints import StepRequest as StepRequest
from treadle.durable.checkpoints import check_name as check_name
from treadle.durable.checkpoints import error_of as error_of
from treadle.durable.checkpoints import read_entry as read_entry
from treadle.durable.run_locks import Once as Once
from treadle.durable.run_locks import locks_of as locks_of
from treadle.durable.step_codec import signature_of as signature_of
from treadle.durable.steps import IN_BATCH as IN_BATCH
from treadle.durable.steps import REPLACED as REPLACED
from treadle.durable.steps import SWALLOWED as SWALLOWED
from treadle.durable.steps import Durable as Durable
from treadle.durable.steps import DurableBackend as DurableBackend
from treadle.durable.steps import DurableRun as DurableRun
from treadle.durable.steps import Suspend as Suspend
from treadle.durable.steps import is_suspension as is_suspension
