"""`treadle mcp`: serves tools that show, and with --allow-acts change, jobs to an assistant, over stdio."""

from __future__ import annotations

from importlib.util import find_spec
from typing import TYPE_CHECKING

import click

from treadle.cli.options import optional_app
from treadle.cli.output import FAILED, OK, Stop, note
from treadle.cli.target import Target

if TYPE_CHECKING:
    from treadle.app import App


@click.command()
@optional_app
@click.option("--url", metavar="URL", help="Storage URL. [default: TREADLE_URL, else treadle.db in this directory]")
@click.option("--allow-acts", is_flag=True, help="Also offer the tools that change something. [default: only reading]")
@click.option("--queues", metavar="NAMES", help="Show and change jobs of these queues only, separated by commas.")
@click.option("--no-payloads", is_flag=True, help="Show only the shapes of arguments, results, errors and logs.")
@click.option("--redact", metavar="NAME", multiple=True, help="Hide the values of this key, too. May be repeated.")
@click.option(
    "--reveal", metavar="NAME", multiple=True, help="Show the values of this key although it looks like a secret."
)
def mcp(
    app: str | None,
    url: str | None,
    allow_acts: bool,
    queues: str | None,
    no_payloads: bool,
    redact: tuple[str, ...],
    reveal: tuple[str, ...],
) -> None:
    """Serve tools over the Model Context Protocol on stdin and stdout, for an assistant's client to start.

    The tools list and explain jobs, queues, failures, workflows and more, as the HTTP API does. They only read unless
    --allow-acts is given. Each act is previewed first, and recorded in the audit log.
    """
    if find_spec("mcp") is None or find_spec("starlette") is None:
        raise Stop(FAILED, "treadle mcp needs the protocol's library: pip install 'mcp>=2' 'starlette>=0.45'")
    from treadle import __version__
    from treadle.contrib.mcp.calls import Rights
    from treadle.contrib.mcp.server import serve

    names = tuple(dict.fromkeys(queue.strip() for queue in (queues or "").split(",") if queue.strip()))
    if queues is not None and not names:
        raise click.UsageError("--queues: expected names separated by commas")
    rights = Rights(acts=allow_acts, queues=names, payloads=not no_payloads, redact=redact, reveal=reveal)
    target = Target(url, app)

    async def work(opened: App) -> None:
        note(f"treadle: serving tools for {target.url}" + ("" if allow_acts else ", which only read"))
        await serve(opened, rights, __version__)

    try:
        target.run(work)
    except KeyboardInterrupt:
        raise Stop(OK) from None
