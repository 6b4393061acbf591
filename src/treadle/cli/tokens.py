"""`treadle token`: make a token for the server and keep its hash in a file; and reading that file.

Without it people would put secrets into configuration, and hash them by hand or not at all.
"""

from __future__ import annotations

import os
import tomllib
from pathlib import Path

import click

from treadle.cli.say import USAGE, Stop, data, note, table
from treadle.server.tokens import SCOPES, Token, digest, new_secret


def read_tokens(file: Path) -> tuple[Token, ...]:
    """The tokens of a file. Raises Stop, naming what is wrong with it."""
    import msgspec

    try:
        found = tomllib.loads(file.read_text())
        tokens = tuple(msgspec.convert(each, Token) for each in found.get("token", ()))
    except FileNotFoundError:
        raise Stop(USAGE, f"there is no token file {file}; make it: `treadle token NAME --file {file}`") from None
    except (OSError, ValueError, msgspec.MsgspecError) as error:
        raise Stop(USAGE, f"{file}: {error}") from None
    for token in tokens:
        wrong = set(token.scopes) - set(SCOPES)
        if wrong or len(token.digest) != 64:
            what = f"there is no scope {', '.join(sorted(wrong))}" if wrong else "digest is no SHA-256 in hex"
            raise Stop(USAGE, f"{file}: token {token.name!r}: {what}")
    return tokens


def as_toml(token: Token) -> str:
    """One token as it stands in the file."""
    lines = ["[[token]]", f"name = {_text(token.name)}", f"digest = {_text(token.digest)}"]
    lines.append(f"scopes = [{', '.join(map(_text, token.scopes))}]")
    if token.queues:
        lines.append(f"queues = [{', '.join(map(_text, token.queues))}]")
    return "\n".join(lines) + "\n\n"


def _text(value: str) -> str:
    """A TOML basic string: what JSON escapes, TOML reads."""
    import json

    return json.dumps(value)


@click.command()
@click.argument("name", required=False)
@click.option("--file", "-f", type=click.Path(dir_okay=False, path_type=Path), default="tokens.toml", show_default=True)
@click.option("--scope", "scopes", multiple=True, type=click.Choice(SCOPES), help="What it may do [all of it].")
@click.option("--queue", "queues", multiple=True, help="Only jobs of this queue; may be repeated [all].")
def token(name: str | None, file: Path, scopes: tuple[str, ...], queues: tuple[str, ...]) -> int:
    """Make a token called NAME for `treadle server --tokens FILE`. Without NAME: list those of the file.

    The secret is printed once, on stdout; the file keeps its hash only. Scopes: enqueue (send jobs), work (claim and
    settle), read (look), operate (cancel, retry, limits).
    """
    known = read_tokens(file) if file.exists() else ()
    if name is None:
        rows = [(each.name, ", ".join(each.scopes), ", ".join(each.queues) or "all") for each in known]
        table(("name", "scopes", "queues"), rows, f"no tokens in {file}")
        return 0
    if any(each.name == name for each in known):
        raise Stop(USAGE, f"{file} has a token {name!r} already: choose another name, or remove that one from the file")
    secret = new_secret()
    made = Token(name=name, digest=digest(secret), scopes=scopes or SCOPES, queues=queues)
    try:
        with open(os.open(file, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600), "a") as out:
            out.write(as_toml(made))
    except OSError as error:
        raise Stop(USAGE, f"{file}: {error.strerror}") from None
    note(f"treadle: {name} may {', '.join(made.scopes)}; its hash is in {file}. The token, shown this once:")
    data(secret)
    return 0
