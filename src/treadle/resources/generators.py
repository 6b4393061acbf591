"""Begins and ends generators that yield one value, as `with` does for a context manager.

`contextlib` does the same, but its errors name no function and no remedy.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Generator
from contextlib import suppress
from typing import Any

Problem = Callable[[str], Exception]
"""Makes the error of a generator that yields never or twice, from a phrase that follows the generator's name."""

NEVER = "ended without a yield: yield its value once, or None"
TWICE = "yields a second time: it must yield once, and end after that"


async def begin(generator: AsyncGenerator[Any, None], problem: Problem) -> Any:
    """The value that it yields. Raises what it raises, and `problem` if it yields nothing."""
    try:
        return await anext(generator)
    except StopAsyncIteration:
        raise problem(NEVER) from None


async def end(generator: AsyncGenerator[Any, None], error: BaseException | None, problem: Problem) -> None:
    """Run the code after its yield, with `error` raised at the yield if there is one. Returns if the generator ends or
    raises that error again; raises any other error, and `problem` if it yields again."""
    try:
        if error is None:
            await anext(generator)
        else:
            await generator.athrow(error)
    except StopAsyncIteration:
        return
    except BaseException as raised:
        if _is_the_same(raised, error):
            return
        raise
    with suppress(RuntimeError):  # it ignores GeneratorExit, and yields again
        await generator.aclose()
    raise problem(TWICE)


def begin_here(generator: Generator[Any, None, Any], problem: Problem) -> Any:
    """As `begin`, for a plain generator."""
    try:
        return next(generator)
    except StopIteration:
        raise problem(NEVER) from None


def end_here(generator: Generator[Any, None, Any], error: BaseException | None, problem: Problem) -> None:
    """As `end`, for a plain generator."""
    try:
        if error is None:
            next(generator)
        else:
            generator.throw(error)
    except StopIteration:
        return
    except BaseException as raised:
        if _is_the_same(raised, error):
            return
        raise
    with suppress(RuntimeError):
        generator.close()
    raise problem(TWICE)


def _is_the_same(raised: BaseException, error: BaseException | None) -> bool:
    """A generator cannot raise StopIteration: Python turns it into a RuntimeError with that cause."""
    if raised is error:
        return True
    return isinstance(error, StopIteration | StopAsyncIteration) and raised.__cause__ is error
