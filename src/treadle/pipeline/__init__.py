"""Flows over named queues: steps in a row, children of a step, and one state that travels along.

Without it each such flow would be a set of tasks that hand the same dictionary around. It is nothing but that: tasks,
flows and labels, through what everybody may use of an app.
"""

from treadle.pipeline.pipeline import Pipeline
from treadle.pipeline.run import Finished, PipelineRun, RunState
from treadle.pipeline.steps import Step, StepStats

__all__ = ["Finished", "Pipeline", "PipelineRun", "RunState", "Step", "StepStats"]
