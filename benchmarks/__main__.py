"""`python3 dev.py bench`: Treadle compared with its peers (harness/run.py), or one of the smaller benchmarks by name:

fleet           every feature on every storage with several worker processes
engine          Treadle alone
claim-cost      the cost of a claim when many jobs are stored
roads           the cost of each kind of job on a Redis server
http            the cost of requests on a server
check           the cost of `treadle storage check` with a million jobs
looks           the cost of lists and counts at a million jobs
outbox          how fast a relay delivers the rows of an outbox, also while it is killed
eta             how far the estimates of starts are off, in simulated fleets
fleet-limits    the cost of limits in a fleet of workers
acts            the time to cancel or retry many jobs
import          the cost of `import treadle`, also without bytecode
singles         the cost of hints
within          the cost of an enqueue in a transaction against a plain INSERT
paused          the effect of a paused worker on the other processes at a SQLite file
sleepers        the cost of 100,000 sleeping jobs for the jobs beside them, also while all wake
waits           how long calls wait for each other on PostgreSQL
strangers       how long plain enqueues take while other calls wait for a user's open transaction
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
    "claim-cost": "claim_cost",
    "roads": "roads",
    "http": "over_http",
    "check": "checking",
    "looks": "looks",
    "outbox": "outbox",
    "fleet-limits": "fleet_limits",
    "acts": "acts",
    "import": "importing",
    "singles": "singles",
    "within": "within",
    "paused": "paused",
    "server-hostile": "hostile",
    "sleepers": "sleepers",
    "waits": "waits",
    "strangers": "strangers",
    "dashboard": "dashboard.run",
    "eta": "eta",
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
