"""Pipelines: workflows over named queues, whose steps run in order, may have children, and share one state per run.

A pipeline consists of ordinary tasks, flows and labels, and uses only the public API of an app.
"""

from treadle.contrib.pipeline.pipeline import Pipeline
from treadle.contrib.pipeline.run import Finished, PipelineRun, RunState
from treadle.contrib.pipeline.steps import Step, StepStats

__all__ = ["Finished", "Pipeline", "PipelineRun", "RunState", "Step", "StepStats"]
