"""Options of the commands that serve HTTP."""

from __future__ import annotations

from pathlib import Path

import click

from treadle.cli.options import added, duration, filing, number, several

serving = added(
    click.option(
        "--host",
        envvar="TREADLE_HOST",
        help="Address to listen on. [default: 127.0.0.1; with --protocol and --tokens: 0.0.0.0]",
    ),
    click.option(
        "--port",
        type=click.IntRange(0, 65535),
        envvar="TREADLE_PORT",
        help="Port to listen on; 0 picks a free one. [default: 7373; queuey: from 1717; delayed: 8080]",
    ),
    click.option(
        "--tokens",
        type=click.Path(dir_okay=False, path_type=Path),
        envvar="TREADLE_TOKENS",
        metavar="FILE",
        help="File of tokens, written by `treadle token`.",
    ),
    click.option(
        "--open",
        "open_",
        is_flag=True,
        help="Allow other machines to connect without tokens. With --protocol and without --api, --host alone "
        "allows it: clients of the systems that these protocols replace send no tokens.",
    ),
    several(
        "--allow-host",
        "hosts",
        metavar="NAME",
        envvar="TREADLE_ALLOW_HOST",
        help="Host name that requests may use; .example.org allows every name below it. May be repeated.",
    ),
    several("--origin", "origins", help="Origin whose web pages may call the server; may be repeated."),
    click.option(
        "--rate",
        type=click.FloatRange(0, min_open=True),
        help="Requests per second for each token. [default: no limit]",
    ),
    number("--requests", help="Concurrent requests for each token. [default: 512]"),
    number("--connections", help="Concurrent connections. [default: three quarters of ulimit -n, at most 10000]"),
    click.option("--max-body", type=click.IntRange(1_000), help="Bytes of the largest request. [default: 33554432]"),
    duration("--timeout", help="Seconds that one response may take. [default: 30]"),
    click.option("--dashboard", is_flag=True, help="Serve the dashboard at /dashboard/, and the API that it needs."),
    several(
        "--proxy",
        "proxies",
        metavar="ADDRESS",
        envvar="TREADLE_PROXY",
        help="Address or network of a proxy whose X-Forwarded-For, -Proto and -Prefix headers are believed; may be "
        "repeated.",
    ),
    several(
        "--redact",
        metavar="NAME",
        envvar="TREADLE_REDACT",
        help="Key whose values answers hide, besides passwords, tokens and the like; may be repeated.",
    ),
    several(
        "--reveal",
        metavar="NAME",
        envvar="TREADLE_REVEAL",
        help="Key whose values answers show although it looks like a secret, such as max_tokens; may be repeated.",
    ),
    click.option(
        "--pass-texts",
        is_flag=True,
        help="Store arguments that are encrypted or in a blob store also if the app of this server cannot read "
        "them: its workers have the keys or the blob store.",
    ),
    click.option("--tls-cert", type=click.Path(exists=True, dir_okay=False), help="TLS certificate file."),
    click.option("--tls-key", type=click.Path(exists=True, dir_okay=False), help="TLS key file."),
    click.option("--no-docs", is_flag=True, help="Do not serve /docs and /v1/openapi.json."),
    click.option("--quiet", is_flag=True, help="Do not log each request."),
    filing,
)
