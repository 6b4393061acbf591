"""The storage URL of a database in DATABASES, as Treadle's own connections to it need it."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final
from urllib.parse import quote, urlencode

from django.core.exceptions import ImproperlyConfigured
from django.db import connections

from treadle.core import file_urls

# Options of Django's backend, and of the driver, that are not parameters of libpq.
NOT_LIBPQ: Final = frozenset(
    {
        "assume_role",
        "client_encoding",
        "connection_factory",
        "context",
        "cursor_factory",
        "isolation_level",
        "pool",
        "prepare_threshold",
        "row_factory",
        "server_side_binding",
    }
)
KNOWN: Final = ("postgresql", "sqlite")
FOR_TESTS: Final = '; for tests, give it a file: "TEST": {"NAME": BASE_DIR / "test.db"}'
MEMORY: Final = "in-memory:"  # begins the name of a SQLite database in memory, reached only by its own connection


def url_of(alias: str, schema: str) -> str:
    """The URL of the storage in that database; begins with `MEMORY` for a SQLite database in memory. Raises
    ImproperlyConfigured for a database that cannot store jobs."""
    connection = connections[alias]
    if connection.vendor == "sqlite":
        return _sqlite(connection)
    if connection.vendor == "postgresql":
        return _postgres(connection.settings_dict, schema)
    raise ImproperlyConfigured(
        f"Treadle stores jobs in PostgreSQL or SQLite, and DATABASES[{alias!r}] is {connection.vendor}; give the "
        "backend OPTIONS['url'], such as \"redis://localhost:6379/0\""
    )


def outbox_url(alias: str) -> str:
    """The URL of an outbox in that database. Raises ImproperlyConfigured for a database that cannot have one."""
    connection = connections[alias]
    settings = connection.settings_dict
    if connection.vendor == "sqlite" and not is_in_memory(connection):
        return file_urls.url_of(Path(settings["NAME"]).absolute())
    if connection.vendor == "postgresql":
        return _server("postgresql", settings, _libpq(settings))
    if connection.vendor == "mysql":
        return _server("mysql", settings, {})
    raise ImproperlyConfigured(
        f"an outbox needs PostgreSQL, MySQL, MariaDB or a SQLite file, and DATABASES[{alias!r}] is "
        + (
            f"{connection.display_name} in memory{FOR_TESTS}"
            if connection.vendor == "sqlite"
            else connection.display_name
        )
    )


def fingerprint(alias: str) -> tuple[Any, ...]:
    """The settings that the test runner changes, and with them the URL; cheaper than `url_of`."""
    settings = connections[alias].settings_dict
    return settings["NAME"], settings.get("HOST"), settings.get("PORT"), settings.get("USER")


def is_in_memory(connection: Any) -> bool:
    """Whether it is a SQLite database in memory."""
    return connection.vendor == "sqlite" and bool(connection.is_in_memory_db())


def _sqlite(connection: Any) -> str:
    name = str(connection.settings_dict["NAME"])
    if is_in_memory(connection):
        return f"{MEMORY}{name}"
    return f"{file_urls.url_of(Path(name).absolute())}?shared=true"


def _postgres(settings: dict[str, Any], schema: str) -> str:
    return _server("postgresql", settings, _libpq(settings) | {"schema": schema})


def _libpq(settings: dict[str, Any]) -> dict[str, str]:
    """The options of the database that are parameters of libpq."""
    options = dict(settings.get("OPTIONS") or {})
    parameters = {
        name: str(value)
        for name, value in options.items()
        if name not in NOT_LIBPQ and isinstance(value, str | int | float)
    }
    if role := options.get("assume_role"):
        parameters["options"] = f"{parameters.get('options', '')} -c role={role}".strip()
    return parameters


def _server(scheme: str, settings: dict[str, Any], parameters: dict[str, str]) -> str:
    user, password = settings.get("USER") or "", settings.get("PASSWORD") or ""
    login = quote(user, safe="") + (f":{quote(password, safe='')}" if password else "")
    host, port = settings.get("HOST") or "", settings.get("PORT") or ""
    if scheme == "postgresql" and host.startswith("/"):  # the folder of a Unix socket
        parameters["host"], host = host, ""
        if port:
            parameters["port"], port = str(port), ""
    where = (f"{login}@" if login else "") + (f"[{host}]" if ":" in host else host) + (f":{port}" if port else "")
    name = quote(settings.get("NAME") or "", safe="")
    return f"{scheme}://{where}/{name}" + (f"?{urlencode(parameters, quote_via=quote)}" if parameters else "")
