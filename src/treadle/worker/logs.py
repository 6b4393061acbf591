"""Log format of worker processes: each line names the job, task, attempt and worker.

`worker/job_log.py` logs the outcomes of jobs. Only a record begins a line without an indent: messages and tracebacks
may quote a sender, whose text must not look like another record.
"""

from __future__ import annotations

import json
import logging
import sys

from treadle.core.clock import moment
from treadle.core.redaction import in_json, in_line, visible
from treadle.execution.context import JobFilter

log = logging.getLogger("treadle")
FIELDS = ("job", "task", "attempt", "worker", "queue", "workflow", "trace_id", "span_id")
EXPORTERS = ("opentelemetry", "sentry_sdk")  # packages whose handlers send records away and print nothing
_STANDARD = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName", *FIELDS}


class Named(JobFilter):
    """A JobFilter that sets the worker's name outside jobs, too."""

    def __init__(self, worker: str) -> None:
        super().__init__()
        self.worker = worker

    def filter(self, record: logging.LogRecord) -> bool:
        super().filter(record)
        if record.__dict__["worker"] == "-":
            record.__dict__["worker"] = self.worker
        return True


def _trace(formatter: logging.Formatter, record: logging.LogRecord) -> str | None:
    """The traceback of a record: the text that it carries, or that of its exception."""
    return record.exc_text or (formatter.formatException(record.exc_info) if record.exc_info else None)


def message_of(record: logging.LogRecord) -> str:
    """The text of a record without control characters.

    A message of Treadle is kept to one line, because it may quote a sender. The user's own messages keep line breaks.
    """
    text = record.getMessage()
    return in_line(text) if record.name.partition(".")[0] == "treadle" else visible(text)


def indented(text: str) -> str:
    """The text without control characters, and with an indent before each line after the first."""
    return visible(text).replace("\n", "\n    ")


def _time(record: logging.LogRecord) -> str:
    """In UTC, as the times in messages: Django gives the processes that import a project another zone."""
    return f"{moment(record.created):%Y-%m-%d %H:%M:%SZ}"


class Simple(logging.Formatter):
    """Log lines of a server or a WASI runner, in a given format."""

    def formatTime(self, record: logging.LogRecord, datefmt: str | None = None) -> str:
        return _time(record)

    def formatMessage(self, record: logging.LogRecord) -> str:
        record.message = message_of(record)
        return super().formatMessage(record)

    def format(self, record: logging.LogRecord) -> str:
        return indented(super().format(record))


class Plain(logging.Formatter):
    """Log lines for people: time in UTC, level, worker, text, and the job if there is one."""

    def format(self, record: logging.LogRecord) -> str:
        here = record.__dict__
        text = message_of(record)
        if here.get("job", "-") != "-":
            text += in_line(f"  [job={here['job']} task={here['task']} attempt={here['attempt']}]")
        for more in (_trace(self, record), record.stack_info):
            if more:
                text += f"\n{more}"
        source = "" if record.name in ("treadle", "treadle.jobs") else f"{record.name}: "
        return indented(f"{_time(record)} {record.levelname:<7} {here.get('worker', '-')}  {source}{text}")


class Json(logging.Formatter):
    """Log lines for programs: one JSON object per line."""

    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, object] = {
            "at": moment(record.created).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "text": record.getMessage(),
        }
        line |= {name: value for name in FIELDS if (value := record.__dict__.get(name, "-")) != "-"}
        if trace := _trace(self, record):
            line["error"] = trace
        if record.stack_info:
            line["stack"] = record.stack_info
        # Last: `extra=` of the user's own records.
        own = {str(name): value for name, value in vars(record).items() if name not in _STANDARD}
        line |= {f"extra_{name}" if name in line else name: value for name, value in own.items()}
        return in_json(_encoded(line))


def _encoded(line: dict[str, object]) -> str:
    """One JSON object, whatever the user's values are: those that JSON has no form for are text."""
    try:
        return _dumps(line)
    except (TypeError, ValueError, RecursionError):  # a key that is no text, NaN, a cycle, 1,000 nested lists
        return _dumps({name: _alone(value) for name, value in line.items()})


def _alone(value: object) -> object:
    try:
        _dumps(value)
    except (TypeError, ValueError, RecursionError):
        return _text(value)
    return value


def _dumps(value: object) -> str:
    return json.dumps(value, ensure_ascii=False, allow_nan=False, default=_text)


def _text(value: object) -> str:
    try:
        return str(value)
    except Exception as error:  # also a RecursionError of nested lists
        return f"<{type(value).__name__}: no text, {type(error).__name__}>"


def simple(template: str) -> None:
    """Log to stderr in this format, unless the program logs already."""
    _to_stderr(Simple(template), "INFO")


def set_up(worker: str, level: str, as_json: bool) -> None:
    """Log to stderr, unless the user's app has already added a handler to the root logger."""
    filter_ = Named(worker)
    _to_stderr(Json() if as_json else Plain(), level.upper())
    for handler in logging.getLogger().handlers:
        handler.addFilter(filter_)
    log.setLevel(level.upper())


def not_printed_yet(record: logging.LogRecord) -> bool:
    """Whether no handler below the root prints this record to the terminal. Django's does with DEBUG."""
    logger: logging.Logger | None = logging.getLogger(record.name)
    while logger is not None and logger.parent is not None:
        for handler in logger.handlers:
            on_terminal = getattr(handler, "stream", None) in (sys.stderr, sys.stdout)
            if on_terminal and record.levelno >= handler.level and handler.filter(record):
                return False
        logger = logger.parent
    return True


def switch_on() -> None:
    """Let Treadle log although the app called `logging.config.dictConfig`, which disables by default all loggers that
    it does not name: failed jobs would leave no line. A level silences Treadle as before."""
    for name, logger in logging.root.manager.loggerDict.items():
        if name.partition(".")[0] == "treadle" and isinstance(logger, logging.Logger):
            logger.disabled = False


def _to_stderr(formatter: logging.Formatter, level: str) -> None:
    switch_on()
    root = logging.getLogger()
    if all(type(handler).__module__.partition(".")[0] in EXPORTERS for handler in root.handlers):
        handler = logging.StreamHandler()
        handler.setFormatter(formatter)
        handler.addFilter(not_printed_yet)
        root.addHandler(handler)
        root.setLevel(level)
