"""A Django project on SQLite and on PostgreSQL: its own tests, and what a worker does with its tasks."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.integrations.django.projects import KINDS, a_project
from treadle_testkit.shows import shows

pytestmark = [pytest.mark.slow, pytest.mark.timeout(220)]  # several processes, each of which imports Django

STORY = """\
rolled back: 0 jobs
before the commit, others see [0] jobs; after it 1
sent: SUCCESSFUL a boat for ada
async tasks side by side: Counter({'SUCCESSFUL': 20})
async tasks: Counter({'SUCCESSFUL': 30})
failed: FAILED 2 OutOfStock
killed in the middle: SUCCESSFUL a boat 1
paid: 31
os.system stays: True
shop.tasks.renamed stays: True
schedules: [('nightly', 'shop.tasks.report')]
receivers raised: True
worker: 0 True
"""


@shows("A Django task survives the kill of its worker, receivers that raise, and code that no longer has the task")
@pytest.mark.parametrize("kind", KINDS)
def test_the_story_of_a_project(kind: str, tmp_path: Path) -> None:
    with a_project(kind, tmp_path) as project:
        said = project.run("story.py").splitlines(keepends=True)
        # The server of the tests does not sync, and the worker says so.
        assert "".join(line for line in said if not line.startswith("this storage may lose jobs")) == STORY


@shows("Django's TestCase runs the jobs that it enqueued in its own transaction, and the test database can be dropped")
@pytest.mark.parametrize("kind", KINDS)
def test_the_tests_of_a_project(kind: str, tmp_path: Path) -> None:
    with a_project(kind, tmp_path) as project:
        said = project.manage("test", "--noinput")
        assert "Destroying test database" in said, said
        assert not list(tmp_path.glob("test*.db*"))


def test_the_test_databases_of_processes_leave_no_files(tmp_path: Path) -> None:
    with a_project("sqlite", tmp_path) as project:
        (tmp_path / "test_other.db-lock").touch()
        project.manage("test", "--noinput", "--parallel", "2", "shop.test_flush", "shop.test_staff")
        assert [each.name for each in tmp_path.glob("test*.db*")] == ["test_other.db-lock"]


def test_the_tests_of_a_project_with_a_database_in_memory(tmp_path: Path) -> None:
    with a_project("sqlite", tmp_path) as project:
        project.environment["TEST_PROJECT_TESTS"] = ":memory:"
        project.manage("test", "--noinput", "shop.memory_tests")
