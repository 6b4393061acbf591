"""The interface between handlers and their pipeline: its steps, its app, and the jobs that follow."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

from treadle.app import App
from treadle.contrib.pipeline.steps import Step, Travel
from treadle.core.job import JobSpec


class PipelineJobs(Protocol):
    """The part of `Pipeline` that its handlers use."""

    name: str
    app: App

    @property
    def steps(self) -> Mapping[str, Step]: ...
    def task_of(self, step: str, child: str = "") -> str: ...
    def child_of(self, task: str) -> str | None: ...
    def enter(self, name: str, travel: Travel) -> JobSpec[Any, Any]: ...
    def child_job(self, step: Step, child: str, travel: Travel) -> JobSpec[Any, Any]: ...
    def finish(self, step: Step, travel: Travel) -> JobSpec[Any, Any]: ...
