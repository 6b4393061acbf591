"""`python3 dev.py bench`: Treadle beside its peers (harness/run.py); with a name in front, one of the smaller ones.

`bench engine` measures Treadle alone, `bench claim-cost` and `bench backlog` what very many stored jobs cost, `bench
blocked` what those of one blocked tenant cost the others, `bench roads` what a job costs a Redis server by what it asks
for, `bench http` what requests cost a server, `bench lateness` how late delayed jobs are picked up, `bench plans` how
PostgreSQL finds the next jobs, `bench churn` whether a database that was busy for an hour is slower than a new one.
`bench envs [NAME ...] [--python 3.13]` makes the environments of the peers ahead of a run, `bench pins [NAME ...]`
compiles their pins anew.
"""

from __future__ import annotations

import sys


def main(words: list[str]) -> int:
    name, rest = (words[0], words[1:]) if words else ("", [])
    if name == "pins":
        from benchmarks.harness.environments import pin

        pin([word for word in rest if not word.startswith("-")], [word for word in rest if word.startswith("-")])
    elif name == "envs":
        from benchmarks.harness.environments import main as envs

        return envs(rest)
    elif name in ("engine", "claim-cost", "backlog", "blocked", "roads", "http", "lateness", "plans", "churn"):
        from benchmarks import backlog, blocked, churn, claim_cost, engine, lateness, over_http, plans, roads

        smaller = {
            "engine": engine, "claim-cost": claim_cost, "backlog": backlog, "blocked": blocked, "roads": roads,
            "http": over_http, "lateness": lateness, "plans": plans, "churn": churn,
        }  # fmt: skip
        smaller[name].main(rest)
    else:
        from benchmarks.harness.run import main as run

        return run(words)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
