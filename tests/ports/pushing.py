"""Pushes numbers into a file queue until it is killed, and prints each number that is on the disk."""

from __future__ import annotations

import asyncio
import sys

from treadle.ports import file_queue


async def main(file: str, first: int) -> None:
    queue = file_queue(file)
    for number in range(first, first + 1_000_000):
        await queue.push(f"{number}:{'x' * 3000}")
        print(number, flush=True)


asyncio.run(main(sys.argv[1], int(sys.argv[2])))
