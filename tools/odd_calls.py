"""Runs schemathesis against a real `treadle server`: without tokens, without a token, and with a token of each scope,
for all queues and for one. `python tools/odd_calls.py /path/to/schemathesis [--examples 100] [--seed 1]`.

It is not a dependency of the project: install it separately. Findings are an answer of 500 or above, text of another
queue in an answer to a bound token, a changed row of another queue, and memory or descriptors that keep growing. Waits
are cut to 50 ms, because a long wait finds nothing that a short one does not.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
import time
import urllib.request
from pathlib import Path
from typing import Any, NamedTuple

SCOPES = ("enqueue", "work", "read", "operate")
HIDDEN = "words-of-another-queue"  # in the rows of queue "far"; answers to a token of queue "near" must not contain it
FAR, NEAR = "job-of-far", "job-of-near"
CHECK = f"""
import os
import schemathesis

@schemathesis.hook
def before_call(context, case, *rest):
    for part in (case.body, case.query):
        for name in ("wait", "timeout"):
            if isinstance(part, dict) and isinstance(part.get(name), (int, float)) and part[name] > 0.05:
                part[name] = 0.05

@schemathesis.check
def nothing_of_another_queue(ctx, response, case):
    with open(os.environ["TALLY"], "a") as tally:
        tally.write(f"{{case.operation.method.upper()}} {{case.operation.path}} {{response.status_code}}\\n")
    if os.environ.get("BOUND"):
        assert {HIDDEN!r} not in response.text, response.text[:300]
"""


class Who(NamedTuple):
    name: str
    secret: str | None
    bound: bool = False
    path_id: str | None = None  # the id in every path; None: generated


class Server:
    """A `treadle server` process over its own SQLite file."""

    def __init__(self, folder: Path, tokens: Path | None) -> None:
        words = ["--tokens", str(tokens)] if tokens else []
        self._log = (folder / "server.log").open("w+")
        program = [sys.executable, "-m", "treadle", "server", "--port", "0", "--quiet"]
        self.process = subprocess.Popen(
            [*program, "--url", f"sqlite:///{folder}/jobs.db", *words], stdout=self._log, stderr=self._log, cwd=folder
        )
        self.url = self._found()

    def _found(self) -> str:
        until = time.monotonic() + 60
        while time.monotonic() < until and self.process.poll() is None:
            if found := re.search(r"http://127\.0\.0\.1:\d+", self.log()):
                return found[0]
            time.sleep(0.1)
        raise SystemExit(f"the server did not start: {self.log()}")

    def log(self) -> str:
        return Path(self._log.name).read_text(errors="replace")

    def held(self) -> tuple[float, int]:
        """Memory in MiB, and open descriptors."""
        pid = self.process.pid
        status = Path(f"/proc/{pid}/status").read_text()
        kib = int(status.partition("VmRSS:")[2].split()[0])
        return kib / 1024, len(os.listdir(f"/proc/{pid}/fd"))

    def ask(self, method: str, path: str, secret: str | None, body: Any = None) -> Any:
        data = None if body is None else json.dumps(body).encode()
        headers = {"Content-Type": "application/json"} | ({"Authorization": f"Bearer {secret}"} if secret else {})
        with urllib.request.urlopen(urllib.request.Request(self.url + path, data, headers, method=method)) as answer:
            return json.load(answer)

    def stop(self) -> None:
        self.process.terminate()
        self.process.wait(30)


def make_tokens(file: Path) -> dict[str, str]:
    """One token of each scope for all queues and for queue `near` only, and one with all scopes for each of the two."""
    names: dict[str, list[str]] = {"root": []}
    for scope in SCOPES:
        names[f"all-{scope}"] = ["--scope", scope]
        names[f"near-{scope}"] = ["--scope", scope, "--queue", "near"]
    names["near-all"] = ["--queue", "near"]
    found = {}
    for name, words in names.items():
        program = [sys.executable, "-m", "treadle", "token", name, "--file", str(file), *words]
        found[name] = subprocess.run(program, check=True, capture_output=True, text=True).stdout.strip()
    return found


def rows_of_far(server: Server, secret: str | None) -> Any:
    row = server.ask("GET", f"/v1/jobs/{FAR}", secret)
    return row, server.ask("GET", "/v1/jobs?queue=far&limit=1000&count=true", secret)["total"]


def fuzz(program: str, server: Server, who: Who, folder: Path, args: argparse.Namespace) -> dict[str, int]:
    """Run schemathesis once -> how many answers of each status, and how many checks failed."""
    tally = folder / "tally"
    tally.write_text("")
    # The server returns the document only to callers with a token, so schemathesis reads it from a file.
    words = [program, "run", str(folder / "openapi.json"), "--url", server.url, "--phases", "examples,coverage,fuzzing"]
    words += ["--checks", "not_a_server_error,nothing_of_another_queue", "--continue-on-failure", "--no-color"]
    words += ["--max-examples", str(args.examples), "--seed", str(args.seed), "--workers", "2", "--no-shrink"]
    words += ["--request-timeout", "40", "--warnings", "off", "--suppress-health-check", "all"]
    words += ["--max-time", str(args.seconds), "--generation-database", "none"]
    if who.secret:
        words += ["-H", f"Authorization: Bearer {who.secret}"]
    config = f'[parameters]\n"path.id" = "{who.path_id}"\n' if who.path_id else ""
    (folder / "schemathesis.toml").write_text(config)
    environment = {**os.environ, "SCHEMATHESIS_HOOKS": "odd_hooks", "PYTHONPATH": str(folder), "TALLY": str(tally)}
    environment |= {"BOUND": "1"} if who.bound else {}
    done = subprocess.run(words, check=False, cwd=folder, env=environment, capture_output=True, text=True)
    (folder / f"said-{who.name}-{who.path_id}.txt").write_text(done.stdout + done.stderr)
    if done.returncode not in (0, 1):
        raise SystemExit(f"schemathesis failed: {done.stdout[-3000:]}{done.stderr[-3000:]}")
    statuses = [line.rpartition(" ")[2] for line in tally.read_text().splitlines()]
    found = {status: statuses.count(status) for status in sorted(set(statuses))}
    return {"calls": len(statuses), "failed": done.returncode, **found}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("schemathesis")
    parser.add_argument("--examples", type=int, default=100)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--seconds", type=int, default=120, help="of each run at most")
    parser.add_argument("--only", help="callers whose name begins so")
    parser.add_argument("--keep", help="a folder for the logs and what schemathesis said")
    args = parser.parse_args()
    wrong = 0
    with tempfile.TemporaryDirectory(prefix="odd-calls-") as name:
        folder = Path(args.keep or name)
        (folder / "odd_hooks.py").write_text(CHECK)
        secrets = make_tokens(folder / "tokens.toml")
        callers = [Who("nobody", None)]
        callers += [Who(name, secret, name.startswith("near-")) for name, secret in secrets.items()]
        callers += [Who(each.name, each.secret, True, FAR) for each in callers if each.bound]
        print(f"in {folder}", flush=True)
        for open_ in (False, True):
            where = folder / ("open" if open_ else "closed")
            where.mkdir()
            server = Server(where, None if open_ else folder / "tokens.toml")
            root = None if open_ else secrets["root"]
            try:
                document = server.ask("GET", "/v1/openapi.json", root)
                (folder / "openapi.json").write_text(json.dumps(document))
                far = {"task": HIDDEN, "args": [HIDDEN], "queue": "far", "id": FAR, "labels": [HIDDEN], "delay": 1e6}
                for job in (far, {"task": "t", "queue": "near", "id": NEAR, "delay": 1e6}):
                    server.ask("POST", "/v1/jobs", root, job)
                for who in [Who("open", None)] if open_ else callers:
                    if args.only and not who.name.startswith(args.only):
                        continue
                    before, held = rows_of_far(server, root), server.held()
                    counts = fuzz(args.schemathesis, server, who, folder, args)
                    after, now = rows_of_far(server, root), server.held()
                    changed = who.bound and before != after
                    bad = counts["failed"] or changed
                    wrong += bool(bad)
                    print(
                        f"{who.name:14} id={who.path_id or '*':10} {counts} MiB {held[0]:.0f}->{now[0]:.0f} "
                        f"fds {held[1]}->{now[1]}{' CHANGED ' + str(after) if changed else ''}",
                        flush=True,
                    )
            finally:
                server.stop()
                tracebacks = server.log().count("Traceback")
                print(f"tracebacks in the log: {tracebacks}", flush=True)
    return 1 if wrong else 0


if __name__ == "__main__":
    raise SystemExit(main())
