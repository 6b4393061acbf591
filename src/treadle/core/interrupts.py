"""Ctrl-C that interrupts a piece of user code on the event loop must end the program, and not only that code."""

from __future__ import annotations

import asyncio
import signal


def pass_on(error: BaseException) -> None:
    """Raise a KeyboardInterrupt again from the event loop, if it may come from Ctrl-C. Does nothing for other
    errors."""
    # `asyncio.run` and `Worker.run` handle the signal; under them only the user's code can raise this.
    if isinstance(error, KeyboardInterrupt) and signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        asyncio.get_running_loop().call_soon(_interrupt)


def _interrupt() -> None:
    raise KeyboardInterrupt
