"""`treadle token`: creates tokens for the server and lists them. The file stores only the hash of a secret."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import click

from treadle.cli.output import USAGE, Stop, data, note, table
from treadle.core.clock import wall
from treadle.core.command_lines import command
from treadle.server.auth import token_file
from treadle.server.auth.tokens import SCOPES, Token, digest, end, new_secret, place, rights


def read_tokens(file: Path) -> tuple[Token, ...]:
    """Read the tokens of a file; print a note if users other than its owner can access it. Raises Stop."""
    try:
        tokens = token_file.read(file.read_text())
        loose = token_file.exposed(file)
    except FileNotFoundError:
        raise Stop(
            USAGE, f"there is no token file {file}; make it: {command('token', 'NAME', options=['--file', str(file)])}"
        ) from None
    except (OSError, ValueError, token_file.BadTokens) as error:
        raise Stop(USAGE, f"{file}: {error}") from None
    if loose is not None:
        note(f"treadle: {loose}")
    return tokens


@click.command()
@click.argument("name", required=False)
@click.option("--file", "-f", type=click.Path(dir_okay=False, path_type=Path), default="tokens.toml", show_default=True)
@click.option(
    "--scope",
    "scopes",
    multiple=True,
    type=click.Choice(tuple(SCOPES)),
    help="Scope of the token; may be repeated. [default: all scopes]",
)
@click.option(
    "--queue", "queues", multiple=True, help="Queue that the token may use; may be repeated. [default: all queues]"
)
@click.option(
    "--group",
    "groups",
    multiple=True,
    help='Group of its holder, who decides requests for "group:NAME"; may be repeated; "*": every one. [default: none]',
)
@click.option("--expires", metavar="DATE", help="Day or time (UTC) at which the token expires. [default: never]")
@click.option(
    "--no-payloads",
    is_flag=True,
    help="Show this token only the shapes of arguments, results, errors and logs, and give it no scope 'work'.",
)
def token(
    name: str | None,
    file: Path,
    scopes: tuple[str, ...],
    queues: tuple[str, ...],
    groups: tuple[str, ...],
    expires: str | None,
    no_payloads: bool,
) -> int:
    """Create a token called NAME for `treadle server --tokens FILE`. Without NAME, list the rights of each token.

    The secret is printed once, on stdout; the file stores only its hash. Scopes: enqueue (send jobs), work (claim and
    settle), read (list and show), operate (cancel, retry, signal, pause).
    """
    known = read_tokens(file) if file.exists() else ()
    if name is None:
        rows = [(token.name, rights(token), place(token), end(token, wall())) for token in known]
        table(("name", "may", "in", "expires"), rows, f"no tokens in {file}")
        return 0
    if any(token.name == name for token in known):
        raise Stop(USAGE, f"{file} already has a token {name!r}: choose another name, or remove that token")
    secret = new_secret()
    possible = tuple(scope for scope in SCOPES if scope != "work" or not no_payloads)
    created = Token(
        name=name,
        digest=digest(secret),
        scopes=scopes or possible,
        queues=queues,
        expires=_moment(expires),
        payloads=not no_payloads,
        groups=groups,
    )
    try:
        token_file.read(token_file.as_toml(created))
    except token_file.BadTokens as error:
        raise Stop(USAGE, str(error)) from None
    try:
        token_file.add(file, created)
    except token_file.BadTokens as error:
        raise Stop(USAGE, f"{file}: {error}") from None
    except OSError as error:
        raise Stop(USAGE, f"{file}: {error.strerror}") from None
    note(
        f"treadle: {name} may {rights(created)} in {place(created)}; its hash is in {file}. The token, shown only now:"
    )
    data(secret)
    return 0


def _moment(text: str | None) -> float | None:
    """Parse the time of an option. A date means midnight; a time without a zone is in UTC."""
    if text is None:
        return None
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise Stop(USAGE, f"--expires: expected a day or a time, such as 2027-01-31, found {text!r}") from None
    return (moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)).timestamp()
