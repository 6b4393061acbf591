"""Durations, sizes and counts as words, for people."""

from __future__ import annotations


def lasts(seconds: float) -> str:
    """Format a duration: 0.4 s, 12 s, 3 m, 5 h, 2 d."""
    if seconds < 10:
        return f"{seconds:.1f} s"
    for unit, size, most in (("s", 1, 100), ("m", 60, 100), ("h", 3600, 48)):
        if seconds < most * size:
            return f"{seconds / size:.0f} {unit}"
    return f"{seconds / 86_400:.0f} d"


def size(count: float) -> str:
    """Format a number of bytes: 512 B, 1.5 KiB."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if count < 1024:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1024
    return f"{count:.1f} TiB"


def plural(count: int, what: str) -> str:
    """`1 job`, `3 jobs`, `2 processes`."""
    return f"{count:,} {what}" + ("" if count == 1 else "es" if what.endswith("s") else "s")
