"""Treadle for Django: a backend of `django.tasks`, a management command, admin pages, and help for tests.

Put "treadle.integrations.django" into INSTALLED_APPS and name the backend in TASKS. The names are imported at their
first use, because Django imports this package before its settings are complete.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from treadle.app import App
    from treadle.integrations.django.backend import TreadleBackend as TreadleBackend
    from treadle.integrations.django.backend import TreadleTask as TreadleTask

    app: App

__all__ = ["TreadleBackend", "TreadleTask", "app", "app_of"]


def app_of(alias: str = "default") -> App:
    """The `App` behind an alias of TASKS. Raises ImproperlyConfigured if no Treadle backend has that name."""
    from treadle.integrations.django.database_app import store_of

    return store_of(alias).app


def __getattr__(name: str) -> Any:
    if name == "TreadleBackend":
        from treadle.integrations.django.backend import TreadleBackend

        return TreadleBackend
    if name == "TreadleTask":
        from treadle.integrations.django.backend import TreadleTask

        return TreadleTask
    if name == "app":
        from treadle.integrations.django.database_app import first_alias

        return app_of(first_alias())
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
