"""Guests: protocols of other systems, and tools around the queue. Nothing in Treadle needs one of them.

This table is the one place where a guest is registered: the command line finds its commands and protocols here by name,
and imports a guest only when it is used.
"""

from __future__ import annotations

from typing import Final

# The name of each command, its module, and its summary.
COMMANDS: Final = {
    "submit-jobs": ("treadle.contrib.delayed.submit", "Post delayed jobs and see how late they are."),
    "wasi": ("treadle.contrib.wasi.command", "Send sandboxed modules to a queue and get their output."),
    "wasi-runner": ("treadle.contrib.wasi.runner_command", "Run the sandboxed modules of a queue."),
    "mcp": ("treadle.contrib.mcp.command", "Serve tools that show and change jobs to an assistant, over stdio."),
    "from": ("treadle.contrib.celery.command", "Move a program from Celery to Treadle."),
}

# The module of each protocol; its `PROTOCOL` is a `treadle.cli.protocols.GuestProtocol`. The routes are tried in this
# order: `delayed` is last, because it answers every path.
PROTOCOLS: Final = {
    "queuey": "treadle.contrib.queuey.protocol",
    "delayed": "treadle.contrib.delayed.protocol",
}
