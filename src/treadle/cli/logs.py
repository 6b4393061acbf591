"""What a worker process logs: job, task, attempt and worker in every line, and a line for what went wrong with a job.

Without it a line in the log could not be told from those of the nineteen jobs beside it.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable

from treadle.app import App
from treadle.clock import moment
from treadle.context import JobFilter
from treadle.events import Event

log = logging.getLogger("treadle")
FIELDS = ("job", "task", "attempt", "worker")
LEVELS = {
    "started": logging.DEBUG, "succeeded": logging.DEBUG, "deferred": logging.INFO, "cancelled": logging.INFO,
    "retrying": logging.WARNING, "lost": logging.WARNING, "failed": logging.ERROR, "expired": logging.ERROR,
}  # fmt: skip


class Named(JobFilter):
    """JobFilter, with the worker's name also outside a job, and the values a line brings itself."""

    def __init__(self, worker: str) -> None:
        super().__init__()
        self.worker = worker

    def filter(self, record: logging.LogRecord) -> bool:
        own = {name: value for name in FIELDS if (value := record.__dict__.get(name)) is not None}
        super().filter(record)
        record.__dict__.update(own)
        if record.__dict__["worker"] == "-":
            record.__dict__["worker"] = self.worker
        return True


class Plain(logging.Formatter):
    """For people: moment, level, worker, text, and the job if there is one."""

    def format(self, record: logging.LogRecord) -> str:
        here = record.__dict__
        text = record.getMessage()
        if here.get("job", "-") != "-":
            text += f"  [job={here['job']} task={here['task']} attempt={here['attempt']}]"
        if record.exc_info:
            text += "\n" + self.formatException(record.exc_info)
        at = f"{moment(record.created).astimezone():%Y-%m-%d %H:%M:%S}"
        source = "" if record.name == "treadle" else f"{record.name}: "
        return f"{at} {record.levelname:<7} {here.get('worker', '-')}  {source}{text}"


class Json(logging.Formatter):
    """For programs: one JSON object a line."""

    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, object] = {
            "at": moment(record.created).isoformat(timespec="milliseconds"), "level": record.levelname.lower(),
            "logger": record.name, "text": record.getMessage(),
        }  # fmt: skip
        line |= {name: value for name in FIELDS if (value := record.__dict__.get(name, "-")) != "-"}
        if record.exc_info:
            line["error"] = self.formatException(record.exc_info)
        return json.dumps(line, ensure_ascii=False, default=str)


def set_up(worker: str, level: str, as_json: bool) -> None:
    """Log to stderr. A handler the user's app has put on the root logger before stays, and ours is not added."""
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


def tell_of_jobs(app: App) -> None:
    """A line for each thing that happens to a job, at its level; what nobody reads is not listened for."""
    for name, level in LEVELS.items():
        if log.isEnabledFor(level):
            app.on(name)(_teller(name, level))


def _teller(name: str, level: int) -> Callable[[Event], None]:
    def tell(event: Event) -> None:
        last = str(event.error or "").strip().splitlines()
        because = f": {last[-1]}" if last else ""
        later = f"; again in {event.delay:.1f} s" if event.delay is not None else ""
        log.log(level, "%s %s%s%s", event.task, name, because, later,
                extra={"job": event.id, "task": event.task, "attempt": event.attempt})  # fmt: skip

    return tell
