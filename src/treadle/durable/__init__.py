"""Durable code: steps whose results are stored, so that after a crash the job continues behind the last one."""

from treadle.durable.backend import IN_BATCH as IN_BATCH
from treadle.durable.backend import REPLACED as REPLACED
from treadle.durable.backend import SWALLOWED as SWALLOWED
from treadle.durable.backend import DurableBackend as DurableBackend
from treadle.durable.backend import DurableRun as DurableRun
from treadle.durable.backend import Suspend as Suspend
from treadle.durable.backend import is_suspension as is_suspension
from treadle.durable.checkpoints import Checkpoint as Checkpoint
from treadle.durable.checkpoints import Checkpoints as Checkpoints
from treadle.durable.checkpoints import StepRequest as StepRequest
from treadle.durable.checkpoints import check_name as check_name
from treadle.durable.checkpoints import read_entry as read_entry
from treadle.durable.failures import Failure as Failure
from treadle.durable.patches import PATCHED as PATCHED
from treadle.durable.rewind import forked as forked
from treadle.durable.rewind import forked_from as forked_from
from treadle.durable.rewind import rewound as rewound
from treadle.durable.run_locks import Once as Once
from treadle.durable.run_locks import locks_of as locks_of
from treadle.durable.step_codec import signature_of as signature_of
from treadle.durable.steps import Durable as Durable
from treadle.durable.tries import PLAIN as PLAIN
from treadle.durable.tries import StepOptions as StepOptions
from treadle.durable.tries import step_options as step_options
