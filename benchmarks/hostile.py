"""`python3 dev.py bench server-hostile`: the effect of hostile connections on ordinary callers.

A server runs over SQLite in its own process. Four callers each enqueue a job, read it and pause. Meanwhile a hundred
connections of another process misbehave: endless heads, half requests, silence, bodies of 30 MB, deep JSON. Rounds
without and with them alternate, and the p99 of the ordinary calls is compared.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import multiprocessing
import socket
import statistics
import sys
import time
from collections.abc import Callable
from typing import Any

from benchmarks.engine import machine
from benchmarks.measures import Figures
from benchmarks.over_http import Server, request, serving, table

CALLERS = 4
PAUSE = 0.01  # seconds between two calls of a caller
JOB = {"task": "noop", "args": [17], "queue": "bench"}
LISTS = b"[]," * 10_000_000 + b"[]"
HEAD = b"POST %s HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n"


def _posted(path: bytes, body: bytes) -> bytes:
    return HEAD % (path, len(body)) + body


def _endless_head() -> tuple[bytes, bytes]:
    return b"GET /v1/stats HTTP/1.1\r\nHost: localhost\r\n", b"X-Filler: " + b"a" * 4000 + b"\r\n"


def _half() -> tuple[bytes, bytes]:
    return HEAD % (b"/v1/jobs", 1000) + b"{", b""


def _silence() -> tuple[bytes, bytes]:
    return b"", b""


def _large() -> tuple[bytes, bytes]:
    return _posted(b"/v1/jobs/batch", b'{"jobs":[{"task":"x","args":[' + LISTS + b"]}]}"), b""


def _large_batch() -> tuple[bytes, bytes]:
    return _posted(b"/v1/work/enqueue", b'{"jobs":[' + b'{"id":"a"},' * 2_700_000 + b"{}]}"), b""


def _deep() -> tuple[bytes, bytes]:
    return _posted(b"/v1/jobs", b'{"task":"x","args":' + b"[" * 200_000 + b"}"), b""


KINDS: dict[str, Callable[[], tuple[bytes, bytes]]] = {
    "heads without end": _endless_head,
    "half bodies": _half,
    "silence": _silence,
    "30 MB of arguments": _large,
    "30 MB of jobs": _large_batch,
    "deep JSON": _deep,
}
AGAIN = 1.0  # seconds until an ended connection is opened again
SHARE = {
    "heads without end": 20,
    "half bodies": 20,
    "silence": 30,
    "30 MB of arguments": 5,
    "30 MB of jobs": 5,
    "deep JSON": 20,
}


async def _attack(port: int, kind: str, told: Any) -> None:
    first, more = KINDS[kind]()
    while True:
        with contextlib.suppress(OSError):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            try:
                writer.write(first)
                await writer.drain()
                if kind == "heads without end":
                    while True:
                        writer.write(more)
                        await writer.drain()
                        await asyncio.sleep(0.001)
                await reader.read(65_536)
            finally:
                writer.close()
        with told.get_lock():
            told.value += 1
        await asyncio.sleep(AGAIN)


def _attackers(port: int, kinds: list[str], count: int, told: Any) -> None:
    async def all_of_them() -> None:
        parts = [kind for kind in kinds for _ in range(max(1, SHARE[kind] * count // 100))]
        await asyncio.gather(*(_attack(port, kind, told) for kind in parts))

    asyncio.run(all_of_them())


@contextlib.contextmanager
def attacked(port: int, kinds: list[str], count: int) -> Any:
    """Run hostile connections meanwhile. Yields a counter of those that have ended, with or without an answer."""
    apart = multiprocessing.get_context("spawn")
    told = apart.Value("i", 0)
    process = apart.Process(target=_attackers, args=(port, kinds, count, told))
    process.start()
    try:
        yield told
    finally:
        process.terminate()
        process.join()


def ordinary(port: int, seconds: float) -> list[float]:
    """Act as ordinary callers for a while -> how long each call took, in seconds."""
    took: list[float] = []
    sent, asked = request("/v1/jobs", JOB), b"GET /v1/queues HTTP/1.1\r\nHost: localhost\r\n\r\n"

    async def one() -> None:
        until = time.perf_counter() + seconds
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        while time.perf_counter() < until:
            for raw in (sent, asked):
                begun = time.perf_counter()
                writer.write(raw)
                head = await reader.readuntil(b"\r\n\r\n")
                size = int(head.lower().partition(b"content-length: ")[2].split(b"\r\n")[0])
                await reader.readexactly(size)
                took.append(time.perf_counter() - begun)
                if head[9:11] != b"20":
                    raise SystemExit(f"an ordinary call was refused: {head!r}")
                await asyncio.sleep(PAUSE)
        writer.close()

    async def all_of_them() -> None:
        await asyncio.gather(*(one() for _ in range(CALLERS)))

    asyncio.run(all_of_them())
    return took


def figures(took: list[float], server: Server) -> Figures:
    took.sort()
    return {
        "calls": float(len(took)),
        "p50 ms": took[len(took) // 2] * 1e3,
        "p99 ms": took[len(took) * 99 // 100] * 1e3,
        "longest ms": took[-1] * 1e3,
        "memory of the server, MB": server.memory(),
    }


def main(words: list[str]) -> None:
    parser = argparse.ArgumentParser(prog="dev.py bench server-hostile", description=__doc__)
    parser.add_argument("--kinds", nargs="+", default=list(KINDS), choices=list(KINDS))
    parser.add_argument("--connections", type=int, default=100)
    parser.add_argument("--seconds", type=float, default=8.0, help="of each round")
    parser.add_argument("--rounds", type=int, default=2)
    args = parser.parse_args(words)
    results: dict[str, list[Figures]] = {"without": [], "with": []}
    ended = 0
    with serving("sqlite:///jobs.db") as server:
        ordinary(server.port, 1.0)  # warm-up
        for turn in range(args.rounds):
            print(f"round {turn + 1}/{args.rounds}", file=sys.stderr, flush=True)
            results["without"].append(figures(ordinary(server.port, args.seconds), server))
            with attacked(server.port, args.kinds, args.connections) as told:
                time.sleep(1.0)
                results["with"].append(figures(ordinary(server.port, args.seconds), server))
                ended += told.value
    ratio = statistics.median(
        hostile["p99 ms"] / calm["p99 ms"] for calm, hostile in zip(results["without"], results["with"], strict=True)
    )
    print(f"{machine()}; {args.connections} hostile connections ({', '.join(args.kinds)}).\n\n{table(results)}\n")
    print(f"p99 with them: {ratio:.2f} times that without; {ended:,} hostile connections were ended")
    print(json.dumps({"ratio": ratio}), file=sys.stderr)
