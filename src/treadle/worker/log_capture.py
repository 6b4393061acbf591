"""Collects the log lines that each run emits, for the stream `log` of its job: the option `capture_logs` of a worker.

The handler is added to the root logger, so it gets the records that the levels of the loggers let through. A record
belongs to the run in whose context it is emitted: in async functions, in threads, and in the child of a process task.
"""

from __future__ import annotations

import logging
from typing import Final

from treadle.core.errors import BadOption
from treadle.execution.job_run import JobRun, running_here
from treadle.policy.run_log import RunLog

LEVELS: Final = {"debug": 10, "info": 20, "warning": 30, "error": 40, "critical": 50}
_traces: Final = logging.Formatter()


def level_of(value: object) -> int | None:
    """The level of `capture_logs`: a number of `logging`, or its name. Raises BadOption."""
    if value is None or value is False:
        return None
    level = LEVELS.get(value.lower()) if isinstance(value, str) else value
    if isinstance(level, int) and not isinstance(level, bool) and 0 < level <= LEVELS["critical"]:
        return level
    raise BadOption("capture_logs", f"expected a level, such as logging.INFO or 'info', or None, found {value!r}")


class LogCapture(logging.Handler):
    """One for each worker, and one in each child process. Its methods may be called in any thread."""

    def __init__(self, level: int) -> None:
        super().__init__(level)

    def attach(self) -> None:
        """Capture from now on."""
        logging.getLogger().addHandler(self)

    def detach(self) -> None:
        """Capture no more."""
        logging.getLogger().removeHandler(self)
        self.close()

    def begin(self, run: JobRun) -> RunLog:
        """Collect the lines of this run, in the value returned."""
        run.log = log = RunLog(self, run.record.attempt + 1)
        return log

    def emit(self, record: logging.LogRecord) -> None:
        """Add the text of a record that a run of this worker has emitted."""
        run = running_here()
        log = None if run is None else run.log
        if log is not None and log.owner is self:
            try:
                log.add(record.created, record.levelname.lower(), record.name, _text(record))
            except Exception:
                self.handleError(record)  # as every handler: a message that cannot be formatted is reported
        if logging.lastResort is not None and record.levelno >= logging.lastResort.level and _is_sole(record.name):
            logging.lastResort.handle(record)  # it prints where there is no handler, and this one must not count


def _text(record: logging.LogRecord) -> str:
    text = record.getMessage()
    trace = record.exc_text or (_traces.formatException(record.exc_info) if record.exc_info else None)
    return f"{text}\n{trace}" if trace else text


def _is_sole(name: str) -> bool:
    """Whether the records of this logger reach no handler but those that capture."""
    logger: logging.Logger | None = logging.getLogger(name)
    while logger is not None:
        if any(not isinstance(handler, LogCapture) for handler in logger.handlers):
            return False
        logger = logger.parent if logger.propagate else None
    return True
