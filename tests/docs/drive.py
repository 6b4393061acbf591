"""Executes the blocks of one page, in order, in the current folder: `python drive.py PAGE < blocks as JSON`.

It is a process of its own, so that a page cannot affect the tests. Blocks share one namespace and one event loop;
`await` may stand outside a function. The first failure ends it with exit code 1, naming page and line.
"""

from __future__ import annotations

import ast
import asyncio
import inspect
import json
import os
import signal
import subprocess
import sys
import traceback
import types
from pathlib import Path
from typing import Any

STOP = 10.0  # seconds within which a background command must end after SIGTERM


class Page:
    """The names that the blocks of a page share."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.background: list[tuple[int, str, subprocess.Popen[bytes]]] = []
        self.runner = asyncio.Runner()
        self.fresh()

    def fresh(self) -> None:
        module = types.ModuleType("__main__")
        module.__file__ = str(Path.cwd() / "page.py")  # the folder of the program is this folder
        sys.modules["__main__"] = module
        self.namespace = module.__dict__

    def python(self, code: str, line: int) -> None:
        source = "\n" * (line - 1) + code  # so that tracebacks number lines as the page does
        compiled = compile(source, self.name, "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT, dont_inherit=True)
        made = eval(compiled, self.namespace)
        if inspect.iscoroutine(made):
            self.runner.run(made)

    def command(self, command: str, line: int, background: bool) -> None:
        print(f"$ {command}", flush=True)
        if background:
            child = subprocess.Popen(f"exec {command}", shell=True)
            self.background.append((line, command, child))
        elif code := subprocess.run(command, shell=True, check=False).returncode:
            raise SystemExit(f"{self.name}:{line}: exit code {code} from: {command}")

    def close(self) -> None:
        """Stop the background commands: each must still be running, and must end with exit code 0 after SIGTERM."""
        wrong: list[str] = []
        for line, command, child in self.background:
            if child.poll() is None:
                child.send_signal(signal.SIGTERM)
                try:
                    child.wait(STOP)
                except subprocess.TimeoutExpired:
                    child.kill()
                    child.wait()
                    wrong.append(f"{self.name}:{line}: still there {STOP:g} s after SIGTERM: {command}")
                    continue
            if child.returncode != 0:
                wrong.append(f"{self.name}:{line}: exit code {child.returncode} from: {command}")
        self.runner.close()
        if wrong:
            raise SystemExit("\n".join(wrong))


def main(name: str, blocks: list[dict[str, Any]]) -> None:
    sys.path[0] = os.getcwd()
    sys.argv = ["page.py"]
    page = Page(name)
    try:
        for block in blocks:
            if block["fresh"]:
                page.fresh()
            if block["file"]:
                path = Path(block["file"])
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_text(block["code"], encoding="utf-8")
            elif block["commands"]:
                for number, command in block["commands"]:
                    last = [number, command] == block["commands"][-1]
                    page.command(command, number, block["background"] and last)
            elif block["python"]:
                page.python(block["code"], block["line"])
    except Exception:
        traceback.print_exc()
        raise SystemExit(f"{name}: a block failed") from None
    finally:
        page.close()


if __name__ == "__main__":
    main(sys.argv[1], json.load(sys.stdin))
