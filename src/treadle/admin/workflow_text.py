"""The drawing of a workflow as lines of a table, and as a Mermaid diagram. Pure."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

from msgspec import Struct

from treadle.admin.workflow_graph import Graph, Node
from treadle.workflow.plan import FLOW

_PLAIN: Final = re.compile(r"[A-Za-z0-9 _.,-]")
CLASSES: Final = {
    "succeeded": "fill:#d8f0dc,stroke:#2f7a3d,color:#000",
    "failed": "fill:#f8d9d6,stroke:#a62b1f,color:#000",
    "cancelled": "fill:#eee3c9,stroke:#7a6425,color:#000",
    "running": "fill:#d5e8f7,stroke:#1f6396,color:#000",
    "ready": "fill:#f4f4f4,stroke:#666,color:#000",
    "waiting": "fill:#fff,stroke:#999,color:#000",
}


class Line(Struct, frozen=True):
    """One node of the drawing. `after`: the numbers of the nodes that lead to it."""

    number: int
    task: str
    state: str
    jobs: int
    after: Sequence[int]
    id: str
    note: str | None


def lines_of(graph: Graph) -> list[Line]:
    """The nodes column by column, from top to bottom, numbered from 1."""
    nodes = _ordered(graph)
    number = {node.id: index for index, node in enumerate(nodes, 1)}
    ups: dict[str, list[int]] = {node.id: [] for node in nodes}
    for edge in graph.edges:
        ups[edge.end].append(number[edge.start])
    return [
        Line(
            number[node.id],
            _name(node),
            _states(node),
            node.jobs,
            sorted(ups[node.id]),
            "" if node.kind == "fold" else node.id,
            node.note,
        )
        for node in nodes
    ]


def mermaid_of(graph: Graph) -> str:
    """The text of a Mermaid flowchart. No text of a job can change its structure."""
    nodes = _ordered(graph)
    number = {node.id: index for index, node in enumerate(nodes, 1)}
    lines = ["flowchart LR"]
    for node in nodes:
        index = number[node.id]
        if node.kind == "joint":
            lines.append(f"  n{index}(( )):::{node.state}")
            continue
        many = f" x {node.jobs:,}" if node.jobs > 1 else ""
        lines.append(f'  n{index}["{_escaped(_name(node))}{many}<br/>{_states(node)}"]:::{node.state}')
    lines += [f"  n{number[edge.start]} --> n{number[edge.end]}" for edge in graph.edges]
    lines += [f"  classDef {state} {CLASSES[state]}" for state in sorted({str(node.state) for node in nodes})]
    return "\n".join(lines)


def _ordered(graph: Graph) -> list[Node]:
    return sorted(graph.nodes, key=lambda node: (node.x + node.width / 2, node.y))


def _name(node: Node) -> str:
    return "(joint)" if node.task == FLOW else node.task


def _states(node: Node) -> str:
    return ", ".join(sorted(node.states))


def _escaped(text: str) -> str:
    """The text with every character but letters, digits and a few signs as a code that Mermaid shows as it is."""
    cut = text if len(text) <= 80 else f"{text[:77]}..."
    return "".join(char if _PLAIN.fullmatch(char) else f"#{ord(char)};" for char in cut)
