"""`python3 dev.py bench`: Treadle beside its peers (harness/run.py); with a name in front, one of the smaller ones.

`bench fleet` measures every feature on every storage with several worker processes, `bench engine` Treadle alone,
`bench claim-cost` and `bench backlog` what very many stored jobs cost, `bench blocked` what those of one blocked tenant
cost the others, `bench roads` what a job costs a Redis server by what it asks for, `bench http` what requests cost a
server, `bench lateness` how late delayed jobs are picked up, `bench plans` how PostgreSQL finds the next jobs, `bench
churn` whether a database that was busy for an hour is slower than a new one, `bench fleet-limits` what limits cost a
fleet of workers, `bench fleet-lines` what jobs of other tasks and batch tasks do, `bench acts` what a cancel or a retry
of many jobs takes, `bench starts` what the start of a worker costs beside a million jobs, `bench bulk` what many jobs
in one call take, `bench singles` what hints cost, `bench readers` what a forgotten reader costs, `bench waits` how long
calls wait for each other on PostgreSQL, `bench server-hostile` what ordinary callers notice of hostile connections.
`bench envs [NAME ...] [--python 3.13]` makes the environments of the peers ahead of a run, `bench pins [NAME ...]`
compiles their pins anew.
"""

from __future__ import annotations

import importlib
import sys

SMALLER = {
    "engine": "engine",
    "claim-cost": "claim_cost",
    "backlog": "backlog",
    "blocked": "blocked",
    "roads": "roads",
    "http": "over_http",
    "lateness": "lateness",
    "plans": "plans",
    "churn": "churn",
    "fleet-limits": "fleet_limits",
    "acts": "acts",
    "starts": "starts",
    "bulk": "bulk",
    "singles": "singles",
    "readers": "readers",
    "fleet-lines": "fleet_lines",
    "server-hostile": "hostile",
    "waits": "waits",
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
