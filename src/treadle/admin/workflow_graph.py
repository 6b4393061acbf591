"""The graph of a workflow: which job leads to which, with many equal jobs folded into one node. Pure.

Rows of the task `treadle.flow` have no function; they are drawn as joints. A job that continued as other jobs leads to
them, and whatever waits for that job waits for the last of them.
"""

from __future__ import annotations

import hashlib
import re
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Final, Literal

from msgspec import Struct

from treadle.admin.layered_layout import Edge, layout, order_of, reduced
from treadle.core.errors import error_line
from treadle.core.model import Record, State, progress_of
from treadle.workflow.approvals import request_name
from treadle.workflow.plan import CONCLUDED, FLOW
from treadle.workflow.signals import signal_name

FOLD: Final = 12  # equal siblings that are shown one by one
SHOWN: Final = 500  # nodes of one drawing: more cannot be read, and slow a browser down
ENDS: Final = 50  # last jobs below a job that lead to what waits for it; with more, the job itself leads there
ARROWS: Final = 100_000  # edges from job to job that a drawing may have: 0.3 s
STEPS: Final = 100_000  # jobs that are looked at to find those last ones: 0.1 s
JOB: Final = (184.0, 44.0)  # width and height
JOINT: Final = (12.0, 12.0)
OPENED: Final = 1_000  # groups that one call unfolds

Kind = Literal["job", "joint", "fold"]


class Node(Struct, frozen=True, kw_only=True):
    """One box of the drawing.

    id      the id of a job; for a fold, the name of the group, which `open` unfolds
    kind    joint: a row without a function, where jobs meet; fold: several jobs of one task and state
    note    the progress of a running job, the error of a failed one, or the signal that a job waits for
    """

    id: str
    task: str
    state: State
    x: float
    y: float
    width: float
    height: float
    kind: Kind
    jobs: int = 1
    states: Mapping[str, int]
    note: str | None = None
    workflow_value: bool = False


class Arrow(Struct, frozen=True, rename={"start": "from", "end": "to"}):
    """One edge, and the points it passes."""

    start: str
    end: str
    path: Sequence[tuple[float, float]]


class Graph(Struct, frozen=True, kw_only=True):
    """A workflow, drawn from left to right.

    total   jobs of the workflow that were read; shown: those in the drawing, also inside folds
    capped  some jobs or arrows are not shown, or the workflow has more than were read
    """

    width: float
    height: float
    nodes: Sequence[Node]
    edges: Sequence[Arrow]
    total: int
    shown: int
    capped: bool


def graph(
    rows: Sequence[Record],
    *,
    fold: int = FOLD,
    open: Collection[str] = (),
    more: bool = False,
    hide: Callable[[Record], Record] | None = None,
) -> Graph:
    """The drawing of these rows of one workflow.

    fold  siblings of the same task and state are one node if there are more than this many
    open  folds to show job by job
    more  the workflow has further rows
    """
    jobs = {row.id: row for row in rows if row.job.task}
    ids, downs, is_whole = _arrows(jobs)
    for most in (fold, 1):
        drawn = _folded(jobs, ids, downs, most, open)
        if len(drawn) <= SHOWN:
            break
    names = list(drawn)[:SHOWN]
    shown = {name: drawn[name] for name in names}
    node_of = {id: name for name, members in shown.items() for id in members}
    edges = dict.fromkeys(
        (node_of[id], node_of[down])
        for id in ids
        if id in node_of
        for down in downs[id]
        if down in node_of and node_of[down] != node_of[id]
    )
    order, below = order_of(names, list(edges))
    kept = [(id, down) for id, downs in reduced(order, below).items() for down in downs]
    return _drawing(rows, jobs, shown, kept, more or not is_whole, hide)


# --- what leads to what


def _arrows(jobs: Mapping[str, Record]) -> tuple[list[str], dict[str, list[str]], bool]:
    """The ids in an order in which arrows lead forward, what each job leads to, and whether these are all arrows."""
    edges: list[Edge] = []
    children = {id: _children(row, jobs) for id, row in jobs.items()}
    continued = {id for id, below in children.items() if below and jobs[id].job.task != FLOW}
    ends = _Ends(children, jobs)
    for id, row in jobs.items():
        for up in _ups(row)[: max(0, ARROWS - len(edges))]:
            if up in continued and id not in children[up]:
                edges += [(end, id) for end in ends.of(up)]
            edges.append((up, id))
        if id in continued:
            edges += [(id, child) for child in children[id]]
    is_whole = len(edges) < ARROWS
    led = {end for _, end in edges}
    for id, row in jobs.items():  # such as the parts of a flow that is itself a child
        if id not in led and row.job.parent in continued:
            edges.append((row.job.parent or "", id))
    return (*order_of(list(jobs), edges), is_whole)


def _ups(row: Record) -> Sequence[str]:
    """The jobs that a job waited for before it ran, or that a joint waits for."""
    return row.after if row.job.task == FLOW or not row.function_done else row.job.after


def _children(row: Record, jobs: Mapping[str, Record]) -> list[str]:
    """The jobs that a run continued as."""
    if not row.function_done or row.job.task == FLOW:
        return []
    return [id for id in dict.fromkeys(row.after) if id in jobs and jobs[id].job.parent == row.id]


class _Ends:
    """The last jobs below a job: children that no other child waits for, and so on below them. Each search is made
    once, and all of them look at STEPS jobs at most; after that the job itself leads to what waits for it."""

    def __init__(self, children: Mapping[str, Sequence[str]], jobs: Mapping[str, Record]) -> None:
        self._children, self._jobs, self._left = children, jobs, STEPS
        self._found: dict[str, list[str]] = {}

    def of(self, id: str) -> list[str]:
        if id not in self._found:
            self._found[id] = self._look(id)
        return self._found[id]

    def _look(self, id: str) -> list[str]:
        ends: list[str] = []
        pending, seen = list(self._children[id]), {id}
        while pending:
            one = pending.pop()
            if one in seen:
                continue
            seen.add(one)
            below = self._children[one]
            self._left -= 1 + sum(len(_ups(self._jobs[child])) for child in below)
            if len(ends) > ENDS or self._left < 0:
                return []
            waited = {up for child in below for up in _ups(self._jobs[child])}
            if below:
                pending += [child for child in below if child not in waited]
            else:
                ends.append(one)
        return ends if len(ends) <= ENDS else []


# --- folding


def _folded(
    jobs: Mapping[str, Record],
    ids: Sequence[str],
    downs: Mapping[str, Sequence[str]],
    most: int,
    open: Collection[str],
) -> dict[str, list[str]]:
    """The nodes of the drawing, and the jobs of each. Jobs are equal if they have the same task, state and parent, and
    the same nodes lead to them; so what follows folded jobs, one by one, is folded too."""
    ups: dict[str, list[str]] = {id: [] for id in ids}
    depth = dict.fromkeys(ids, 0)
    for id in ids:
        for down in downs[id]:
            ups[down].append(id)
            depth[down] = max(depth[down], depth[id] + 1)
    levels: list[list[str]] = [[] for _ in range(max(depth.values(), default=-1) + 1)]
    for id in ids:
        levels[depth[id]].append(id)
    node_of: dict[str, str] = {}
    nodes: dict[str, list[str]] = {}
    opened = {_stem(name) for name in list(open)[:OPENED]}
    for level in levels:
        groups: dict[tuple[str, State], list[str]] = {}
        for id in level:
            stem = "" if jobs[id].job.task == FLOW else _name(jobs[id], {node_of[up] for up in ups[id]})
            groups.setdefault((stem or id, jobs[id].state), []).append(id)
        for (stem, state), members in groups.items():
            folds = len(members) > most and stem not in opened
            for name, part in ((f"{stem}:{state}", members),) if folds else ((id, [id]) for id in members):
                nodes[name] = part
                node_of.update(dict.fromkeys(part, name))
    return nodes


def _name(row: Record, ups: set[str]) -> str:
    parts = "\x1f".join((row.job.task, row.job.parent or "", *sorted(ups)))
    return f"fold:{hashlib.blake2b(parts.encode(errors='backslashreplace'), digest_size=8).hexdigest()}"


def _stem(name: str) -> str:
    """The name of a fold without its state: jobs that change their state meanwhile stay unfolded."""
    return ":".join(name.split(":")[:2])


# --- the drawing


def _drawing(
    rows: Sequence[Record],
    jobs: Mapping[str, Record],
    shown: Mapping[str, Sequence[str]],
    edges: Sequence[Edge],
    more: bool,
    hide: Callable[[Record], Record] | None,
) -> Graph:
    waits = {row.job.parent: name for row in rows if not row.state.final and (name := _waited_for(row)) is not None}
    sizes = {name: JOINT if len(ids) == 1 and jobs[ids[0]].job.task == FLOW else JOB for name, ids in shown.items()}
    drawn = layout(sizes, edges)
    nodes = []
    for name, ids in shown.items():
        box, (width, height), first = drawn.boxes[name], sizes[name], jobs[ids[0]]
        kind: Kind = "joint" if sizes[name] == JOINT else "fold" if name not in jobs else "job"
        nodes.append(
            Node(
                id=name,
                task=first.job.task,
                state=first.state,
                x=round(box.x, 1),
                y=round(box.y, 1),
                width=width,
                height=height,
                kind=kind,
                jobs=len(ids),
                states=dict(Counter(str(jobs[id].state) for id in ids)),
                note=_note(hide(first) if hide else first, waits.get(first.id)) if kind == "job" else None,
                workflow_value=first.job.root is None or first.reason == CONCLUDED,
            )
        )
    arrows = [Arrow(a, b, [(round(x, 1), round(y, 1)) for x, y in path]) for (a, b), path in drawn.paths.items()]
    count = sum(len(ids) for ids in shown.values())
    return Graph(
        width=round(drawn.width, 1),
        height=round(drawn.height, 1),
        nodes=nodes,
        edges=arrows,
        total=len(jobs),
        shown=count,
        capped=more or count < len(jobs),
    )


def _waited_for(row: Record) -> str | None:
    """The row of a signal or a request for approval in words; None for another row."""
    if (request := request_name(row)) is not None:
        return f"the decision {request}"
    return None if (signal := signal_name(row)) is None else f"the signal {signal}"


def _note(row: Record, waits: str | None) -> str | None:
    if waits is not None:
        return f"waits for {waits}"
    if row.state is State.FAILED:
        return error_line(row.error) or row.reason
    if row.state is State.READY and row.queue_position is None and row.blocked_on is not None:
        return f"blocked by {row.blocked_on}"
    share, text = progress_of(row.note) if row.state is State.RUNNING else (None, None)
    return text if share is None else f"{share:.0%} {text or ''}".strip()


# --- as text
#
# The drawing of a workflow as lines of a table, and as a Mermaid diagram. Pure.


_PLAIN: Final = re.compile(r"[A-Za-z0-9 _.,-]")
CLASSES: Final = {
    "succeeded": "fill:#d8f0dc,stroke:#2f7a3d,color:#000",
    "failed": "fill:#f8d9d6,stroke:#a62b1f,color:#000",
    "cancelled": "fill:#eee3c9,stroke:#7a6425,color:#000",
    "running": "fill:#d5e8f7,stroke:#1f6396,color:#000",
    "ready": "fill:#f4f4f4,stroke:#666,color:#000",
    "waiting": "fill:#fff,stroke:#999,color:#000",
}

# --- as text


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
            _shown_name(node),
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
        lines.append(f'  n{index}["{_escaped(_shown_name(node))}{many}<br/>{_states(node)}"]:::{node.state}')
    lines += [f"  n{number[edge.start]} --> n{number[edge.end]}" for edge in graph.edges]
    lines += [f"  classDef {state} {CLASSES[state]}" for state in sorted({str(node.state) for node in nodes})]
    return "\n".join(lines)


def _ordered(graph: Graph) -> list[Node]:
    return sorted(graph.nodes, key=lambda node: (node.x + node.width / 2, node.y))


def _shown_name(node: Node) -> str:
    return "(joint)" if node.task == FLOW else node.task


def _states(node: Node) -> str:
    return ", ".join(sorted(node.states))


def _escaped(text: str) -> str:
    """The text with every character but letters, digits and a few signs as a code that Mermaid shows as it is."""
    cut = text if len(text) <= 80 else f"{text[:77]}..."
    return "".join(char if _PLAIN.fullmatch(char) else f"#{ord(char)};" for char in cut)
