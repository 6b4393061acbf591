"""`treadle top` on a real terminal: it is left as it was, however the command ends."""

from __future__ import annotations

import fcntl
import os
import pty
import signal
import struct
import subprocess
import sys
import termios
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from tests.cli.tools import PATIENCE
from treadle.cli.root import run
from treadle.contrib.top import command
from treadle_testkit.shows import shows

CLEAN = b"\x1b[?1049l"  # back to the screen as it was before


class Terminal:
    """A pseudo-terminal with `treadle ARGS` on it."""

    def __init__(self, *args: str, cwd: Path, size: tuple[int, int] = (110, 30)) -> None:
        self._master, self.slave = pty.openpty()
        self.resize(*size)
        self.before = termios.tcgetattr(self.slave)
        environment = {name: value for name, value in os.environ.items() if name != "TREADLE_URL"}
        self.process = subprocess.Popen(
            [sys.executable, "-m", "treadle", *args],
            cwd=cwd,
            env={**environment, "TERM": "xterm-256color"},
            stdin=self.slave,
            stdout=self.slave,
            stderr=self.slave,
            start_new_session=True,
        )
        self.output = b""
        self._news = threading.Condition()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def resize(self, width: int, height: int) -> None:
        fcntl.ioctl(self.slave, termios.TIOCSWINSZ, struct.pack("HHHH", height, width, 0, 0))

    def _read(self) -> None:
        with suppress(OSError):  # the terminal was closed
            while found := os.read(self._master, 65_536):
                with self._news:
                    self.output += found
                    self._news.notify_all()

    def wait_for(self, words: bytes, after: int = 0) -> None:
        """Wait until the terminal has shown these words, not counting its first `after` bytes."""
        with self._news:
            seen = self._news.wait_for(lambda: words in self.output[after:], PATIENCE)
        assert seen, self.output.decode(errors="replace")[-4_000:]

    def type(self, keys: bytes) -> None:
        os.write(self._master, keys)

    def ended(self) -> int:
        return self.process.wait(PATIENCE)

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        os.close(self.slave)
        self._reader.join(PATIENCE)
        os.close(self._master)


@contextmanager
def on_terminal(*args: str, cwd: Path) -> Iterator[Terminal]:
    terminal = Terminal(*args, cwd=cwd)
    try:
        yield terminal
    finally:
        terminal.close()


@pytest.mark.slow
@pytest.mark.skipif(sys.platform == "win32", reason="needs pseudo-terminals")
@pytest.mark.parametrize("way", ["q", "ctrl+c", "SIGTERM"])
@shows("`treadle top` leaves the terminal as it was after q, Ctrl-C and SIGTERM")
def test_the_terminal_is_left_as_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, way: str) -> None:
    monkeypatch.chdir(tmp_path)
    assert run(["storage", "migrate"]) == 0
    with on_terminal("top", cwd=tmp_path) as terminal:
        terminal.wait_for(b"Queues")
        terminal.wait_for(b"live")
        before = len(terminal.output)
        terminal.resize(40, 12)
        terminal.process.send_signal(signal.SIGWINCH)
        terminal.wait_for(b"4 Workers", before)
        if way == "SIGTERM":
            terminal.process.send_signal(signal.SIGTERM)
        else:
            terminal.type(b"q" if way == "q" else b"\x03")
        assert terminal.ended() == 0
        terminal.wait_for(CLEAN)
        terminal.wait_for(b"\x1b[?25h")  # the cursor is shown
        assert termios.tcgetattr(terminal.slave) == terminal.before
        assert b"Traceback" not in terminal.output


@pytest.mark.slow
def test_a_storage_that_cannot_be_opened_is_one_line(tmp_path: Path) -> None:
    with on_terminal("top", "--url", "redis://127.0.0.1:1", cwd=tmp_path) as terminal:
        assert terminal.ended() == 3
        terminal.wait_for(b"treadle doctor")
        assert CLEAN not in terminal.output


def test_without_textual_the_tables_remain(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    looks = []
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(command, "_has_terminal", lambda: True)
    monkeypatch.setattr(command, "find_spec", lambda name: None)
    monkeypatch.setattr(command, "_plain", lambda target, every, times: looks.append(times))
    assert run(["top"]) == 0
    assert "pip install 'textual>=8'" in capsys.readouterr().err
    assert looks == [None]


def test_once_prints_the_tables_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert run(["storage", "migrate"]) == 0
    capsys.readouterr()
    assert run(["top", "--once"]) == 0
    assert "0 workers, 0 of 0 slots taken" in capsys.readouterr().out
    assert run(["top", "--once", "--times", "2"]) == 2


def test_other_commands_do_not_import_textual() -> None:
    code = "import sys, treadle.cli, treadle.contrib.top, treadle.cli.jobs; assert 'textual' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)
