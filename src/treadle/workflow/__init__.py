"""Jobs that wait for jobs: how compositions are written, what rows they become, and what they come to in the end.

Pure, all of it: without it a workflow would need code in every storage, or somebody who watches over it.
"""

from treadle.workflow.chain import chain
from treadle.workflow.flow import Conclude, Flow, Gather, flow, gather

__all__ = ["Conclude", "Flow", "Gather", "chain", "flow", "gather"]
