"""Runs one page of documentation: starts `drive.py` in an empty folder, stops it after a time limit, and reports its
error."""

from __future__ import annotations

import ast
import json
import os
import signal
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from tests.docs.blocks import PYTHON, blocks

DRIVE = Path(__file__).with_name("drive.py")
TIMEOUT = 60.0  # s for a whole page


@dataclass(frozen=True)
class Ran:
    """The result of a page. `error` is empty if every block passed; `not_run` names each block that was left out, and
    why."""

    error: str
    output: str
    not_run: list[str]


def compiles(code: str, line: int, page: str) -> None:
    """Compile a block; raises SyntaxError with the page's own line number."""
    compile("\n" * (line - 1) + code, page, "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT, dont_inherit=True)


def run(page: str, text: str, folder: Path, timeout: float = TIMEOUT) -> Ran:
    """Execute the page's blocks in `folder`. `timeout`: seconds for all of them together. Every Python block must
    compile, also those that are not run. Raises BadPage and SyntaxError."""
    todo: list[dict[str, object]] = []
    not_run: list[str] = []
    for block in blocks(text, page):
        is_python = block.language in PYTHON
        if is_python:
            compiles(block.code, block.line, page)
        if block.no_run:
            not_run.append(f"{page}:{block.line}: {block.no_run}")
        elif is_python or block.file or block.commands:
            todo.append(
                {
                    "python": is_python,
                    "code": block.code,
                    "line": block.line,
                    "file": block.file,
                    "fresh": block.fresh,
                    "background": block.background,
                    "commands": block.commands,
                }
            )
    if not todo:
        return Ran("", "", not_run)

    # Only what a reader has: the installed package, nothing of this checkout and none of our settings.
    env = {name: value for name, value in os.environ.items() if not name.startswith(("TREADLE_", "PYTEST_", "PYTHON"))}
    env["PATH"] = os.pathsep.join([str(Path(sys.executable).parent), env.get("PATH", "")])
    env["PYTHONUTF8"] = env["PYTHONUNBUFFERED"] = "1"
    child = subprocess.Popen(
        [sys.executable, str(DRIVE), page],
        cwd=folder,
        env=env,
        text=True,
        encoding="utf-8",
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        start_new_session=True,
    )
    try:
        output, _ = child.communicate(json.dumps(todo), timeout)
    except subprocess.TimeoutExpired:
        _kill(child)
        output, _ = child.communicate()
        return Ran(f"{page} took longer than {timeout:g} s", output, not_run)
    finally:
        _kill(child)
    return Ran(f"{page}: exit code {child.returncode}" if child.returncode else "", output, not_run)


def _kill(child: subprocess.Popen[str]) -> None:
    """End the process and everything that it started."""
    try:
        if sys.platform == "win32":
            child.kill()
        else:
            os.killpg(child.pid, signal.SIGKILL)
    except ProcessLookupError:
        pass
