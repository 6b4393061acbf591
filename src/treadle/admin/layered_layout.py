"""Places the nodes of a directed graph in columns from left to right. Pure.

The steps of Sugiyama's method: a column by the longest way from a start, an order within the columns by medians of the
neighbours, and positions that minimise the squared distance to them. Long edges pass through places of their own.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import Final

from msgspec import Struct

SWEEPS: Final = 4  # passes over the columns, alternating in direction; more hardly remove crossings
PLACES: Final = 20_000  # places of long edges; beyond that a long edge is one straight line
GAP_X: Final = 56.0  # units between columns
GAP_Y: Final = 16.0  # between the nodes of one column
LANE: Final = 6.0  # height that is kept free for an edge

Point = tuple[float, float]
Edge = tuple[str, str]


class Box(Struct, frozen=True):
    """Where a node is: its left upper corner, and its column and row, counted from 0."""

    x: float
    y: float
    column: int
    row: int


class Layout(Struct, frozen=True):
    """A drawing. `paths`: the points of each edge, from the right side of one node to the left side of the other."""

    width: float
    height: float
    boxes: Mapping[str, Box]
    paths: Mapping[Edge, Sequence[Point]]


def order_of(ids: Sequence[str], edges: Sequence[Edge]) -> tuple[list[str], dict[str, list[str]]]:
    """The ids in an order in which edges lead forward, and the successors of each. Edges to unknown ids, loops,
    repeated edges, and those that close a cycle are left out."""
    place = {id: index for index, id in enumerate(ids)}
    downs: dict[str, list[str]] = {id: [] for id in place}
    missing = dict.fromkeys(place, 0)
    for a, b in dict.fromkeys(edges):
        if a in place and b in place and a != b:
            downs[a].append(b)
            missing[b] += 1
    order: list[str] = []
    done: set[str] = set()
    ready, rest = [id for id in reversed(place) if not missing[id]], iter(place)
    while len(order) < len(place):
        if not ready:  # a cycle: begin it at its first id
            ready.append(next(id for id in rest if id not in done))
        id = ready.pop()
        if id in done:
            continue
        order.append(id)
        done.add(id)
        for down in reversed(downs[id]):
            missing[down] -= 1
            if not missing[down]:
                ready.append(down)
    index = {id: number for number, id in enumerate(order)}
    return order, {id: [down for down in downs[id] if index[down] > index[id]] for id in order}


def reduced(order: Sequence[str], downs: Mapping[str, Sequence[str]]) -> dict[str, list[str]]:
    """The successors without those that can be reached through another successor (transitive reduction).

    Reachability is one integer of bits per node: 5,000 nodes with 10,000 edges take 5 ms.
    """
    bit = {id: 1 << index for index, id in enumerate(order)}
    number = {id: index for index, id in enumerate(order)}
    reached: dict[str, int] = {}
    kept: dict[str, list[str]] = {}
    for id in reversed(order):
        below, own = 0, list[str]()
        for down in sorted(downs[id], key=number.__getitem__):
            if not below & bit[down]:
                own.append(down)
                below |= reached[down]
        kept[id] = own
        reached[id] = below | bit[id]
    return kept


def layout(sizes: Mapping[str, tuple[float, float]], edges: Sequence[Edge]) -> Layout:
    """Place the nodes, given as id -> (width, height). Every node gets one box, no two boxes overlap, and every edge
    that is drawn leads to the right. Edges are left out as by `order_of`."""
    order, downs = order_of(list(sizes), edges)
    column = _columns(order, downs)
    chains = _chains(order, downs, column)
    columns = _fill(order, column, chains)
    nears = _near(chains)
    _untangle(columns, nears)
    heights = {id: height for id, (_, height) in sizes.items()}
    middles = _middles(columns, nears, heights)
    lefts, width = _lefts(columns, sizes)
    boxes: dict[str, Box] = {}
    for number, ids in enumerate(columns):
        for row, id in enumerate([id for id in ids if id in sizes]):
            room = lefts[number + 1] - GAP_X - lefts[number]
            x = lefts[number] + (room - sizes[id][0]) / 2
            boxes[id] = Box(x, middles[id] - sizes[id][1] / 2, number, row)
    bottom = max((box.y + heights[id] for id, box in boxes.items()), default=0.0)
    paths = {}
    for (a, b), chain in chains.items():
        bends = [point for id in chain[1:-1] for point in _through(id, column, lefts, middles)]
        paths[a, b] = ((boxes[a].x + sizes[a][0], middles[a]), *bends, (boxes[b].x, middles[b]))
    return Layout(width, bottom, {id: boxes[id] for id in sizes}, paths)


def _through(id: str, column: Mapping[str, int], lefts: Sequence[float], middles: Mapping[str, float]) -> list[Point]:
    """An edge crosses a column it does not end in on one height, so it does not pass over nodes there."""
    number = column[id]
    return [(lefts[number], middles[id]), (lefts[number + 1] - GAP_X, middles[id])]


def _columns(order: Sequence[str], downs: Mapping[str, Sequence[str]]) -> dict[str, int]:
    column = dict.fromkeys(order, 0)
    for id in order:
        for down in downs[id]:
            column[down] = max(column[down], column[id] + 1)
    return column


def _chains(order: Sequence[str], downs: Mapping[str, Sequence[str]], column: dict[str, int]) -> dict[Edge, list[str]]:
    """The ids that each edge passes: its ends, and the places made for it in the columns between, which are added to
    `column`."""
    chains: dict[Edge, list[str]] = {}
    room = PLACES
    for id in order:
        for down in downs[id]:
            chain = [id]
            if column[down] - column[id] - 1 <= room:
                for number in range(column[id] + 1, column[down]):
                    place = f"\0{len(chains)}\0{number}"
                    column[place] = number
                    chain.append(place)
                    room -= 1
            chains[id, down] = [*chain, down]
    return chains


def _fill(order: Sequence[str], column: Mapping[str, int], chains: Mapping[Edge, Sequence[str]]) -> list[list[str]]:
    columns: list[list[str]] = [[] for _ in range(max(column.values(), default=-1) + 1)]
    for id in (*order, *(place for chain in chains.values() for place in chain[1:-1])):
        columns[column[id]].append(id)
    return columns


Nears = tuple[dict[str, list[str]], dict[str, list[str]]]
"""The neighbours of each id in the column before, and in the column behind."""


def _near(chains: Mapping[Edge, Sequence[str]]) -> Nears:
    before: dict[str, list[str]] = {}
    behind: dict[str, list[str]] = {}
    for chain in chains.values():
        for a, b in itertools.pairwise(chain):
            behind.setdefault(a, []).append(b)
            before.setdefault(b, []).append(a)
    return before, behind


def _untangle(columns: list[list[str]], nears: Nears) -> None:
    """Sort each column by the medians of its neighbours' rows, in place."""
    row = {id: float(index) for ids in columns for index, id in enumerate(ids)}
    for sweep in range(SWEEPS):
        near = nears[sweep % 2]
        for ids in columns if sweep % 2 == 0 else reversed(columns):
            wanted = {id: _median([row[neighbour] for neighbour in near.get(id, ())], row[id]) for id in ids}
            ids.sort(key=lambda id: (wanted[id], row[id]))
            row.update((id, float(index)) for index, id in enumerate(ids))


def _median(rows: list[float], own: float) -> float:
    if not rows:
        return own
    rows.sort()
    half = len(rows) // 2
    return rows[half] if len(rows) % 2 else (rows[half - 1] + rows[half]) / 2


def _middles(columns: Sequence[Sequence[str]], nears: Nears, heights: Mapping[str, float]) -> dict[str, float]:
    """The vertical middle of each id. The first is at its half height or below."""
    middle: dict[str, float] = {}
    for ids in columns:
        y = 0.0
        for id in ids:
            height = heights.get(id, LANE)
            middle[id] = y + height / 2
            y += height + GAP_Y
    for sweep in range(SWEEPS):
        near = nears[sweep % 2]
        for ids in columns if sweep % 2 == 0 else reversed(columns):
            wanted = [_mean([middle[neighbour] for neighbour in near.get(id, ())], middle[id]) for id in ids]
            middle.update(zip(ids, apart(wanted, [heights.get(id, LANE) for id in ids]), strict=True))
    top = min((middle[id] - heights.get(id, LANE) / 2 for id in middle), default=0.0)
    return {id: y - top for id, y in middle.items()}


def _mean(values: Sequence[float], own: float) -> float:
    return sum(values) / len(values) if values else own


def apart(wanted: Sequence[float], heights: Sequence[float]) -> list[float]:
    """The middles nearest to the wanted ones (by squares) for boxes that keep their order and do not overlap.

    Pool adjacent violators: boxes that would overlap form a block, which lies at the mean of what its boxes want.
    """
    offset, offsets = 0.0, list[float]()
    for number, height in enumerate(heights):
        offset += (heights[number - 1] + height) / 2 + GAP_Y if number else 0.0
        offsets.append(offset)
    blocks: list[tuple[float, int]] = []  # the sum of (wanted place - offset), and the number of boxes
    for want, offset in zip(wanted, offsets, strict=True):
        total, count = want - offset, 1
        while blocks and blocks[-1][0] / blocks[-1][1] >= total / count:
            before, boxes = blocks.pop()
            total, count = total + before, count + boxes
        blocks.append((total, count))
    places = [total / count for total, count in blocks for _ in range(count)]
    return [place + offset for place, offset in zip(places, offsets, strict=True)]


def _lefts(columns: Sequence[Sequence[str]], sizes: Mapping[str, tuple[float, float]]) -> tuple[list[float], float]:
    """The left side of each column, then where the next column would begin; and the width of all columns."""
    lefts = [0.0]
    for ids in columns:
        lefts.append(lefts[-1] + max((sizes[id][0] for id in ids if id in sizes), default=0.0) + GAP_X)
    return lefts, max(0.0, lefts[-1] - GAP_X)
