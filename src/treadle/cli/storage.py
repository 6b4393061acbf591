"""`treadle storage`: commands that operators need now and then, for the storage as a whole."""

from __future__ import annotations

import click

from treadle.cli.group import Group, Lazy

COMMANDS: Lazy = {
    "migrate": ("treadle.cli.migrate", "Migrate the storage to the schema of this Treadle, or create it."),
    "move": ("treadle.cli.move", "Move every job to another storage, while workers and producers may run."),
    "export": ("treadle.cli.storage_file:export", "Write every job, limit and schedule as JSON lines."),
    "import": ("treadle.cli.storage_file:import_", "Store the jobs, limits and schedules of an export."),
    "check": ("treadle.cli.check", "Compare the code with the stored jobs, before a deployment."),
    "relay": ("treadle.cli.relay", "Deliver the jobs of an app's outbox to its storage, and list those refused."),
    "blobs": ("treadle.cli.blobs", "Count the large texts in the blob store, and delete those of no job."),
    "keys": ("treadle.cli.keys", "Make a key for encryption, and count the stored texts of each key."),
    "audit": ("treadle.cli.audit", "List who did what: the acts of operators."),
    "metrics": ("treadle.cli.metrics", "Show what is stored as metrics for Prometheus."),
}


@click.group(cls=Group, lazy=COMMANDS)
def storage() -> None:
    """Migrate, move, export, import, check and audit a storage, and relay to it."""
