"""`treadle delayed submit`: posts delayed jobs, waits for them, and prints how late each was picked up.

It works with any server of the delayed protocol and needs only Python.
"""

from __future__ import annotations

import http.client
import json
import math
import os
import random
import socket
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from typing import Any, Final
from urllib.parse import urlsplit

import click

from treadle.cli.group import Group
from treadle.cli.output import FAILED, UNREACHABLE, USAGE, Stop, as_json, data, document, note, plural, seconds
from treadle.core.clock import monotonic, wall
from treadle.core.errors import AnswerTooLarge
from treadle.core.redaction import origin, shown

LEAD: Final = 2.0  # s added to the delay of every job
ENDED: Final = ("completed", "failed", "cancelled")
LOOK_EVERY: Final = 0.5  # s, at most, between polls of the unfinished jobs
ANSWER: Final = 30.0  # s for a whole response
LONGEST: Final = 2**20  # bytes of a response
PATIENCE: Final = 60.0  # s to wait after the last due time


class Endpoint:
    """A connection to the API that reconnects when it breaks."""

    def __init__(self, url: str, token: str | None) -> None:
        url = url if "//" in url else f"http://{url}"
        try:
            origin(url)
        except ValueError:
            raise Stop(USAGE, f"expected an endpoint such as http://localhost:8080, found {shown(url)!r}") from None
        parts = urlsplit(url)
        kind = http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection
        self.url, self._base = shown(url), parts.path.rstrip("/")
        self._connection = kind(parts.hostname or "", parts.port, timeout=ANSWER)
        self._headers = {"Content-Type": "application/json"} | ({"Authorization": f"Bearer {token}"} if token else {})

    def await_it(self, patience: float) -> None:
        """Wait until the server answers, because it may still be starting. Raises Stop."""
        until = monotonic() + patience
        while True:
            try:
                self._trip("GET", "/healthz", None, self._headers)
            except (OSError, http.client.HTTPException) as error:
                self._connection.close()
                if monotonic() >= until:
                    raise self._silent(error) from None
            else:
                return
            time.sleep(0.1)

    def ask(self, method: str, path: str, body: Any = None, **headers: str) -> tuple[int, Any]:
        """Send a request, twice if the connection breaks -> status and response. Raises Stop."""
        sent = None if body is None else json.dumps(body).encode()
        try:
            status, content = self._trip(method, path, sent, self._headers | headers)
        except (OSError, http.client.HTTPException):
            self._connection.close()
            try:
                status, content = self._trip(method, path, sent, self._headers | headers)
            except (OSError, http.client.HTTPException) as error:
                self._connection.close()
                raise self._silent(error) from None
        try:
            return status, json.loads(content) if content else None
        except ValueError:
            problem = f"does not serve the delayed protocol: its answer with status {status} is not JSON"
            raise Stop(FAILED, f"{self.url} {problem}") from None

    def _silent(self, error: Exception) -> Stop:
        return Stop(UNREACHABLE, f"{self.url} does not answer: {str(error) or type(error).__name__}")

    def _trip(self, method: str, path: str, body: bytes | None, headers: dict[str, str]) -> tuple[int, bytes]:
        """Send a request once -> status and body. Raises OSError, HTTPException; AnswerTooLarge."""
        connection = self._connection
        if connection.sock is None:
            connection.connect()
        # A socket's timeout restarts with every byte: a timer limits the whole response.
        sock = connection.sock
        late = threading.Event()
        end = threading.Timer(ANSWER, _shut, (sock, late))
        end.start()
        try:
            connection.request(method, self._base + path, body, headers)
            answer = connection.getresponse()
            content = bytearray()
            while len(content) <= LONGEST and (piece := answer.read(LONGEST + 1 - len(content))):
                content += piece
        except BaseException:
            _release(sock)  # the response object holds it open
            raise
        finally:
            end.cancel()
        if not answer.isclosed():
            _release(sock)
        if len(content) > LONGEST:
            raise AnswerTooLarge(self.url, LONGEST)
        if late.is_set():
            raise OSError(f"no complete response within {ANSWER:g} s")
        if answer.length:
            raise OSError(f"the connection closed {answer.length:,} bytes before the end of the response")
        return answer.status, bytes(content)


def _release(sock: socket.socket) -> None:
    """Close a socket that a partly read response still holds."""
    with suppress(OSError):
        os.close(sock.detach())


def _shut(sock: socket.socket, late: threading.Event) -> None:
    late.set()
    with suppress(OSError):
        sock.shutdown(socket.SHUT_RDWR)


@click.group(cls=Group)
def delayed() -> None:
    """Post delayed jobs to a server and see how late they are."""


@delayed.command()
@click.option(
    "--count",
    type=click.IntRange(1),
    envvar="JOB_COUNT",
    default=50,
    show_default=True,
    help="Number of jobs. [environment: JOB_COUNT]",
)
@click.option(
    "--offset",
    type=seconds,
    envvar="TIME_OFFSET_SEC",
    default="20",
    show_default=True,
    metavar="SECONDS",
    help="Each job is due in 2 + random(1, SECONDS) seconds. [environment: TIME_OFFSET_SEC]",
)
@click.option(
    "--endpoint",
    envvar=("TREADLE_ENDPOINT", "API_ENDPOINT"),
    default="http://localhost:8080",
    show_default=True,
    metavar="URL",
    help="URL of the server. [environment: TREADLE_ENDPOINT, API_ENDPOINT]",
)
@click.option(
    "--patience",
    type=seconds,
    default="10",
    show_default=True,
    metavar="SECONDS",
    help="Seconds to wait for the first response of the server.",
)
@click.option(
    "--wait/--no-wait", default=True, help="Wait for the jobs and print how late they were picked up. [default: wait]"
)
@as_json
def submit(count: int, offset: float, endpoint: str, patience: float, wait: bool, json_: bool) -> int:
    """Post delayed jobs, wait until all have ended, and print how late they were picked up.

    The exit code is 1 unless every job has completed within a minute of the last due time. Lateness compares this
    machine's clock with the storage's.
    """
    from treadle.core import config

    if offset < 1:
        raise Stop(USAGE, f"--offset: expected 1 second or more, found {offset:g}")
    api = Endpoint(endpoint, config.token())
    api.await_it(patience)
    sent = _send(api, count, offset)
    if not wait:
        for id in sent:
            data(id)
        return 0
    jobs = _watch(api, sent)
    return _report(list(jobs.values()), count, json_)


def _send(api: Endpoint, count: int, offset: float) -> dict[str, float]:
    """Post the jobs -> their due times by id. Raises Stop."""
    sent: dict[str, float] = {}
    run, progress = os.urandom(8).hex(), Progress("posted", count)
    for number in range(1, count + 1):
        due = round(wall() + LEAD + random.uniform(1.0, offset), 3)
        # The key keeps a request that is repeated after a lost response from making a second job.
        status, answer = api.ask(
            "POST", "/", {"payload": f"job {number}", "dueTime": due}, **{"Idempotency-Key": f"{run}-{number}"}
        )
        if status != 200:
            raise Stop(FAILED, f"job {number} was refused with {status}: {(answer or {}).get('message')}")
        sent[answer["jobId"]] = due
        progress(number)
    note(f"treadle: {plural(count, 'job')} posted, due within {max(sent.values()) - wall():.1f} s")
    return sent


def _watch(api: Endpoint, sent: dict[str, float]) -> dict[str, dict[str, Any]]:
    """Poll each job from its due time until it has ended -> the last response for each."""
    jobs: dict[str, dict[str, Any]] = {}
    progress = Progress("handled", len(sent))
    open_ones, until = dict(sent), monotonic() + max(sent.values()) - wall() + PATIENCE
    while open_ones and monotonic() < until:
        now = wall()
        for id in [id for id, due in open_ones.items() if due <= now]:
            status, answer = api.ask("GET", f"/jobs/{id}")
            if status == 404:  # it was cancelled
                answer = {"jobId": id, "state": "cancelled", "dueTime": sent[id], "pickupTime": None, "attempts": 0}
            jobs[id] = answer
            if answer["state"] in ENDED:
                del open_ones[id]
        progress(len(sent) - len(open_ones))
        if open_ones:
            time.sleep(min(LOOK_EVERY, max(0.05, min(open_ones.values()) - wall())))
    for id in open_ones:
        jobs.setdefault(id, {"jobId": id, "state": "scheduled", "dueTime": sent[id], "pickupTime": None})
    return jobs


def _report(jobs: Sequence[dict[str, Any]], count: int, json_: bool) -> int:
    late = sorted(max(0.0, job["pickupTime"] - job["dueTime"]) for job in jobs if job["pickupTime"] is not None)
    ends = {state: sum(job["state"] == state for job in jobs) for state in ENDED}
    report: dict[str, Any] = {"jobs": count, **ends, "unfinished": count - sum(ends.values())}
    if late:
        report |= {f"late_{name}": round(value, 4) for name, value in _points(late)}
    if json_:
        document(report)
    else:
        parts = [f"{number} {name}" for name, number in report.items() if name in (*ENDED, "unfinished") and number]
        data(f"{plural(count, 'job')}: {', '.join(parts)}")
        if late:
            data("picked up late by: " + ", ".join(f"{name} {value * 1000:.0f} ms" for name, value in _points(late)))
    return 0 if ends["completed"] == count else FAILED


def _points(late: Sequence[float]) -> list[tuple[str, float]]:
    def at(share: float) -> float:
        return late[max(0, math.ceil(share * len(late)) - 1)]

    return [("p50", at(0.50)), ("p99", at(0.99)), ("max", late[-1])]


class Progress:
    """Prints a line at each tenth of the total."""

    def __init__(self, word: str, count: int) -> None:
        self._word, self._count, self._told = word, count, 0

    def __call__(self, number: int) -> None:
        tenth = number * 10 // self._count
        if tenth > self._told:
            self._told = tenth
            note(f"treadle: {self._word} {number} of {self._count}")
