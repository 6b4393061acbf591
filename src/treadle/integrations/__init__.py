"""Treadle inside web frameworks and with OpenTelemetry, one module for each. `treadle` imports none of them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def needs(requirement: str) -> Iterator[None]:
    """Around the imports of a package that an integration needs: an ImportError then says how to install it."""
    try:
        yield
    except ImportError as error:
        package = requirement.partition(">")[0]
        raise ImportError(
            f"this integration needs {package}: pip install '{requirement}' ({error})", name=error.name
        ) from None
