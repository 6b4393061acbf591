"""Annotations that name what is not there yet, without `from __future__ import annotations`: from Python 3.14 on they
are evaluated when they are read."""

import sys
from typing import Any

import pytest

pytestmark = pytest.mark.skipif(sys.version_info < (3, 14), reason="the module cannot be imported before 3.14")

MODULE = """
from dataclasses import dataclass
from typing import TYPE_CHECKING

from treadle import App, depends

if TYPE_CHECKING:
    from decimal import Decimal

app = App("memory://")


@app.task
async def twice(box: Box) -> Box:
    return Box(2 * box.size)


@app.task
def paid(size: int, rate: Decimal = depends(lambda: 3)) -> int:
    return size * rate


@app.lifespan
async def life(app: Decimal):
    yield


@app.batch()
def many(boxes: list[int]) -> list[int]:
    return boxes


@dataclass
class Box:
    size: int
"""


async def test_a_task_may_name_a_class_below_it() -> None:
    names: dict[str, Any] = {"__name__": "shop"}
    exec(MODULE, names)
    async with names["app"].testing() as t:
        box, paid = await names["twice"].enqueue(names["Box"](4)), await names["paid"].enqueue(7)
        await t.finish()
        assert await box.result(0) == names["Box"](8)
        assert await paid.result(0) == 21
