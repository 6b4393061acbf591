"""`python3 dev.py bench`: Treadle compared with its peers (harness/run.py), or one of the smaller benchmarks by name:

fleet           every feature on every storage with several worker processes
engine          Treadle alone
counted         the cost of counting for scrapers
claim-cost      the cost of a claim when many jobs are stored
backlog         the cost of a large backlog on a Redis server
blocked         the cost of one tenant's blocked jobs for the others
roads           the cost of each kind of job on a Redis server
http            the cost of requests on a server
check           the cost of `treadle storage check` with a million jobs
counting        the cost of statistics, and what kept counts add to a drain
looks           the cost of lists and counts at a million jobs
outbox          how fast a relay delivers the rows of an outbox, also while it is killed
lateness        how late delayed jobs are picked up
plans           how PostgreSQL finds the next jobs
churn           whether a database that was busy for an hour is slower than a new one
eta             how far the estimates of starts are off, in simulated fleets
codemod         the cost of `treadle from celery` for 2,000 modules, and whether all that it writes is valid
fleet-limits    the cost of limits in a fleet of workers
fleet-lines     the effect of other tasks' jobs and of batch tasks
acts            the time to cancel or retry many jobs
import          the cost of `import treadle`, also without bytecode
starts          the cost of starting a worker with many stored jobs
bulk            the time of large enqueue calls
singles         the cost of hints
within          the cost of an enqueue in a transaction against a plain INSERT
readers         the cost of a forgotten reader
paused          the effect of a paused worker on the other processes at a SQLite file
waits           how long calls wait for each other on PostgreSQL
strangers       how long plain enqueues take while other calls wait for a user's open transaction
django          the cost of enqueuing a Django task, next to django-tasks-db
otel            the cost of tracing: without, without an SDK, sampled out, and exported in batches
dashboard       the dashboard in a browser, and the cost of its viewers
server-hostile  the effect of hostile connections on ordinary callers
envs            makes the environments of the peers ahead of a run: `bench envs [NAME ...] [--python 3.13]`
pins            compiles their pins again: `bench pins [NAME ...]`
"""

from __future__ import annotations

import importlib
import sys

SMALLER = {
    "engine": "engine",
    "counted": "counted",
    "claim-cost": "claim_cost",
    "backlog": "backlog",
    "blocked": "blocked",
    "roads": "roads",
    "http": "over_http",
    "check": "checking",
    "counting": "counting",
    "looks": "looks",
    "lateness": "lateness",
    "outbox": "outbox",
    "plans": "plans",
    "churn": "churn",
    "fleet-limits": "fleet_limits",
    "acts": "acts",
    "import": "importing",
    "starts": "starts",
    "bulk": "bulk",
    "singles": "singles",
    "within": "within",
    "readers": "readers",
    "paused": "paused",
    "fleet-lines": "fleet_lines",
    "server-hostile": "hostile",
    "waits": "waits",
    "strangers": "strangers",
    "django": "django_enqueue",
    "otel": "otel",
    "dashboard": "dashboard.run",
    "eta": "eta",
    "codemod": "codemod",
    "fleet": "fleet.run",
}


def main(words: list[str]) -> int:
    name, rest = (words[0], words[1:]) if words else ("", [])
    if name == "pins":
        from benchmarks.harness.environments import pin

        pin([word for word in rest if not word.startswith("-")], [word for word in rest if word.startswith("-")])
    elif name == "envs":
        from benchmarks.harness.environments import main as envs

        return envs(rest)
    elif name in SMALLER:
        return importlib.import_module(f"benchmarks.{SMALLER[name]}").main(rest) or 0
    else:
        from benchmarks.harness.run import main as run

        return run(words)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
