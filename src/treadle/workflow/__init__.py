"""Workflows: how compositions are written, how they are stored as rows, and how a parent ends.

Storages need no code for workflows, and no central process runs them.
"""

from treadle.workflow.chain import chain
from treadle.workflow.flow import Conclude, Flow, Gather, flow, gather

__all__ = ["Conclude", "Flow", "Gather", "chain", "flow", "gather"]
