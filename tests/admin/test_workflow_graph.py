"""The graph of a workflow: what is drawn, folded and left out."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from treadle import App, BadOption, Conclude, Flow, JobSpec, Retry, UnknownJob, current, flow
from treadle.admin import workflow_graph
from treadle.admin.workflow_graph import ARROWS, SHOWN, Graph, graph, lines_of, mermaid_of
from treadle.core.model import NewJob, Record, State
from treadle.testing import drain
from treadle.workflow.plan import FLOW


def row(id: str, after: tuple[str, ...] = (), task: str = "t", state: State = State.READY, **job: Any) -> Record:
    function_done = task == FLOW
    return Record(
        job=NewJob(id=id, task=task, after=after, root="root", function_done=function_done, **job),
        version=1,
        state=state,
        after=after,
        function_done=function_done,
    )


def arrows(found: Graph) -> set[tuple[str, str]]:
    return {(edge.start, edge.end) for edge in found.edges}


def test_jobs_lead_to_those_that_wait_for_them_and_no_arrow_is_to_spare() -> None:
    found = graph([row("a"), row("b", ("a",)), row("c", ("a", "b")), row("joint", ("c", "a"), task=FLOW)])
    assert arrows(found) == {("a", "b"), ("b", "c"), ("c", "joint")}
    assert [node.kind for node in found.nodes] == ["job", "job", "job", "joint"]


def test_equal_siblings_are_folded_with_their_dependents() -> None:
    rows = [row("a")]
    for number in range(20):
        state = State.RUNNING if number < 2 else State.READY
        rows += [row(f"b{number}", ("a",), "b", state), row(f"c{number}", (f"b{number}",), "c")]
    found = graph(rows)
    kinds = Counter((node.task, node.kind, node.jobs) for node in found.nodes)
    assert kinds == {
        ("t", "job", 1): 1,
        ("b", "job", 1): 2,
        ("b", "fold", 18): 1,
        ("c", "job", 1): 2,
        ("c", "fold", 18): 1,
    }
    assert (found.total, found.shown, found.capped) == (41, 41, False)
    [fold] = [node for node in found.nodes if node.kind == "fold" and node.task == "b"]
    assert (fold.states, fold.state) == ({"ready": 18}, "ready")
    opened = graph(rows, open=[fold.id])
    assert len([node for node in opened.nodes if node.task == "b"]) == 20
    later = [row(each.id, each.after, each.job.task, State.SUCCEEDED) for each in rows]
    assert len([node for node in graph(later, open=[fold.id]).nodes if node.task == "b"]) == 20


def test_too_many_nodes_are_folded_further_and_then_left_out() -> None:
    pairs = [row(f"{number}-{copy}", task=f"t{number}") for number in range(400) for copy in range(2)]
    found = graph(pairs)
    assert (len(found.nodes), found.shown, found.capped) == (400, 800, False)
    single = [row(str(number), task=f"t{number}") for number in range(SHOWN + 100)]
    found = graph(single)
    assert (len(found.nodes), found.shown, found.total, found.capped) == (SHOWN, SHOWN, SHOWN + 100, True)
    assert graph(pairs, more=True).capped


@given(
    st.lists(
        st.tuples(
            st.integers(0, 15),
            st.lists(st.integers(0, 17), max_size=4),
            st.sampled_from(["t", "u", FLOW]),
            st.sampled_from(list(State)),
            st.integers(0, 17),
        ),
        max_size=25,
    ),
    st.integers(1, 4),
)
def test_any_rows_are_drawn_with_each_job_in_one_node_and_arrows_to_the_right(rows: list[Any], fold: int) -> None:
    made = {
        str(id): row(str(id), tuple(map(str, after)), task, state, parent=str(parent))
        for id, after, task, state, parent in rows
    }
    found = graph(list(made.values()), fold=fold)
    assert sum(node.jobs for node in found.nodes) == found.total == found.shown == len(made)
    place = {node.id: node for node in found.nodes}
    assert len(place) == len(found.nodes)
    for edge in found.edges:
        assert place[edge.start].x + place[edge.start].width <= place[edge.end].x
    assert len(lines_of(found)) == len(found.nodes)
    assert mermaid_of(found).startswith("flowchart LR")


def test_no_text_of_a_job_changes_the_diagram() -> None:
    found = mermaid_of(graph([row("a", task='x"]\n  evil --> n1\n click n1 "javascript:x" <b>')]))
    assert found.count("\n") == 2
    assert "evil -->" not in found
    assert '"javascript' not in found
    assert "<b>" not in found


# --- on every storage


def tasks(app: App) -> Any:
    @app.task(name="leaf", retry=Retry(attempts=1))
    async def leaf(n: int) -> int:
        if n < 0:
            raise ValueError(f"no {n}")
        return n

    @app.task(name="split")
    async def split(n: int) -> Flow[int, int] | JobSpec[int]:
        return flow(*(leaf.job(each) for each in range(n))).then(leaf.job(100))

    return leaf, split


async def test_a_job_that_continued_leads_to_its_children_and_they_to_what_waits_for_it(app: App) -> None:
    _leaf, split = tasks(app)
    job = await app.enqueue(flow(split.job(3)).then(split.job(2)))
    await drain(app)
    found = await app.workflows.graph(job.id)
    names = {node.id: (node.task, node.kind) for node in found.nodes}
    leads = Counter((names[start][0], names[end][0]) for start, end in arrows(found))
    assert leads == {
        ("split", "leaf"): 5,
        ("leaf", "leaf"): 5,
        ("leaf", "split"): 1,
        ("leaf", FLOW): 1,
    }
    assert found.total == 10
    [listed] = (await app.workflows.list()).workflows
    assert (listed.jobs, listed.done, listed.failed, listed.state) == (10, 10, 0, "succeeded")


async def test_workflows_are_found_in_pages_without_plain_jobs(app: App, clock: Any) -> None:
    leaf, split = tasks(app)
    ids = []
    for number in range(5):
        ids.append((await split.enqueue(2)).id)
        await leaf.options(after=await leaf.enqueue(1)).enqueue(number)
        clock.advance(1)
    await drain(app)
    found, cursor = [], None
    while True:
        page = await app.workflows.list(limit=2, cursor=cursor)
        found += [each.id for each in page.workflows]
        cursor = page.cursor
        if cursor is None:
            break
    assert found == list(reversed(ids))
    short = await app.workflows.list(scan=3)
    assert short.scanned == 3
    assert short.cursor is not None
    assert short.scanned_to is not None


async def test_a_drawing_notes_signals_errors_and_progress(app: App) -> None:
    leaf, _ = tasks(app)

    @app.task(name="ask")
    async def ask() -> Conclude[str]:
        return Conclude(str(await current().wait_for("approval", timeout=3600)))

    job = await app.enqueue(flow(leaf.job(-1), ask.job()))
    await drain(app)
    notes = {node.task: node.note for node in (await app.workflows.graph(job.id)).nodes}
    assert notes["leaf"] == "ValueError: no -1"
    assert notes["ask"] == "waits for the signal approval"


async def test_impossible_arguments_are_refused(app: App) -> None:
    with pytest.raises(UnknownJob):
        await app.workflows.graph("nothing")
    leaf, _ = tasks(app)
    job = await leaf.enqueue(1)
    for fold in (0, -1, True, "x"):
        with pytest.raises(BadOption, match="fold"):
            await app.workflows.graph(job, fold=fold)  # type: ignore[arg-type]
    for limit in (0, 101):
        with pytest.raises(BadOption, match="limit"):
            await app.workflows.list(limit=limit)
    alone = await app.workflows.graph(job)
    assert [node.id for node in alone.nodes] == [job.id]


def test_more_arrows_than_a_drawing_needs_are_not_read() -> None:
    """A job may wait for 100,000 others: all arrows of 5,000 such jobs took minutes and gigabytes."""
    first = [row(f"a{number}", task=f"t{number}") for number in range(400)]
    rest = [row(f"b{number}", tuple(each.id for each in first), "b") for number in range(ARROWS // 400 + 50)]
    found = graph([*first, *rest])
    assert (found.capped, found.total) == (True, 450 + ARROWS // 400)
    assert not graph([*first, *rest[:10]]).capped


def test_the_ends_of_a_long_chain_are_looked_for_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """1,000 jobs wait for a job that continued as another one, and so on 1,000 times; then for each of these."""
    calls = 0
    ups = workflow_graph._ups

    def counted(row: Record) -> Any:
        nonlocal calls
        calls += 1
        return ups(row)

    monkeypatch.setattr(workflow_graph, "_ups", counted)
    chain = [
        replace(row(f"c{n}", parent=f"c{n - 1}"), after=(f"c{n + 1}",) if n < 999 else (), function_done=True)
        for n in range(1_000)
    ]
    graph([*chain, *(row(f"w{n}", ("c0",)) for n in range(1_000))])
    assert calls < 10_000
    calls = 0
    graph([*chain, *(row(f"w{n}", (f"c{n}",)) for n in range(1_000))])
    assert calls < 3 * workflow_graph.STEPS
