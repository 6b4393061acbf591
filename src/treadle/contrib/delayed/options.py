"""Options and environment variables of the delayed protocol, shared by `server`, `up` and `worker`.

An option takes precedence over a TREADLE_ variable, and a TREADLE_ variable over one of the protocol, such as API_PORT.
"""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import click

from treadle.cli.options import ROLES, added, duration, several
from treadle.cli.output import USAGE, Stop

if TYPE_CHECKING:
    from treadle.app import App
    from treadle.contrib.delayed.delivery import Delivery

HEADER = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]+")
NAMES = ("API_HOST", "API_PORT", "REDIS_HOST", "REDIS_PORT", "REDIS_DB", "WORKER_ROLE", "API_ENDPOINT")


delivering = added(
    click.option(
        "--webhook",
        metavar="URL",
        envvar="TREADLE_WEBHOOK",
        help="delayed: URL to POST each job to; a 2xx response means success. @FILE reads the URL from a file.",
    ),
    several(
        "--header",
        "headers",
        metavar="'NAME: VALUE'",
        help="With --webhook: a header to send; may be repeated. @FILE reads headers from a file, one per line.",
    ),
    click.option(
        "--command",
        metavar="COMMAND",
        envvar="TREADLE_COMMAND",
        help="delayed: command to run for each job, with the payload on stdin; exit code 0 means success.",
    ),
    several(
        "--command-env",
        "command_env",
        metavar="NAME",
        help="With --command: variable to pass on although it may be secret, such as PGPASSWORD; may be repeated.",
    ),
    duration("--deliver-timeout", help="Seconds that one webhook or command may take. [default: 30]"),
)


def delivery_of(options: Mapping[str, Any]) -> Delivery | None:
    """The delivery that the options ask for, or None. Raises Stop."""
    from treadle.contrib.delayed.delivery import TIMEOUT, Delivery

    webhook, command, timeout = options["webhook"], options["command"], options["deliver_timeout"]
    if webhook and command:
        raise Stop(USAGE, "give --webhook or --command, not both")
    headers = tuple(_header(line) for text in options["headers"] for line in _lines(text, "--header"))
    if headers and not webhook:
        raise Stop(USAGE, "--header goes with --webhook")
    if options["command_env"] and not command:
        raise Stop(USAGE, "--command-env goes with --command")
    if timeout is not None and not (webhook or command):
        raise Stop(USAGE, "--deliver-timeout goes with --webhook or --command")
    limit = TIMEOUT if timeout is None else timeout
    if webhook:
        [webhook] = _lines(webhook, "--webhook")[:1] or [""]
        _needs_aiohttp()
        return Delivery(how="webhook", target=(webhook,), headers=headers, timeout=limit)
    if command:
        try:
            target = tuple(shlex.split(command))
        except ValueError as error:
            raise Stop(USAGE, f"--command cannot be read: {error}") from None
        return Delivery(how="command", target=target, timeout=limit, environment=options["command_env"])
    return None


def _lines(text: str, option: str) -> list[str]:
    """The text itself, or for @FILE the file's lines: process lists would show a secret. Raises Stop."""
    if not text.startswith("@"):
        return [text]
    try:
        lines = [line.strip() for line in Path(text[1:]).read_text().splitlines()]
    except (OSError, ValueError) as error:
        raise Stop(USAGE, f"{option} {text}: {getattr(error, 'strerror', None) or 'not a text file'}") from None
    return [line for line in lines if line and not line.startswith("#")]


def _header(text: str) -> tuple[str, str]:
    name, colon, value = text.partition(":")
    if not HEADER.fullmatch(name.strip()) or not colon or not value.strip().isprintable():
        # The text may be a secret without its header name: keep it out of the error.
        raise Stop(USAGE, "--header: expected 'Name: value' in printable characters, found something else")
    return name.strip(), value.strip()


def _needs_aiohttp() -> None:
    try:
        import aiohttp  # noqa: F401
    except ImportError as error:
        raise Stop(USAGE, f"a webhook needs the extra: pip install 'aiohttp>=3.11' ({error})") from None


def prepare(app: App, named: str | None, delivery: Delivery | None) -> None:
    """Give the app a handler for delayed jobs: its own, else `delivery`, else, without a user's app, stdout.
    Raises Stop."""
    from treadle.contrib.delayed.delivery import Delivery, deliver, has_handler

    if has_handler(app):
        if delivery is not None:
            raise Stop(USAGE, f"{named!r} has a @app.delayed_handler: remove it, or leave out --webhook and --command")
        return
    if named is not None and delivery is None:
        advice = "decorate a function with it, or give --webhook or --command"
        raise Stop(USAGE, f"{named!r} has no @app.delayed_handler: {advice}")
    deliver(app, delivery or Delivery())


# --- environment variables of the delayed protocol; TREADLE_ variables take precedence


def known(name: str, environment: Mapping[str, str] = os.environ) -> str | None:
    """The value of one of NAMES; None if it is unset or empty."""
    return environment.get(name) or None


def redis_url(environment: Mapping[str, str] = os.environ) -> str | None:
    """The storage URL of REDIS_HOST, REDIS_PORT and REDIS_DB; None if none of them is set. Raises Stop."""
    host, port, db = (known(name, environment) for name in ("REDIS_HOST", "REDIS_PORT", "REDIS_DB"))
    if host is None and port is None and db is None:
        return None
    host = host or "localhost"
    number = _number("REDIS_PORT", port or "6379", 65_535)
    return f"redis://{quote(host) if ':' not in host else f'[{host}]'}:{number}/{_number('REDIS_DB', db or '0', 2**31)}"


def listening(options: dict[str, Any], environment: Mapping[str, str] = os.environ) -> None:
    """Fill in API_HOST and API_PORT unless an option or a TREADLE_ variable is set. Raises Stop."""
    options["host"] = options["host"] or known("API_HOST", environment)
    port = known("API_PORT", environment)
    if options["port"] is None and port is not None:
        options["port"] = _number("API_PORT", port, 65_535)


def role(option: str | None, environment: Mapping[str, str] = os.environ) -> str:
    """The role of a worker of delayed jobs: the option, WORKER_ROLE or follower. Raises Stop."""
    name = option or known("WORKER_ROLE", environment) or "follower"
    if name not in ROLES:
        raise Stop(USAGE, f"WORKER_ROLE: expected {', '.join(ROLES)}, found {name!r}")
    return name


def _number(name: str, text: str, most: int) -> int:
    if not text.isdecimal() or int(text) > most:
        raise Stop(USAGE, f"{name}: expected a number up to {most}, found {text!r}")
    return int(text)
