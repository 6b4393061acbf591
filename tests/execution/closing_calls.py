"""An app with a middleware that flushes, and a task of kind "process", which test_layer_life.py runs in a process."""

from __future__ import annotations

import os
from pathlib import Path

from treadle import App, Middleware

app = App("memory://")


@app.middleware
class Flushes(Middleware):
    def close_process(self) -> None:
        Path(os.environ["FLUSHED"]).write_text(f"flushed by {os.getpid()}")


@app.task(kind="process")
def pid() -> int:
    return os.getpid()
