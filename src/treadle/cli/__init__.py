"""The command line, `treadle`: runs workers and servers, and calls the library's public methods."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from treadle.cli.protocols import Command, GuestProtocol, Handling, ServerWorkers, Stopping
    from treadle.cli.recycling_options import excluding_reload
    from treadle.cli.root import run, treadle
    from treadle.cli.target import Target
else:
    from treadle.core.lazy_names import lazy_names

    __getattr__, __dir__ = lazy_names(
        __name__,
        globals(),
        {
            "treadle.cli.protocols": ("Command", "GuestProtocol", "Handling", "ServerWorkers", "Stopping"),
            "treadle.cli.recycling_options": ("excluding_reload",),
            "treadle.cli.root": ("run", "treadle"),
            "treadle.cli.target": ("Target",),
        },
    )

__all__ = [
    "Command",
    "GuestProtocol",
    "Handling",
    "ServerWorkers",
    "Stopping",
    "Target",
    "excluding_reload",
    "main",
    "run",
    "treadle",
]


def main(args: Sequence[str] | None = None) -> int:
    """Run the command line -> the exit code: 0 ok, 1 failed, 2 usage error, 3 storage unreachable."""
    try:
        from treadle.cli.root import run
    except KeyboardInterrupt:  # Ctrl-C during the import
        return 130
    return run(args)
