"""The names of the package, each with its module. Type checkers read this file, and so does `__init__.py`."""

from treadle.execution.run_outcome import Ending as Ending
from treadle.execution.run_outcome import RunOutcome as RunOutcome
from treadle.execution.runner import Runner as Runner
from treadle.execution.runner import RunnerHost as RunnerHost
from treadle.execution.runner import SystemTask as SystemTask
from treadle.execution.threads import in_thread as in_thread
from treadle.execution.transaction import Open as Open
