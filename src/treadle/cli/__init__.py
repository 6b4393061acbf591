"""The command line, `treadle`: runs workers and servers, and calls the library's public methods."""

from __future__ import annotations

from collections.abc import Sequence


def main(args: Sequence[str] | None = None) -> int:
    """Run the command line -> the exit code: 0 ok, 1 failed, 2 usage error, 3 storage unreachable."""
    try:
        from treadle.cli.root import run
    except KeyboardInterrupt:  # Ctrl-C during the import
        return 130
    return run(args)
