"""Reads the queued jobs of a bounded queue in the order of shedding, row by row: the first one nearly always fits."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from typing import Any

from treadle.storage.bounds import Candidate
from treadle.storage.sqlite.statements import load

SQL = load("unit_of_work")
ABOVE = 2**31  # above every rank

Execute = Callable[..., Any]


def last_queued(execute: Execute, queue: str) -> Iterator[Candidate]:
    """In queue order, the last one first."""
    with closing(execute(SQL["last_queued"], (queue,))) as cursor:
        for id, rank, fit in cursor:
            yield id, rank, bool(fit)


def first_queued(execute: Execute, queue: str) -> Iterator[Candidate]:
    """By (position, id), of all ranks together. Each rank has its own cursor, because the index is sorted by rank."""
    with ExitStack() as cursors:
        lines = [
            cursors.enter_context(closing(execute(SQL["first_queued"], (queue, rank))))
            for rank in list(_ranks(execute, queue))
        ]
        for _, id, rank, fit in heapq.merge(*lines):
            yield id, rank, bool(fit)


def _ranks(execute: Execute, queue: str) -> Iterator[int]:
    rank = ABOVE
    while (row := execute(SQL["next_rank"], (queue, rank)).fetchone()) is not None:
        rank = row[0]
        yield rank
