"""Guests: protocols of other systems, and tools around the queue. Nothing in Treadle needs one of them.

This table is the one place where a guest is registered: the command line finds its commands and protocols here by name,
and imports a guest only when it is used.
"""

from __future__ import annotations

from typing import Final

# By the name of each command: its module, or `module:attribute`, and its summary.
COMMANDS: Final = {
    "demo": ("treadle.contrib.demo.command", "Run a demo: no job is lost when its worker is killed."),
    "top": ("treadle.contrib.top.command", "Show queues and workers in the terminal, continuously."),
    "delayed": ("treadle.contrib.delayed.submit", "Post delayed jobs to a server and see how late they are."),
    "wasi": ("treadle.contrib.wasi.command", "Send sandboxed modules to a queue, or run those of one."),
    "mcp": ("treadle.contrib.mcp.command", "Serve tools that show and change jobs to an assistant."),
    "from": ("treadle.contrib.from_celery:from_", "Move a program from Celery to Treadle."),
}

# The module of each protocol; its `PROTOCOL` is a `treadle.cli.protocols.GuestProtocol`. The routes are tried in this
# order: `delayed` is last, because it answers every path.
PROTOCOLS: Final = {"queuey": "treadle.contrib.queuey.protocol", "delayed": "treadle.contrib.delayed.protocol"}
