"""The WASI runner: claims jobs of a queue, runs their modules in the sandbox, stores the output, settles the jobs."""

from __future__ import annotations

import asyncio
import logging
import shutil
import tempfile
import uuid
from contextlib import suppress
from pathlib import Path
from typing import Final

import msgspec
from aiohttp import ClientError
from msgspec import Struct

from treadle.blobs import BadAddress, Corrupt, NoBlob, TooBig, address_of
from treadle.contrib.wasi.client import Client, Denied, Gone, QueueJob
from treadle.contrib.wasi.sandbox import Bounds, ModuleReport, run_module
from treadle.core.errors import TreadleError

log = logging.getLogger("treadle")

WAIT: Final = 20.0  # s that one claim waits for a job
TICKLE: Final = 60.0  # s
GRACE: Final = 30.0  # s
RELEASE: Final = 5.0  # s that releasing a job may take, or a cancelled claim; after that the lease of its job expires
CACHE: Final = 64  # modules kept between runs
CACHE_SIZE: Final = 512 * 2**20  # bytes of the kept modules
UNWELCOME: Final = (401, 403)  # the token has no rights, so no job of this queue can be settled


class Failure(Struct, frozen=True, kw_only=True):
    """The report of a failed run, stored as the blob at `output_addr`."""

    exit_code: int | None = None
    trap: str | None = None
    timed_out: bool = False
    error: str | None = None  # why the module could not be run
    stdout_addr: str | None = None
    stderr_addr: str | None = None


class Runner:
    """Runs jobs, `slots` at once, until `stop`.

    tickle  seconds between tickles; a quarter of the queue's age of abandonment, if that is less
    grace   seconds for runs to end after `stop`; then they are killed and their jobs released
    """

    def __init__(
        self, client: Client, bounds: Bounds, slots: int = 1, tickle: float = TICKLE, grace: float = GRACE
    ) -> None:
        self._client, self._bounds, self._slots, self._tickle, self._grace = client, bounds, slots, tickle, grace
        self.id = str(uuid.uuid4())
        self._stopping = asyncio.Event()
        self._runs: dict[str, asyncio.Future[None]] = {}  # job -> its run

    def stop(self) -> None:
        """Stop claiming. Runs in progress get their grace."""
        self._stopping.set()

    async def run(self) -> None:
        """Run until `stop`, and until every run has ended or its job is released.

        If this is cancelled, runs are killed at once, and their jobs are claimed again when their leases expire.
        """
        with tempfile.TemporaryDirectory(prefix="treadle-wasi-") as folder:
            cache = _made(Path(folder, "modules"))
            async with asyncio.TaskGroup() as group:
                for number in range(self._slots):
                    group.create_task(self._slot(Path(folder, str(number)), cache))

    async def _slot(self, folder: Path, cache: Path) -> None:
        stopping = asyncio.ensure_future(self._stopping.wait())
        try:
            while not self._stopping.is_set():
                key = uuid.uuid4().hex
                claim = asyncio.ensure_future(self._client.claim(self.id, WAIT, key))
                await asyncio.wait([claim, stopping], return_when=asyncio.FIRST_COMPLETED)
                if not claim.done():
                    claim.cancel()
                    await asyncio.gather(claim, return_exceptions=True)
                    return await self._release_claimed(key)
                job = claim.result()
                if job is not None:
                    try:
                        await self._work(job, _made(folder), cache)
                    finally:
                        shutil.rmtree(folder, ignore_errors=True)
        finally:
            stopping.cancel()

    async def _work(self, job: QueueJob, folder: Path, cache: Path) -> None:
        """Run one job, and renew its lease until it is settled."""
        await self._stop_earlier(job.job_id)
        run = self._runs[job.job_id] = asyncio.ensure_future(self._attempt(job, folder, cache))
        alive = asyncio.ensure_future(self._keep_alive(job.job_id))
        over = asyncio.ensure_future(self._over())
        try:
            await asyncio.wait([run, alive, over], return_when=asyncio.FIRST_COMPLETED)
            if not run.done():
                hand_back = over.done() and not alive.done()
                log.warning(
                    "%s %s", job.job_id, "released" if hand_back else "lost to another runner; stopping its run"
                )
                run.cancel()
                await asyncio.wait([run])
                if hand_back and run.cancelled():
                    await self._hand_back(job)
            with suppress(asyncio.CancelledError):
                await run
        except Gone as error:
            log.warning("%s: the queue does not accept its result any more (%s)", job.job_id, error)
        except Denied as error:  # concerns this job only, unless the token has no rights
            if error.status in UNWELCOME:
                raise
            log.warning("%s: the queue refused its outcome (%s)", job.job_id, error)
        finally:
            for task in (run, alive, over):
                task.cancel()
            await asyncio.wait([run, alive, over])
            if self._runs.get(job.job_id) is run:
                del self._runs[job.job_id]

    async def _stop_earlier(self, job: str) -> None:
        """Stop the run of this job in another slot. Its lease had expired when the job was claimed again, and the queue
        cannot tell two runs of one runner apart."""
        earlier = self._runs.get(job)
        if earlier is not None:
            log.warning("%s: claimed again after its lease had expired; stopping its earlier run", job)
            earlier.cancel()
            await asyncio.wait([earlier])

    async def _over(self) -> None:
        """Return when the grace after `stop` is over."""
        await self._stopping.wait()
        await asyncio.sleep(self._grace)

    async def _release_claimed(self, key: str) -> None:
        """Release the job of a claim that was cancelled.

        The queue may have claimed one, and a closed connection may go unnoticed. The repeated claim returns that job.
        """
        try:
            async with asyncio.timeout(RELEASE):
                job = await self._client.claim(self.id, 0.0, key)
                if job is not None:
                    await self._hand_back(job)
        except (TreadleError, OSError, TimeoutError, ClientError) as error:
            reason = str(error) or f"no response within {RELEASE:g} s"
            log.warning(
                "could not repeat the last claim; if it got a job, the job returns to the queue when it counts as "
                "abandoned (%s)",
                reason,
            )

    async def _hand_back(self, job: QueueJob) -> None:
        try:
            async with asyncio.timeout(RELEASE):
                await self._client.release(job.job_id, self.id)
        except Gone as error:  # it is back in the queue already
            log.info("%s: not released (%s)", job.job_id, error)
        except (TreadleError, OSError, TimeoutError, ClientError) as error:
            log.warning(
                "could not release %s; it returns to the queue when it counts as abandoned (%s)", job.job_id, error
            )

    async def _keep_alive(self, job: str) -> None:
        """Renew the lease of a job, and return when the runner has lost the job."""
        while True:
            age = self._client.abandoned_age
            await asyncio.sleep(self._tickle if age is None else min(self._tickle, age / 4))
            try:
                await self._client.tickle(job, self.id)
            except Gone:
                return
            except (TreadleError, OSError, TimeoutError, ClientError) as error:
                log.warning("%s: could not send a heartbeat (%s)", job, error)

    async def _attempt(self, job: QueueJob, folder: Path, cache: Path) -> None:
        """Fetch the module and its input, run it, store its output, settle the job."""
        stdin = folder / "stdin"
        try:
            module = await self._module(job.binary_addr, folder, cache)
            if job.input_addr is None:
                stdin.write_bytes(b"")
            else:
                await self._client.fetch(job.input_addr, stdin, self._bounds.input)
        except (NoBlob, Corrupt, BadAddress, TooBig) as error:
            failure = Failure(error=str(error))
            return await self._say(job, "failed", await self._stored(failure, folder))
        report = await run_module(module, stdin, folder, self._bounds)
        try:
            if report.ok:
                return await self._say(job, "completed", await self._client.put(folder / "stdout"))
            outputs = [await self._client.put(folder / name) for name in ("stdout", "stderr")]
        except Denied as error:
            if error.status in UNWELCOME:
                raise
            failure = Failure(exit_code=report.exit_code, error=f"the store refused its output: {error}")
            return await self._say(job, "failed", await self._stored(failure, folder))
        return await self._say(job, "failed", await self._stored(_failure(report, *outputs), folder))

    async def _module(self, address: str, folder: Path, cache: Path) -> Path:
        """A link to the cached module, which is fetched if missing. The link outlives a trim of the cache."""
        kept, mine = cache / address_of(address), folder / "module"
        try:
            await asyncio.to_thread(mine.hardlink_to, kept)
        except FileNotFoundError:
            await self._client.fetch(address, mine, self._bounds.module)
            await asyncio.to_thread(_keep, mine, kept)
        return mine

    async def _stored(self, failure: Failure, folder: Path) -> str:
        file = folder / "report"
        file.write_bytes(msgspec.json.encode(failure))
        return await self._client.put(file)

    async def _say(self, job: QueueJob, status: str, output: str) -> None:
        await self._client.complete(job.job_id, self.id, status, output)
        log.info("%s %s: %s", job.job_id, status, output)


def _made(folder: Path) -> Path:
    folder.mkdir()
    return folder


def _keep(module: Path, kept: Path) -> None:
    """Add a module to the cache, and delete the oldest ones beyond its bounds."""
    with suppress(FileExistsError):  # another slot has fetched it, too
        kept.hardlink_to(module)
    known = sorted(kept.parent.iterdir(), key=lambda each: each.stat().st_mtime, reverse=True)
    size = 0
    for number, path in enumerate(known, 1):
        size += path.stat().st_size
        if number > CACHE or size > CACHE_SIZE:
            path.unlink(missing_ok=True)


def _failure(report: ModuleReport, stdout: str, stderr: str) -> Failure:
    return Failure(
        exit_code=report.exit_code, trap=report.trap, timed_out=report.timed_out, stdout_addr=stdout, stderr_addr=stderr
    )
