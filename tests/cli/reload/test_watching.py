"""The files that `--reload` watches, and when a change is complete."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import pytest

from treadle.cli.reload import watcher
from treadle.cli.reload.reports import Reporter, read
from treadle.cli.reload.watcher import Look, Root, Watched, Watcher, changes


def watched(*paths: Path, every: bool = False) -> set[str]:
    return {Path(path).name for path in Watched([Root(path, every) for path in paths]).look()}


def test_a_watcher_sees_sources_and_no_files_that_programs_write(tmp_path: Path) -> None:
    for name in ("a.py", "pkg/b.py", "pkg/deep/c.py", "t/page.html", ".env", "treadle.db", "treadle.db-wal", "x.log"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    for name in (".git/h.py", "__pycache__/p.py", "venv/pyvenv.cfg", "venv/v.py", "node_modules/n.py", "pkg/.#b.py"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    assert watched(tmp_path) == {"a.py", "b.py", "c.py"}
    assert watched(tmp_path, every=True) == {"a.py", "b.py", "c.py", "page.html", ".env"}
    assert watched(tmp_path / "t/page.html") == {"page.html"}
    assert watched(tmp_path / "gone") == set()


def test_links_are_followed_and_end(tmp_path: Path) -> None:
    project, other = tmp_path / "project", tmp_path / "other"
    project.mkdir()
    other.mkdir()
    (project / "up").symlink_to(tmp_path)
    (project / "linked").symlink_to(other)
    (other / "a.py").write_text("1")
    (project / "b.py").symlink_to(other / "a.py")
    (project / "nowhere.py").symlink_to(tmp_path / "nothing.py")
    look = Watched([Root(project)])
    before = look.look()
    (other / "a.py").write_text("two")
    found = changes(before, look.look())
    assert {Path(path).name for path in found.written} == {"a.py", "b.py"}
    (other / "c.py").touch()
    before = look.look()
    (project / "b.py").unlink()
    (project / "b.py").symlink_to(other / "c.py")
    assert [Path(path).name for path in changes(before, look.look()).written] == ["b.py"]


def test_a_folder_that_is_too_large_is_watched_in_part(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watcher, "FOLDERS", 3)
    for number in range(5):
        (tmp_path / str(number)).mkdir()
    look = Watched([Root(tmp_path)])
    look.look()
    assert look.too_many == tmp_path


def test_the_message_names_what_changed(tmp_path: Path) -> None:
    before: Look = {str(tmp_path / "old.py"): (1, 1, 1), "/a/lib.py": (1, 1, 1)}
    after: Look = {"/a/lib.py": (1, 1, 2), **{str(tmp_path / f"{name}.py"): (1, 1, 1) for name in "xyz"}}
    text = changes(before, after).text(tmp_path)
    assert text == "/a/lib.py changed, x.py changed, y.py changed and 2 more"
    assert changes({str(tmp_path / "old.py"): (1, 1, 1)}, {}).text(tmp_path) == "old.py was deleted"


class Looks(Watched):
    """Returns these looks in turn, then the last one for ever."""

    def __init__(self, *looks: Look) -> None:
        super().__init__([])
        self.left = list(looks)

    def look(self) -> dict[str, watcher.Mark]:
        return dict(self.left.pop(0) if len(self.left) > 1 else self.left[0])


A: Look = {"a.py": (1, 1, 1)}
HALF: Look = {"a.py": (1, 0, 2)}
WHOLE: Look = {"a.py": (1, 9, 3)}


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watcher, "QUIET", 0)
    monkeypatch.setattr(watcher, "POLL", 0)


async def test_a_file_that_is_written_twice_is_one_change() -> None:
    looks = Looks(A, HALF, WHOLE, WHOLE, WHOLE)
    found = Watcher(looks)
    await found.begin()
    assert (await found.changed()).written == ["a.py"]
    assert len(looks.left) == 1


async def test_a_file_that_is_missing_in_one_look_counts_as_changed() -> None:
    found = Watcher(Looks(A, {}, WHOLE, WHOLE))
    await found.begin()
    assert await found.changed() == (["a.py"], [])


async def test_a_save_that_is_undone_is_no_change() -> None:
    found = Watcher(Looks(A, {**A, "4.py": (1, 1, 1)}, A, A, WHOLE, WHOLE))
    await found.begin()
    assert await found.changed() == (["a.py"], [])


async def test_constant_saves_do_not_delay_the_reload(monkeypatch: pytest.MonkeyPatch) -> None:
    seconds = iter(range(1_000_000))
    monkeypatch.setattr(watcher, "monotonic", lambda: next(seconds) * 0.5)
    looks = Looks(A, *({"a.py": (1, 1, number)} for number in range(2, 100)))
    found = Watcher(looks)
    await found.begin()
    assert (await found.changed()).written == ["a.py"]
    assert len(looks.left) > 50


async def test_a_save_of_a_loaded_file_counts_before_the_supervisor_lists_it(tmp_path: Path) -> None:
    file = tmp_path / "helper.py"
    file.write_text("NUMBER = 1")
    ours, theirs = os.pipe()
    Reporter(theirs)._send(iter([str(file)]))  # not entered: it would send the modules of this process too
    file.write_text("NUMBER = 42")
    line = os.read(ours, 4_096).rstrip(b"\n")
    os.close(ours)
    os.close(theirs)
    found = Watcher(Watched([]))
    await found.begin()
    found.add(dict([read(line)]))
    assert (await found.changed()).written == [str(file)]


async def test_a_watcher_that_cannot_listen_polls(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    import watchfiles

    def refuse(*_: object, **__: object) -> None:
        raise OSError("no space left on device")

    monkeypatch.setattr(watchfiles, "awatch", refuse)
    monkeypatch.setattr(watcher, "FAR", 0)
    async with Watcher(Watched([Root(tmp_path)])) as found:
        await found.begin()
        waiting = asyncio.create_task(found.changed())
        (tmp_path / "a.py").touch()
        assert (await waiting).written == [str(tmp_path / "a.py")]
    assert "watchfiles cannot watch" in capfd.readouterr().err
