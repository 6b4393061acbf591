"""The first output of a fleet of workers."""

from __future__ import annotations

from treadle.cli.output import note, plural
from treadle.worker.fleet import Hello


def greet_again(hello: Hello, before: Hello) -> None:
    """Print which tasks a reload has added and removed."""
    changes = [f"new task {name}" for name in sorted(set(hello.tasks) - set(before.tasks))]
    changes += [f"task {name} is gone" for name in sorted(set(before.tasks) - set(hello.tasks))]
    note("treadle: claiming jobs again" + "".join(f"; {change}" for change in changes[:8]))


def greet(hello: Hello, processes: int) -> None:
    """Print the storage, queues, tasks and slots, and how to stop."""
    queues = ", ".join(name if weight == 1 else f"{name} (weight {weight})" for name, weight in hello.queues.items())
    tasks = ", ".join(hello.tasks[:8]) + (f" and {len(hello.tasks) - 8} more" if len(hello.tasks) > 8 else "")
    note(f"treadle: jobs live in {hello.url}")
    for text in hello.notes:
        note(f"treadle: {text}")
    if hello.found:
        note(f"  app     {hello.found}")
    note(f"  queues  {queues}")
    note(f"  tasks   {tasks}")
    note(f"  slots   {hello.slots} in each of {plural(processes, 'process')}")
    if hello.labels:
        note(f"  labels  {', '.join(f'{name}={value}' if value else name for name, value in hello.labels.items())}")
    if hello.resources:
        per_process = ", ".join(f"{name}={amount:,}" for name, amount in hello.resources.items())
        total = ", ".join(f"{name}={amount * processes:,}" for name, amount in hello.resources.items())
        note(f"  has     {per_process} in each process" + (f"; {total} in all" if processes > 1 else ""))
    for task in hello.misplaced:
        note(f"  note    task {task!r} is left to other workers: it needs labels or resources that this one has not")
    note(f"treadle: claiming jobs; press Ctrl-C to stop after at most {hello.grace:g} s, twice to stop at once")
