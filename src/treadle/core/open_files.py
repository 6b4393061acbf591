"""The number of files and sockets that this process may have open."""

from __future__ import annotations


def most_open_files() -> int | None:
    """The soft limit, which the process may reach; None if it is unlimited or unknown."""
    try:
        import resource
    except ImportError:  # Windows
        return None
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return None if soft == resource.RLIM_INFINITY else soft
