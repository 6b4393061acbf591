"""Log format of worker processes: each line names the job, task, attempt and worker.

`worker/job_log.py` logs the outcomes of jobs.
"""

from __future__ import annotations

import json
import logging
from typing import Any

from treadle.core.clock import moment
from treadle.core.redaction import in_json, in_line, visible
from treadle.execution.context import JobFilter

log = logging.getLogger("treadle")
FIELDS = ("job", "task", "attempt", "worker", "queue", "workflow", "trace_id", "span_id")
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


class Simple(logging.Formatter):
    """Log lines of a server or a WASI runner, in a given format."""

    def formatMessage(self, record: logging.LogRecord) -> str:
        record.message = message_of(record)
        return super().formatMessage(record)

    def formatException(self, ei: Any) -> str:
        return visible(super().formatException(ei))


class Plain(logging.Formatter):
    """Log lines for people: time, level, worker, text, and the job if there is one."""

    def format(self, record: logging.LogRecord) -> str:
        here = record.__dict__
        text = message_of(record)
        if here.get("job", "-") != "-":
            text += in_line(f"  [job={here['job']} task={here['task']} attempt={here['attempt']}]")
        if trace := _trace(self, record):
            text += f"\n{visible(trace)}"
        at = f"{moment(record.created).astimezone():%Y-%m-%d %H:%M:%S}"
        source = "" if record.name in ("treadle", "treadle.jobs") else f"{record.name}: "
        return f"{at} {record.levelname:<7} {here.get('worker', '-')}  {source}{text}"


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
        # Last: `extra=` of the user's own records.
        line |= {name: value for name, value in vars(record).items() if name not in _STANDARD and name not in line}
        return in_json(json.dumps(line, ensure_ascii=False, default=str))


def simple(template: str) -> None:
    """Log to stderr in this format."""
    handler = logging.StreamHandler()
    handler.setFormatter(Simple(template))
    logging.basicConfig(level=logging.INFO, handlers=[handler])


def set_up(worker: str, level: str, as_json: bool) -> None:
    """Log to stderr, unless the user's app has already added a handler to the root logger."""
    filter_ = Named(worker)
    root = logging.getLogger()
    if not root.handlers:
        handler = logging.StreamHandler()
        handler.setFormatter(Json() if as_json else Plain())
        root.addHandler(handler)
        root.setLevel(level.upper())
    for handler_ in root.handlers:
        handler_.addFilter(filter_)
    log.setLevel(level.upper())
