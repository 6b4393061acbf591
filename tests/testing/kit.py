"""The storages on which the tests of `app.testing(storage=...)` run."""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.fixtures import KINDS, a_url
from tests.servers import valkey
from treadle.ports import Ports, memory_backend
from treadle.storage import compose
from treadle.testing.given_storage import Given

GIVEN = (*KINDS, "shards", "ports")

_names = (f"testing{os.getpid()}-{n}" for n in itertools.count())


@contextmanager
def a_given(kind: str, folder: Path) -> Iterator[Given]:
    """The value of `storage=` for an empty storage of this kind."""
    if kind == "shards":
        yield f"{valkey.url()}?ns={next(_names)}&shards=3"
    elif kind == "ports":
        ports = Ports(*memory_backend())
        yield lambda clock: compose(ports, now=clock)
    else:
        with a_url(kind, folder) as url:
            yield url
