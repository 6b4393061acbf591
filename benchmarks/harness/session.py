"""One system at work: a producer and worker processes in its own environment, the marks of its jobs, and the time when
the last of them is settled.

All measures start, wait, count and clean up in the same way, so that their figures are comparable.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from benchmarks.harness import procs
from benchmarks.harness.marks import Marks
from benchmarks.harness.places import Place
from benchmarks.harness.systems import System

ROOT: Final = Path(__file__).resolve().parents[2]
LOOK: Final = 0.002  # seconds between two polls of the marks and of the unsettled jobs
SLACK: Final = 20_000  # room for marks beyond the expected number, for jobs that run twice
STOP: Final = 3.0  # seconds a worker gets to stop by itself


class CellFailed(RuntimeError):
    """A figure is not available; the message gives the reason and is shown in the table."""


@dataclass
class Drained:
    """The figures of a drain. Times are of the monotonic clock."""

    jobs: int
    first: float  # when the first body ran
    settled: float  # when the last job was settled
    worker_cpu: float | None  # seconds per job
    server_cpu: float | None
    marks: list[tuple[float, float]] = field(default_factory=list)

    @property
    def rate(self) -> float:
        return self.jobs / max(1e-6, self.settled - self.first)


class Session:
    """A system on an emptied place, until closed.

    about  the description by its adapter
    ask    the measure, as fields of frame.Ask
    limit  seconds until it fails
    """

    def __init__(
        self, system: System, place: Place, python: str, about: dict[str, Any], limit: float, expected: int, **ask: Any
    ) -> None:
        self.system, self.place, self.python, self.about = system, place, python, about
        self.end = time.monotonic() + limit
        self.limit = limit
        memory = Path("/dev/shm")
        self.folder = Path(tempfile.mkdtemp(prefix="treadle-bench-"))
        self.marks = Marks(
            Path(tempfile.mkdtemp(prefix="treadle-marks-", dir=memory if os.access(memory, os.W_OK) else None))
        )
        words = {
            "url": place.url,
            "storage": system.storage,
            "variant": system.variant,
            "marks": str(self.marks.folder),
            "capacity": expected + SLACK,
            **ask,
        }
        self.processes = int(words.get("processes", 1))
        self.environment = {
            **os.environ,
            "BENCH": json.dumps(words),
            "BENCH_PARENT": str(os.getpid()),
            "PYTHONPATH": str(ROOT),
            "PYTHONDONTWRITEBYTECODE": "1",
            "PATH": f"{Path(python).parent}{os.pathsep}{os.environ.get('PATH', '')}",
        }
        self._producer: subprocess.Popen[bytes] | None = None
        self._said = b""
        self._workers: list[subprocess.Popen[bytes]] = []
        self.sent = 0
        self._seen = 0, 0.0  # number of marks counted by earlier `finish` calls, and the time of the last one

    # --- its processes

    def _start(self, command: str, **how: Any) -> subprocess.Popen[bytes]:
        with (self.folder / f"{command}.log").open("ab") as log:
            how.setdefault("stdout", log)
            return subprocess.Popen(
                [self.python, "-m", f"benchmarks.adapters.{self.system.adapter}", command],
                env=self.environment,
                cwd=self.folder,
                stderr=log,
                start_new_session=True,
                **how,
            )

    def log(self, command: str) -> str:
        try:
            lines = (self.folder / f"{command}.log").read_text(errors="replace").strip().splitlines()
        except OSError:
            return ""
        return " | ".join(line.strip() for line in lines[-4:])[-400:]

    def setup(self) -> None:
        """Empty the place and create tables."""
        self.place.reset()
        if not self.about["setup"]:
            return
        made = self._start("setup", stdin=subprocess.DEVNULL)
        try:
            code = made.wait(self.left("the set-up"))
        except subprocess.TimeoutExpired:
            raise CellFailed(f"the set-up took longer than {self.limit:.0f} s") from None
        finally:
            _kill([made])
        if code:
            raise CellFailed(f"the set-up failed: {self.log('setup')}")

    def left(self, what: str) -> float:
        """Seconds until the limit. Raises CellFailed once it is reached."""
        rest = self.end - time.monotonic()
        if rest <= 0:
            ran = f"{self.marks.look():,} jobs had run"
            raise CellFailed(f"gave up after {self.limit:.0f} s in {what}; {ran} {self.log('worker')}".strip())
        return rest

    def start_producer(self) -> None:
        self._producer = self._start("produce", stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        self._answer("starting the producer")

    def order(self, do: str, **words: Any) -> dict[str, Any]:
        """Send one order to the producer; returns its answer. Raises CellFailed."""
        assert self._producer is not None
        assert self._producer.stdin is not None
        try:
            self._producer.stdin.write(json.dumps({"do": do, **words}).encode() + b"\n")
            self._producer.stdin.flush()
        except OSError:
            raise CellFailed(f"the producer is gone: {self.log('produce')}") from None
        answer = self._answer(f"the order {do!r}")
        self.sent += answer.get("n", 0) or len(answer.get("took", ()))
        return answer

    def _answer(self, what: str) -> dict[str, Any]:
        assert self._producer is not None
        assert self._producer.stdout is not None
        while True:
            *lines, self._said = self._said.split(b"\n")
            for at, line in enumerate(lines):
                if line.startswith(b"BENCH "):
                    self._said = b"\n".join([*lines[at + 1 :], self._said])
                    answer: dict[str, Any] = json.loads(line[6:])
                    if "error" in answer:
                        raise CellFailed(f"{what}: {answer['error'][:300]}")
                    return answer
            if select.select([self._producer.stdout], [], [], min(0.5, self.left(what)))[0]:
                more = os.read(self._producer.stdout.fileno(), 65536)
                if not more:
                    raise CellFailed(f"the producer ended in {what}: {self.log('produce')}")
                self._said += more

    def start_workers(self) -> None:
        count = 1 if self.about["forks"] else self.processes
        self._workers += [self._start("worker", stdin=subprocess.DEVNULL) for _ in range(count)]

    @property
    def worker_pids(self) -> list[int]:
        return [worker.pid for worker in self._workers]

    @property
    def pids(self) -> list[int]:
        return [*self.worker_pids, *([self._producer.pid] if self._producer else [])]

    def filled(self) -> None:
        """Check, before workers start, that the adapter sees all sent jobs: otherwise it would not see the end."""
        seen = self.place.left(self.about["settled"]) if self.about["settled"] else self.sent
        if seen < self.sent:
            raise CellFailed(f"of {self.sent:,} jobs that were sent, its adapter sees {seen:,} to be settled")

    # --- waiting

    def finish(self, jobs: int) -> Drained:
        """Wait until that many more jobs have run, and all are settled."""
        first: tuple[int, float, float] | None = None
        look = 0
        before, begun = self._seen
        while True:
            count = self.marks.look()
            if count > before and first is None:
                first = count - before, procs.cpu(self.worker_pids), self.place.cpu()
            if count - before >= jobs:
                break
            look += 1
            if look % 100 == 0:
                self._alive()
            self.left(f"working off {jobs:,} jobs")
            time.sleep(LOOK)
        ran = sorted(self.marks.read(begun))
        settled = self._settled(ran[-1][0])
        worker, server = procs.cpu(self.worker_pids), self.place.cpu()
        assert first is not None
        rest = jobs - first[0]
        costs = rest > max(0, jobs // 3) and procs.known()  # otherwise too few were left after the first poll
        self._seen = before + jobs, ran[-1][0]
        return Drained(
            jobs,
            ran[0][0],
            settled,
            (worker - first[1]) / rest if costs else None,
            (server - first[2]) / rest if costs else None,
            ran,
        )

    def _settled(self, last: float) -> float:
        """The time when no job was left to settle."""
        if not self.about["settled"]:
            return last
        look = 0
        while True:
            now = time.monotonic()
            open_ = self.place.left(self.about["settled"])
            if not open_:
                return max(last, now)
            look += 1
            if look % 100 == 0:
                self._alive()
            self.left(f"waiting for {open_:,} jobs to be settled that have run")
            time.sleep(LOOK)

    def _alive(self) -> None:
        for worker in self._workers:
            if worker.poll() is not None:
                raise CellFailed(f"a worker ended with exit code {worker.returncode}: {self.log('worker')}")

    def quiet(self, seconds: float = 0.5) -> None:
        """Let the worker become idle, for measures of an idle worker."""
        time.sleep(min(seconds, self.left("a pause")))

    # --- its end

    def stop_workers(self) -> None:
        family = procs.tree(self.worker_pids)
        for worker in self._workers:
            with contextlib.suppress(OSError):
                worker.terminate()
        _kill(self._workers, STOP)
        for pid in family:  # children that moved to another process group
            with contextlib.suppress(OSError):
                os.kill(pid, signal.SIGKILL)
        self._workers.clear()

    def close(self) -> None:
        self.stop_workers()
        if self._producer is not None:
            _kill([self._producer])
            for pipe in (self._producer.stdin, self._producer.stdout):
                with contextlib.suppress(OSError):
                    assert pipe is not None
                    pipe.close()
        self.marks.close()
        shutil.rmtree(self.folder, ignore_errors=True)


def _kill(processes: Sequence[subprocess.Popen[bytes]], patience: float = 0.0) -> None:
    """Kill them and their process groups, after the seconds in which they may end by themselves."""
    end = time.monotonic() + patience
    for process in processes:
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(max(0.0, end - time.monotonic()))
        with contextlib.suppress(OSError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def about(system: System, python: str, url: str) -> dict[str, Any]:
    """The adapter's description of a system. Raises CellFailed."""
    words = {"url": url, "storage": system.storage, "variant": system.variant}
    ran = subprocess.run(
        [python, "-m", f"benchmarks.adapters.{system.adapter}", "about"],
        capture_output=True,
        text=True,
        timeout=60,
        env={**os.environ, "BENCH": json.dumps(words), "PYTHONPATH": str(ROOT), "PYTHONDONTWRITEBYTECODE": "1"},
        cwd=tempfile.gettempdir(),
        check=False,
    )
    for line in ran.stdout.splitlines():
        if line.startswith("BENCH "):
            found: dict[str, Any] = json.loads(line[6:])
            return found
    raise CellFailed(f"its adapter does not load: {' | '.join(ran.stderr.strip().splitlines()[-2:])[-300:]}")


@contextlib.contextmanager
def opened(session: Session) -> Iterator[Session]:
    """Set it up and start its producer; close it at the end in any case."""
    try:
        session.setup()
        session.start_producer()
        yield session
    finally:
        session.close()
