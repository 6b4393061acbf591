"""What the commands of the delayed face share: where jobs are delivered, and the environment its users know.

Without it `server`, `up` and `worker` would each read API_PORT and --webhook in their own way.
"""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import click

from treadle.cli.output import USAGE, Stop, seconds

if TYPE_CHECKING:
    from treadle.app import App
    from treadle.compat.delayed.delivery import Delivery

HEADER = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]+")
ROLES = ("leader", "follower", "auto")
NAMES = ("API_HOST", "API_PORT", "REDIS_HOST", "REDIS_PORT", "REDIS_DB", "WORKER_ROLE", "API_ENDPOINT")


def delivering(command: Callable[..., Any]) -> Callable[..., Any]:
    """The options that say where delayed jobs go."""
    options = [
        click.option(
            "--webhook",
            metavar="URL",
            envvar="TREADLE_WEBHOOK",
            help="delayed: POST each job to this URL; 2xx is done. @FILE reads it from a file.",
        ),
        click.option(
            "--header",
            "headers",
            multiple=True,
            metavar="'NAME: VALUE'",
            help="... with this header. @FILE reads headers from a file, one a line.",
        ),
        click.option(
            "--command",
            metavar="COMMAND",
            envvar="TREADLE_COMMAND",
            help="delayed: run this for each job, the payload on stdin; exit code 0 is done.",
        ),
        click.option(
            "--command-env",
            "command_env",
            multiple=True,
            metavar="NAME",
            help="... with this variable, although it may hold credentials, such as PGPASSWORD; repeatable.",
        ),
        click.option(
            "--deliver-timeout", type=seconds, metavar="SECONDS", help="Seconds one webhook or command may take [30]."
        ),
    ]
    for option in reversed(options):
        command = option(command)
    return command


def delivery_of(options: Mapping[str, Any]) -> Delivery | None:
    """What was asked for; None: nothing. Raises Stop."""
    from treadle.compat.delayed.delivery import TIMEOUT, Delivery

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
            words = tuple(shlex.split(command))
        except ValueError as error:
            raise Stop(USAGE, f"--command cannot be read: {error}") from None
        return Delivery(how="command", target=words, timeout=limit, environment=options["command_env"])
    return None


def _lines(text: str, option: str) -> list[str]:
    """What was typed, or the lines of the file it names: process lists show what is typed. Raises Stop."""
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
        # not shown: it may be the secret, without its name
        raise Stop(USAGE, "--header: expected 'Name: value' in printable characters, found something else")
    return name.strip(), value.strip()


def _needs_aiohttp() -> None:
    try:
        import aiohttp  # noqa: F401
    except ImportError as error:
        raise Stop(USAGE, f"a webhook needs the extra: pip install 'aiohttp>=3.11' ({error})") from None


def prepare(app: App, named: str | None, delivery: Delivery | None) -> None:
    """See to it that the app's delayed jobs go somewhere: to its own function, else as asked, else onto stdout.
    Raises Stop."""
    from treadle.compat.delayed.delivery import Delivery, deliver, has_handler

    if has_handler(app):
        if delivery is not None:
            raise Stop(USAGE, f"{named!r} has a @app.delayed_handler: give no --webhook and no --command beside it")
        return
    if named is not None and delivery is None:
        words = "decorate a function with it, or give --webhook or --command"
        raise Stop(USAGE, f"{named!r} has no @app.delayed_handler: {words}")
    deliver(app, delivery or Delivery())


# --- the environment its users know; our own names win


def known(name: str, environment: Mapping[str, str] = os.environ) -> str | None:
    """One of NAMES, if it says something."""
    return environment.get(name) or None


def redis_url(environment: Mapping[str, str] = os.environ) -> str | None:
    """Where REDIS_HOST, REDIS_PORT and REDIS_DB say that jobs live; None if none of them is there. Raises Stop."""
    host, port, db = (known(name, environment) for name in ("REDIS_HOST", "REDIS_PORT", "REDIS_DB"))
    if host is None and port is None and db is None:
        return None
    host = host or "localhost"
    number = _number("REDIS_PORT", port or "6379", 65_535)
    return f"redis://{quote(host) if ':' not in host else f'[{host}]'}:{number}/{_number('REDIS_DB', db or '0', 2**31)}"


def listening(options: dict[str, Any], environment: Mapping[str, str] = os.environ) -> None:
    """API_HOST and API_PORT, where neither an option nor a name of ours says something else. Raises Stop."""
    options["host"] = options["host"] or known("API_HOST", environment)
    port = known("API_PORT", environment)
    if options["port"] is None and port is not None:
        options["port"] = _number("API_PORT", port, 65_535)


def role(given: str | None, environment: Mapping[str, str] = os.environ) -> str:
    """The role of a worker of delayed jobs: follower, if nobody says another. Raises Stop."""
    found = given or known("WORKER_ROLE", environment) or "follower"
    if found not in ROLES:
        raise Stop(USAGE, f"WORKER_ROLE: expected {', '.join(ROLES)}, found {found!r}")
    return found


def roles(text: str) -> Sequence[str]:
    """`leader,follower,follower`. Raises Stop."""
    found = [part.strip() for part in text.split(",") if part.strip()]
    for each in found:
        if each not in ROLES:
            raise Stop(USAGE, f"--roles: expected {', '.join(ROLES)}, with commas between them, found {each!r}")
    if not found:
        raise Stop(USAGE, "--roles: expected such as leader,follower,follower")
    return found


def _number(name: str, text: str, most: int) -> int:
    if not text.isdecimal() or int(text) > most:
        raise Stop(USAGE, f"{name}: expected a number up to {most}, found {text!r}")
    return int(text)
