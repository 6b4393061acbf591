"""What handlers need of the pipeline they belong to: its steps, its app, and the jobs that come next."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

from treadle.app import App
from treadle.core.job import JobSpec
from treadle.pipeline.steps import Step, Travel


class PipelineJobs(Protocol):
    """The side of `Pipeline` that its handlers use."""

    name: str
    app: App

    @property
    def steps(self) -> Mapping[str, Step]: ...
    def task_of(self, step: str, child: str = "") -> str: ...
    def child_of(self, task: str) -> str | None: ...
    def enter(self, name: str, travel: Travel) -> JobSpec[Any, Any]: ...
    def child_job(self, step: Step, child: str, travel: Travel) -> JobSpec[Any, Any]: ...
    def finish(self, step: Step, travel: Travel) -> JobSpec[Any, Any]: ...
