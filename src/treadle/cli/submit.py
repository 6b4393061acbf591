"""`treadle submit-jobs`: posts delayed jobs to a delayed face, watches them, and says how late each was picked up.

Without it one would see that jobs come, and not when. It needs nothing but Python on its side.
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

from treadle.cli.output import FAILED, UNREACHABLE, USAGE, Stop, as_json, data, document, note, plural, seconds
from treadle.core.clock import monotonic, wall
from treadle.core.redaction import origin, shown
from treadle.errors import AnswerTooLarge

LEAD: Final = 2.0  # s before the first of them may be due
ENDED: Final = ("completed", "failed", "cancelled")
LOOK_EVERY: Final = 0.5  # s between two looks at what is not picked up yet
ANSWER: Final = 30.0  # s for a whole answer
LONGEST: Final = 2**20  # bytes of it
PATIENCE: Final = 60.0  # s after the last due time


class Endpoint:
    """One connection to the API, made anew when it breaks."""

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
        """Until it answers: it may have been started a moment ago. Raises Stop."""
        until = monotonic() + patience
        while True:
            try:
                self._trip("GET", "/healthz", None, self._headers)
            except (OSError, http.client.HTTPException) as error:
                self._connection.close()
                if monotonic() >= until:
                    words = str(error) or type(error).__name__
                    raise Stop(UNREACHABLE, f"{self.url} does not answer: {words}") from None
            else:
                return
            time.sleep(0.1)

    def ask(self, method: str, path: str, body: Any = None, **headers: str) -> tuple[int, Any]:
        """Status and answer. Raises Stop if nobody is there."""
        sent = None if body is None else json.dumps(body).encode()
        for last in (False, True):
            try:
                status, content = self._trip(method, path, sent, self._headers | headers)
            except (OSError, http.client.HTTPException) as error:
                self._connection.close()
                if last:
                    raise Stop(
                        UNREACHABLE, f"{self.url} does not answer: {str(error) or type(error).__name__}"
                    ) from None
                continue
            try:
                return status, json.loads(content) if content else None
            except ValueError:
                raise Stop(FAILED, f"{self.url} is no delayed face: it answered {status} without JSON") from None
        raise AssertionError

    def _trip(self, method: str, path: str, body: bytes | None, headers: dict[str, str]) -> tuple[int, bytes]:
        """Raises OSError, HTTPException; AnswerTooLarge."""
        connection = self._connection
        if connection.sock is None:
            connection.connect()
        # The timeout of a socket is one of silence: a byte now and then would keep us for ever.
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
            _release(sock)  # its answer holds it open
            raise
        finally:
            end.cancel()
        if not answer.isclosed():
            _release(sock)
        if len(content) > LONGEST:
            raise AnswerTooLarge(self.url, LONGEST)
        if late.is_set():
            raise OSError(f"no whole answer within {ANSWER:g} s")
        if answer.length:
            raise OSError(f"the connection ended {answer.length:,} bytes before the end of the answer")
        return answer.status, bytes(content)


def _release(sock: socket.socket) -> None:
    """Close it, although an answer that was not read to its end still holds it."""
    with suppress(OSError):
        os.close(sock.detach())


def _shut(sock: socket.socket, late: threading.Event) -> None:
    late.set()
    with suppress(OSError):
        sock.shutdown(socket.SHUT_RDWR)


@click.command(name="submit-jobs")
@click.option(
    "--count",
    type=click.IntRange(1),
    envvar="JOB_COUNT",
    default=50,
    show_default=True,
    help="How many jobs [JOB_COUNT].",
)
@click.option(
    "--offset",
    type=seconds,
    envvar="TIME_OFFSET_SEC",
    default="20",
    show_default=True,
    metavar="SECONDS",
    help="They are due at now + 2 + random(1, this) seconds [TIME_OFFSET_SEC].",
)
@click.option(
    "--endpoint",
    envvar=("TREADLE_ENDPOINT", "API_ENDPOINT"),
    default="http://localhost:8080",
    show_default=True,
    metavar="URL",
    help="The delayed face [TREADLE_ENDPOINT, API_ENDPOINT].",
)
@click.option(
    "--patience",
    type=seconds,
    default="10",
    show_default=True,
    metavar="SECONDS",
    help="How long to wait for the endpoint to answer at all.",
)
@click.option("--wait/--no-wait", default=True, help="Watch them, and say how late they were [wait].")
@as_json
def submit_jobs(count: int, offset: float, endpoint: str, patience: float, wait: bool, json_: bool) -> int:
    """Post delayed jobs, wait until all have been handled, and say how late they were picked up.

    Exit code 1 if one failed, or was not picked up within a minute of the last due time. Lateness holds this machine's
    clock against the storage's.
    """
    from treadle import config

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
    """Post them all; their ids, with when they are due. Raises Stop."""
    sent: dict[str, float] = {}
    run, told = os.urandom(8).hex(), Progress("posted", count)
    for number in range(1, count + 1):
        due = round(wall() + LEAD + random.uniform(1.0, offset), 3)
        # The key: a request whose answer was lost is sent again, and must not make a second job.
        status, answer = api.ask(
            "POST", "/", {"payload": f"job {number}", "dueTime": due}, **{"Idempotency-Key": f"{run}-{number}"}
        )
        if status != 200:
            raise Stop(FAILED, f"job {number} was refused with {status}: {(answer or {}).get('message')}")
        sent[answer["jobId"]] = due
        told(number)
    note(f"treadle: {plural(count, 'job')} posted, due within {max(sent.values()) - wall():.1f} s")
    return sent


def _watch(api: Endpoint, sent: dict[str, float]) -> dict[str, dict[str, Any]]:
    """Look at each from its due time on until it has ended; what was seen of it last."""
    found: dict[str, dict[str, Any]] = {}
    told = Progress("handled", len(sent))
    open_ones, until = dict(sent), monotonic() + max(sent.values()) - wall() + PATIENCE
    while open_ones and monotonic() < until:
        now = wall()
        for id in [id for id, due in open_ones.items() if due <= now]:
            status, answer = api.ask("GET", f"/jobs/{id}")
            if status == 404:  # it was taken back
                answer = {"jobId": id, "state": "cancelled", "dueTime": sent[id], "pickupTime": None, "attempts": 0}
            found[id] = answer
            if answer["state"] in ENDED:
                del open_ones[id]
        told(len(sent) - len(open_ones))
        if open_ones:
            time.sleep(min(LOOK_EVERY, max(0.05, min(open_ones.values()) - wall())))
    for id in open_ones:
        found.setdefault(id, {"jobId": id, "state": "scheduled", "dueTime": sent[id], "pickupTime": None})
    return found


def _report(jobs: Sequence[dict[str, Any]], count: int, json_: bool) -> int:
    late = sorted(max(0.0, job["pickupTime"] - job["dueTime"]) for job in jobs if job["pickupTime"] is not None)
    ends = {state: sum(job["state"] == state for job in jobs) for state in ENDED}
    found: dict[str, Any] = {"jobs": count, **ends, "unfinished": count - sum(ends.values())}
    if late:
        found |= {f"late_{name}": round(value, 4) for name, value in _points(late)}
    if json_:
        document(found)
    else:
        words = [f"{number} {name}" for name, number in found.items() if name in (*ENDED, "unfinished") and number]
        data(f"{plural(count, 'job')}: {', '.join(words)}")
        if late:
            data("picked up late by: " + ", ".join(f"{name} {value * 1000:.0f} ms" for name, value in _points(late)))
    return 0 if ends["completed"] == count else FAILED


def _points(late: Sequence[float]) -> list[tuple[str, float]]:
    def at(share: float) -> float:
        return late[max(0, math.ceil(share * len(late)) - 1)]

    return [("p50", at(0.50)), ("p99", at(0.99)), ("max", late[-1])]


class Progress:
    """A line at each tenth of the way."""

    def __init__(self, word: str, count: int) -> None:
        self._word, self._count, self._told = word, count, 0

    def __call__(self, number: int) -> None:
        tenth = number * 10 // self._count
        if tenth > self._told:
            self._told = tenth
            note(f"treadle: {self._word} {number} of {self._count}")
