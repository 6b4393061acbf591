"""An app with a middleware and a task of kind "process", which test_call.py runs in a child process."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar

from treadle import App, Middleware, current
from treadle.execution.context import Context

app = App("memory://")
tenant: ContextVar[str] = ContextVar("tenant", default="none")


@app.middleware
class Tenant(Middleware):
    @contextmanager
    def call(self, contexts: Sequence[Context]) -> Iterator[None]:
        token = tenant.set(contexts[0].headers["tenant"])
        try:
            yield
        finally:
            tenant.reset(token)


@app.task(kind="process")
def whose() -> tuple[str, int, dict[str, str]]:
    return tenant.get(), os.getpid(), dict(current().child_headers)


def undeclared() -> str:
    return tenant.get()
