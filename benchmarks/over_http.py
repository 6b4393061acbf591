"""`python3 dev.py bench http`: the cost of a request on a server, and how many requests one core serves.

The server runs over SQLite in its own process; clients use plain sockets in this process, so that they cost little.
Where the system allows it, each process has a core to itself. CPU is the server's, from /proc (missing where there is
none): it shows what a core can do even if other programs run, which the rate does not.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from benchmarks.measures import Figures

STORAGES = {"sqlite normal": "sqlite:///jobs.db?synchronous=normal", "sqlite full": "sqlite:///jobs.db"}
CONNECTIONS = 32
RUNNERS = 200
RESTING = 20.0  # seconds for which the runners are watched
PAGE = os.sysconf("SC_PAGE_SIZE") if hasattr(os, "sysconf") else 4096
TICKS = os.sysconf("SC_CLK_TCK") if hasattr(os, "sysconf") else 100

JOB = {"task": "noop", "args": [17], "queue": "bench"}
CLAIM = {"worker": "r{}#1", "queues": [["bench", 1]], "wait": 20, "max_lost": 3}


def request(path: str, body: object) -> bytes:
    content = json.dumps(body).encode()
    head = (
        f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: {len(content)}"
    )
    return f"{head}\r\n\r\n".encode() + content


class Server:
    """The measured process."""

    def __init__(self, process: subprocess.Popen[str], port: int) -> None:
        self.process, self.port = process, port

    def cpu(self) -> float:
        """CPU seconds used so far."""
        try:
            fields = Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()
        except OSError:
            return float("nan")
        return (int(fields[11]) + int(fields[12])) / TICKS

    def memory(self) -> float:
        """Megabytes of memory in use."""
        try:
            return int(Path(f"/proc/{self.process.pid}/statm").read_text().split()[1]) * PAGE / 1e6
        except OSError:
            return float("nan")


@contextmanager
def serving(url: str, pinned: bool = True) -> Iterator[Server]:
    """A server on an empty storage. pinned: on the first core; this process moves to the others."""
    cores = sorted(os.sched_getaffinity(0)) if pinned and hasattr(os, "sched_getaffinity") else []
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "treadle", "server", "--url", url, "--port", "0", "--quiet"]
        process = subprocess.Popen(command, cwd=folder, stderr=subprocess.PIPE, text=True)
        try:
            assert process.stderr is not None
            said, found = "", None
            for line in process.stderr:
                said += line
                if found := re.search(r"127\.0\.0\.1:(\d+)", line):
                    break
            if found is None:
                raise SystemExit(f"the server did not start: {said}")
            if len(cores) > 1:
                os.sched_setaffinity(process.pid, cores[:1])
                os.sched_setaffinity(0, cores[1:])
            yield Server(process, int(found[1]))
        finally:
            if len(cores) > 1:
                os.sched_setaffinity(0, cores)
            process.terminate()
            process.communicate(timeout=60)


class Connection(asyncio.Protocol):
    """Sends one request after the other over one connection until none is left; notes how long each took."""

    def __init__(self, next_one: Callable[[], bytes | None], took: list[float], refused: list[bytes]) -> None:
        self._next, self._took, self._refused = next_one, took, refused
        self.ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._buffer = b""
        self._sent = 0.0

    def connection_made(self, transport: Any) -> None:
        self._transport = transport
        self._send()

    def _send(self) -> None:
        raw = self._next()
        if raw is None:
            self._transport.close()
            return
        self._sent = time.perf_counter()
        self._transport.write(raw)

    def data_received(self, data: bytes) -> None:
        buffer = self._buffer = self._buffer + data if self._buffer else data
        end = buffer.find(b"\r\n\r\n")
        if end < 0:
            return
        at = buffer.find(b"content-length: ", 0, end)
        size = int(buffer[at + 16 : buffer.find(b"\r\n", at)]) if at >= 0 else 0
        if len(buffer) < end + 4 + size:
            return
        if buffer[9:11] != b"20":
            self._refused.append(buffer)
        self._buffer = buffer[end + 4 + size :]
        self._took.append(time.perf_counter() - self._sent)
        self._send()

    def connection_lost(self, exc: Exception | None) -> None:
        if not self.ended.done():
            self.ended.set_result(None)


async def flood(port: int, connections: int, requests: Iterator[bytes]) -> list[float]:
    """Send all requests over that many connections -> how long each took, in seconds."""
    took: list[float] = []
    refused: list[bytes] = []
    loop = asyncio.get_running_loop()

    def one() -> Connection:
        return Connection(lambda: next(requests, None), took, refused)

    made = [await loop.create_connection(one, "127.0.0.1", port) for _ in range(connections)]
    await asyncio.gather(*(protocol.ended for _, protocol in made))
    if refused:
        raise SystemExit(f"{len(refused)} of {len(took)} requests were refused: {refused[0]!r}")
    return took


def run(work: object) -> object:
    if sys.platform == "win32":
        return asyncio.run(work)  # type: ignore[arg-type]
    import uvloop

    return uvloop.run(work)  # type: ignore[arg-type]


def enqueues(server: Server, count: int) -> Figures:
    """One job per request, over 32 persistent connections."""
    raw = request("/v1/jobs", JOB)
    run(flood(server.port, CONNECTIONS, (raw for _ in range(2_000))))  # warm-up
    cpu, begun = server.cpu(), time.perf_counter()
    took = run(flood(server.port, CONNECTIONS, (raw for _ in range(count))))
    wall, cpu = time.perf_counter() - begun, server.cpu() - cpu
    assert isinstance(took, list)
    took.sort()
    return {
        "one job a request, jobs/s": count / wall,
        "one job a request, server CPU us": cpu / count * 1e6,
        "one job a request, jobs/s on a whole core": count / cpu,
        "one job a request, p50 ms": took[len(took) // 2] * 1e3,
        "one job a request, p99 ms": took[len(took) * 99 // 100] * 1e3,
    }


def batches(server: Server, count: int) -> Figures:
    """100 jobs per request."""
    raw = request("/v1/jobs/batch", {"jobs": [JOB] * 100})
    run(flood(server.port, CONNECTIONS, (raw for _ in range(20))))
    cpu, begun = server.cpu(), time.perf_counter()
    took = run(flood(server.port, CONNECTIONS, (raw for _ in range(count // 100))))
    wall, cpu = time.perf_counter() - begun, server.cpu() - cpu
    assert isinstance(took, list)
    took.sort()
    return {
        "100 jobs a request, jobs/s": count / wall,
        "100 jobs a request, server CPU us a job": cpu / count * 1e6,
        "100 jobs a request, jobs/s on a whole core": count / cpu,
        "100 jobs a request, p99 ms": took[len(took) * 99 // 100] * 1e3,
    }


def runners(server: Server) -> Figures:
    """200 runners wait for jobs that do not come."""

    async def rest() -> float:
        until = time.perf_counter() + RESTING
        numbers = iter(range(RUNNERS))

        def again() -> Callable[[], bytes | None]:
            claim = {**CLAIM, "worker": f"r{next(numbers)}#1", "wait": 10}
            raw = request("/v1/work/claim", claim)
            return lambda: raw if time.perf_counter() < until else None

        loop = asyncio.get_running_loop()
        made = [
            await loop.create_connection(lambda: Connection(again(), [], []), "127.0.0.1", server.port)
            for _ in range(RUNNERS)
        ]
        await asyncio.sleep(2)  # until all are connected
        cpu, begun = server.cpu(), time.perf_counter()
        await asyncio.sleep(RESTING - 4)
        share = (server.cpu() - cpu) / (time.perf_counter() - begun)
        for transport, _ in made:
            transport.close()
        return share

    share = run(rest())
    assert isinstance(share, float)
    return {f"{RUNNERS} runners that wait, % of a core": share * 100}


def memory(server: Server, count: int) -> Figures:
    """Memory of the server after a tenth of the requests, and after all of them: jobs enqueued and read."""
    raw = request("/v1/jobs", {**JOB, "keep": 0})
    found: Figures = {}
    for done, part in ((count // 10, count // 10), (count, count - count // 10)):
        run(flood(server.port, CONNECTIONS, (raw for _ in range(part))))
        found[f"memory after {done:,} requests, MB"] = server.memory()
    return found


def table(results: dict[str, list[Figures]]) -> str:
    rows = list(dict.fromkeys(row for rounds in results.values() for each in rounds for row in each))
    lines = [f"| | {' | '.join(results)} |", f"|---|{'---|' * len(results)}"]
    for row in rows:
        cells = []
        for rounds in results.values():
            found = [each[row] for each in rounds if row in each]
            digits = 0 if found and statistics.median(found) >= 100 else 2
            spread = f" ({min(found):,.{digits}f}-{max(found):,.{digits}f})" if len(found) > 1 else ""
            cells.append(f"{statistics.median(found):,.{digits}f}{spread}" if found else "-")
        lines.append(f"| {row} | {' | '.join(cells)} |")
    return "\n".join(lines)


def main(words: list[str]) -> None:
    parser = argparse.ArgumentParser(prog="dev.py bench http", description=__doc__)
    parser.add_argument("--storages", nargs="+", default=list(STORAGES), choices=list(STORAGES))
    parser.add_argument("--jobs", type=int, default=30_000, help="of each measure")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--requests", type=int, default=0, help="of the measure of memory: 1000000 takes minutes")
    args = parser.parse_args(words)
    results: dict[str, list[Figures]] = {name: [] for name in args.storages}
    for turn in range(args.rounds):
        for name in args.storages:
            print(f"round {turn + 1}/{args.rounds} on {name}", file=sys.stderr, flush=True)
            with serving(STORAGES[name]) as server:
                found = enqueues(server, args.jobs) | batches(server, 5 * args.jobs)
            with serving(STORAGES[name]) as server:
                results[name].append(found | runners(server))
    if args.requests:
        for name in args.storages[:1]:
            with serving(STORAGES[name]) as server:
                results[name][0] |= memory(server, args.requests)
    from benchmarks.engine import machine

    print(f"{machine()}; {CONNECTIONS} connections; {args.rounds} rounds: median (lowest-highest).\n\n{table(results)}")
