"""The App of this Django project for the command line: `treadle worker treadle.integrations.django.worker:app`.

`manage.py treadle worker` does the same. DJANGO_SETTINGS_MODULE names the settings. `...worker:ALIAS` is the App of
another alias of TASKS.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import django
from django.apps import apps

from treadle.integrations.django.database_app import first_alias, treadle_aliases
from treadle.integrations.django.loading import prepare

if TYPE_CHECKING:
    from treadle.app import App

if not apps.ready:
    django.setup()

app: App = prepare(first_alias())


def __getattr__(name: str) -> Any:
    if name in treadle_aliases():
        return prepare(name)
    raise AttributeError(f"no Treadle backend of TASKS has the alias {name!r}")
