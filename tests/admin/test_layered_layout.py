"""The layout of a graph in columns."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from treadle.admin.layered_layout import apart, layout, order_of, reduced

NODES = st.lists(st.integers(0, 20).map(str), unique=True, max_size=20)
EDGES = st.lists(st.tuples(st.integers(0, 22).map(str), st.integers(0, 22).map(str)), max_size=60)
SIZES = st.sampled_from([(184.0, 44.0), (12.0, 12.0), (100.0, 80.0)])


@given(ids=NODES, edges=EDGES, data=st.data())
def test_every_node_once_edges_go_right_and_no_two_nodes_overlap(
    ids: list[str], edges: list[tuple[str, str]], data: st.DataObject
) -> None:
    sizes = {id: data.draw(SIZES) for id in ids}
    found = layout(sizes, edges)
    assert list(found.boxes) == ids
    boxes = [(box.x, box.y, *sizes[id]) for id, box in found.boxes.items()]
    for at, (x, y, width, height) in enumerate(boxes):
        assert x >= 0
        assert x + width <= found.width + 1e-6
        assert y >= -1e-6
        assert y + height <= found.height + 1e-6
        for x2, y2, width2, height2 in boxes[at + 1 :]:
            assert x + width <= x2 or x2 + width2 <= x or y + height <= y2 + 1e-6 or y2 + height2 <= y + 1e-6
    for (a, b), path in found.paths.items():
        assert (a, b) in edges
        assert path[0][0] == found.boxes[a].x + sizes[a][0]
        assert path[-1][0] == found.boxes[b].x
        assert all(x < x2 for (x, _), (x2, _) in pairwise(path))


@given(ids=NODES, edges=EDGES)
def test_edges_of_cycles_and_to_unknown_nodes_are_left_out_and_no_other(
    ids: list[str], edges: list[tuple[str, str]]
) -> None:
    order, downs = order_of(ids, edges)
    assert sorted(order) == sorted(ids)
    at = {id: number for number, id in enumerate(order)}
    kept = {(a, b) for a, below in downs.items() for b in below}
    for a, b in {(a, b) for a, b in edges if a in at and b in at and a != b} - kept:
        assert _reaches(kept, b, a) or at[b] < at[a]
    assert all(at[a] < at[b] for a, b in kept)


@given(ids=NODES, edges=EDGES)
def test_a_reduced_graph_reaches_the_same_nodes_with_no_edge_to_spare(
    ids: list[str], edges: list[tuple[str, str]]
) -> None:
    order, downs = order_of(ids, edges)
    kept = reduced(order, downs)
    whole = {(a, b) for a, below in downs.items() for b in below}
    small = {(a, b) for a, below in kept.items() for b in below}
    assert small <= whole
    for a, b in whole:
        assert _reaches(small, a, b)
    for a, b in small:
        assert not _reaches(small - {(a, b)}, a, b)


def _reaches(edges: set[tuple[str, str]], start: str, end: str) -> bool:
    seen, left = {start}, [start]
    while left:
        one = left.pop()
        for a, b in edges:
            if a == one and b not in seen:
                seen.add(b)
                left.append(b)
    return end in seen and start != end


@given(st.lists(st.tuples(st.floats(-1e6, 1e6), st.sampled_from([6.0, 12.0, 44.0])), min_size=1, max_size=30))
def test_boxes_are_moved_apart_in_their_order(given: list[tuple[float, float]]) -> None:
    wanted, heights = [want for want, _ in given], [height for _, height in given]
    found = apart(wanted, heights)
    for (a, h), (b, h2) in pairwise(zip(found, heights, strict=True)):
        assert b - a >= (h + h2) / 2 - 1e-3
    assert apart(found, heights) == [float(f"{each}") for each in apart(found, heights)]


def test_a_box_that_has_room_keeps_its_place() -> None:
    assert apart([0.0, 100.0, 300.0], [44.0, 44.0, 44.0]) == [0.0, 100.0, 300.0]
    assert apart([0.0, 0.0], [44.0, 44.0]) == [-30.0, 30.0]


@pytest.mark.slow
def test_thousands_of_nodes_and_of_long_edges_are_placed() -> None:
    ids = [str(number) for number in range(5_000)]
    sizes = dict.fromkeys(ids, (184.0, 44.0))
    chain = layout(sizes, [*pairwise(ids), *((ids[0], id) for id in ids)])
    assert max(box.column for box in chain.boxes.values()) == 4_999
    fan = layout(sizes, [*((ids[0], id) for id in ids), *((id, ids[-1]) for id in ids)])
    assert {box.column for box in fan.boxes.values()} == {0, 1, 2}
    loop = layout(sizes, [*pairwise(ids), (ids[-1], ids[0])])
    assert len(loop.paths) == 4_999


def test_a_graph_without_nodes_is_an_empty_drawing() -> None:
    found = layout({}, [("a", "b")])
    assert (found.width, found.height, dict(found.boxes), dict(found.paths)) == (0.0, 0.0, {}, {})
