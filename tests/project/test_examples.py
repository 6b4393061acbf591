"""Each program of examples/ works as it says, with a worker in a separate process, in an empty folder."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest

from tests.servers.process import free_port
from tests.waiting import until_blocking
from treadle_testkit.shows import shows

EXAMPLES = Path(__file__).parents[2] / "examples"
TREADLE = Path(sys.executable).with_name("treadle")
SLOTS = 8

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(120),
    pytest.mark.skipif(sys.platform == "win32", reason="stops its worker by SIGTERM"),
]


@pytest.fixture
def play(tmp_path: Path) -> Iterator[Callable[..., list[str]]]:
    """`play("mailout.py", "40")` starts a worker for its app and runs the program. Return the lines that it printed."""
    env = {name: value for name, value in os.environ.items() if not name.startswith(("TREADLE_", "PYTEST_"))}
    env |= {"TREADLE_URL": f"sqlite:///{tmp_path / 'jobs.db'}?synchronous=normal", "PYTHONUNBUFFERED": "1"}
    workers: list[subprocess.Popen[bytes]] = []
    log = tmp_path / "worker.log"

    def run(program: str, *args: str) -> list[str]:
        place = str(EXAMPLES / program)
        with log.open("wb") as out:
            command = [str(TREADLE), "worker", f"{place}:app", "--poll", "0.1"]
            workers.append(subprocess.Popen(command, cwd=tmp_path, env=env, stdout=out, stderr=out))
        made = subprocess.run(
            [sys.executable, place, *args],
            cwd=tmp_path,
            env=env,
            capture_output=True,
            text=True,
            timeout=30,
            check=False,
        )
        assert made.returncode == 0, f"{made.stdout}\n{made.stderr}\nits worker said:\n{log.read_text()}"
        return made.stdout.splitlines()

    yield run
    for worker in workers:
        worker.send_signal(signal.SIGTERM)
        try:
            code = worker.wait(30)
        finally:
            worker.kill()
        assert code == 0, log.read_text()


def test_mailout_sends_every_mail_that_can_be_sent(play: Callable[..., list[str]]) -> None:
    assert play("mailout.py", "40") == ["{'succeeded': 39, 'failed': 1}"]


def test_thumbnails_come_from_other_processes_and_a_hanging_one_is_killed(play: Callable[..., list[str]]) -> None:
    *good, bad = play("thumbnails.py")
    assert len(good) == 8
    assert all("4 x 4" in line for line in good)
    assert "longer than its timeout of 0.5 s" in bad


def test_webshop_enqueues_from_plain_threads(play: Callable[..., list[str]]) -> None:
    assert play("webshop.py") == [f'"order {n} confirmed to c{n}@example.org"' for n in (1, 2, 3)]


@shows("`examples/statements.py` sends statements on a schedule and retries the failed ones")
def test_statements_come_by_themselves_and_what_failed_is_sent_again(play: Callable[..., list[str]]) -> None:
    assert play("statements.py") == [
        "kept: LookupError: customer c is not known here",
        'sent: "statement for a", "statement for b", "statement for c"',
    ]


def test_census_adds_up_what_could_be_counted(play: Callable[..., list[str]]) -> None:
    assert play("census.py") == ["{'be': 5, 'to': 4, 'do': 4}", "published", "not published: upstream"]


@shows("`examples/access_pipeline.py` grants access through a pipeline and finds its runs")
def test_access_goes_through_its_pipeline_and_runs_are_found(play: Callable[..., list[str]]) -> None:
    assert play("access_pipeline.py") == [
        "62 got [1, 2] ['ADD 1 for 62', 'ADD 2 for 62']",
        "63 got [2] ['ADD 2 for 63']",
        "65 got [] []",
        "2 runs for 1985, 2 for role 2",
    ]


def survived(tmp_path: Path, program: str, *args: str, kills: Sequence[int]) -> tuple[list[str], list[str]]:
    """Run a program, and kill its worker once the ledger has as many lines as each of `kills`. Return what the
    program printed, and the ledger."""
    place, ledger = str(EXAMPLES / program), tmp_path / "ledger.txt"
    env = {name: value for name, value in os.environ.items() if not name.startswith(("TREADLE_", "PYTEST_"))}
    port = str(free_port())
    env |= {
        "TREADLE_URL": f"sqlite:///{tmp_path / 'jobs.db'}?synchronous=normal",
        "MODEL_PORT": port,
        "SITE_PORT": port,
    }

    def lines() -> list[str]:
        return ledger.read_text().splitlines() if ledger.exists() else []

    def worker() -> subprocess.Popen[bytes]:
        command = [sys.executable, "-m", "treadle", "worker", f"{place}:app", "--poll", "0.1", "--lease", "2"]
        command += ["--concurrency", str(SLOTS)]
        return subprocess.Popen(command, cwd=tmp_path, env=env, stderr=subprocess.DEVNULL, start_new_session=True)

    client = subprocess.Popen(
        [sys.executable, place, *args], cwd=tmp_path, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    for least in kills:
        running = worker()
        until_blocking(lambda least=least: len(lines()) >= least, f"line {least} of the ledger")
        os.killpg(running.pid, signal.SIGKILL)
        running.wait()
    running = worker()
    out, errors = client.communicate(timeout=60)
    os.killpg(running.pid, signal.SIGKILL)
    running.wait()
    assert client.returncode == 0, errors
    return out.splitlines(), lines()


@shows("`examples/research_agent.py` answers although its worker is killed twice, and stays in its budget")
def test_the_research_agent_ends_although_its_workers_die(tmp_path: Path) -> None:
    (answer, budget), lines = survived(tmp_path, "research_agent.py", kills=(1, 3))
    assert answer == "Bees see ultraviolet light. Flowers have marks that only bees see."
    assert 870 <= int(budget.split()[0]) <= 870 + 2 * 1_000  # a run that was lost keeps what it reserved
    paid = [line for line in lines if line.startswith("model")]
    assert set(paid) == {"model 0", "model 1", "model 2"}
    assert len(paid) <= 3 + 2


@shows("`examples/crawl.py` reads each page although its worker is killed twice, and again only those in flight")
def test_the_crawl_reads_each_page_although_its_workers_die(tmp_path: Path) -> None:
    [result], lines = survived(tmp_path, "crawl.py", "100", kills=(5, 40))
    assert result.startswith("100 pages, ")
    assert {*lines} == {f"page {number}" for number in range(100)}
    assert len(lines) <= 100 + 2 * SLOTS


@shows("`examples/refund.py` pays what a person of the group has approved, and reminds the group of the rest")
def test_the_refund_waits_for_a_person(play: Callable[..., list[str]]) -> None:
    assert play("refund.py") == [
        "order 7: approved by ann",
        "order 8: rejected by ann, too late",
        "paid 30 for order 7, approved by ann",
    ]


def test_approval_charges_once_though_packing_failed_and_it_slept(play: Callable[..., list[str]]) -> None:
    assert play("approval.py") == [
        "receipt-7",
        "charged order 7 under key order-7:charge",
        "packed order 7",
        "packed order 7",
        "mailed receipt-7, approved by Ada",
    ]


def test_postcards_are_looked_up_together_and_fail_alone(play: Callable[..., list[str]]) -> None:
    assert play("postcards.py") == [
        "FR-75001 Paris",
        "IT-00118 Roma",
        "FR-69001 Lyon",
        "IT-20121 Milano",
        "IT Atlantis: LookupError: no town Atlantis",
    ]


def test_a_web_server_posts_a_job_and_streams_how_far_it_is(play: Callable[..., list[str]]) -> None:
    assert play("films.py", "150") == ["succeeded: dawn.mp4, after some steps"]


@pytest.mark.parametrize("program", ["testing_django.py", "testing_flask.py"])
def test_the_tests_of_a_web_application_pass(program: str, tmp_path: Path) -> None:
    command = [sys.executable, str(EXAMPLES / program), "-v"]
    made = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False)
    assert made.returncode == 0, made.stderr
    assert "Ran 2 tests" in made.stderr
