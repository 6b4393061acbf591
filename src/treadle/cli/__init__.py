"""The command line: `treadle`. Everything in it is the library's own public verbs, typed by hand.

Without it there would be no way to run a worker, or to look at jobs, but to write a program.
"""

from __future__ import annotations

from collections.abc import Sequence


def main(args: Sequence[str] | None = None) -> int:
    """Run the command line; answers the exit code: 0 ok, 1 failed, 2 usage, 3 the storage cannot be reached."""
    try:
        from treadle.cli.root import run
    except KeyboardInterrupt:  # typed before there was anything to interrupt
        return 130
    return run(args)
