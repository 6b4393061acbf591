"""`dev.py bench lateness`: how late delayed jobs are picked up on each storage, with the usual commands.

A server and three workers run as processes. Jobs have due times spread over some seconds, and `treadle delayed submit`
reports the lateness.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

TREADLE = (sys.executable, "-m", "treadle")
ROLES = "leader,follower,follower"


@contextlib.contextmanager
def storage(kind: str, folder: Path) -> Iterator[str]:
    """An empty storage with the highest durability of its server."""
    from tests.servers.postgres import Postgres
    from tests.servers.valkey import Valkey

    if kind == "sqlite":
        yield f"sqlite:///{folder / 'jobs.db'}"
    elif kind == "valkey":
        with Valkey(fsync="always") as server:
            yield server.url
    else:
        with Postgres(durable=True) as server:
            yield server.database()


def measure(url: str, folder: Path, port: int, jobs: int, seconds: float) -> dict[str, float]:
    words = [*TREADLE, "up", "--protocol", "delayed", "--roles", ROLES, "--url", url, "--host", "127.0.0.1"]
    up = subprocess.Popen(
        [*words, "--port", str(port), "--quiet"],
        cwd=folder,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert up.stderr is not None
        ready = 0
        while ready < ROLES.count(",") + 1:
            line = up.stderr.readline()
            assert line, "it did not start"
            ready += "1 slot" in line
        submit = [*TREADLE, "delayed", "submit", "--json", "--endpoint", f"http://127.0.0.1:{port}"]
        done = subprocess.run(
            [*submit, "--count", str(jobs), "--offset", str(seconds)], capture_output=True, text=True, check=True
        )
        found: dict[str, float] = json.loads(done.stdout)
        return found
    finally:
        up.send_signal(signal.SIGINT)
        up.communicate(timeout=60)


def main(words: list[str]) -> None:
    parser = argparse.ArgumentParser(prog="dev.py bench lateness")
    parser.add_argument("--storages", nargs="+", default=["sqlite", "valkey", "postgres"])
    parser.add_argument("--jobs", type=int, default=300)
    parser.add_argument("--seconds", type=float, default=15.0)
    asked = parser.parse_args(words)
    from tests.servers.process import free_port

    print(f"{asked.jobs} jobs due within {asked.seconds:g} s, 3 workers, load {os.getloadavg()[0]:.1f}; late by, ms")
    for kind in asked.storages:
        with tempfile.TemporaryDirectory() as name, storage(kind, Path(name)) as url:
            found = measure(url, Path(name), free_port(), asked.jobs, asked.seconds)
        late = ", ".join(f"{point} {found[f'late_{point}'] * 1000:.1f}" for point in ("p50", "p99", "max"))
        print(f"{kind:10} {found['completed']:.0f} completed; {late}", flush=True)
