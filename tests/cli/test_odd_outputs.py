"""Terminals and pipes that cannot write every character: no command fails, and JSON stays JSON."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from treadle import App
from treadle_testkit.shows import shows

pytestmark = pytest.mark.slow  # each command is a process

TEXT = "naïve 漢 😀 \ud800"
COMMANDS = ["jobs list", "jobs show {id}", "jobs explain {id}", "queues list", "doctor",
            "jobs cancel {id}", "schedules list", "limits list", "storage audit", "jobs list --json",
            "jobs show {id} --json"]  # fmt: skip


@shows("no command fails because the output cannot write a character, such as latin-1, cp1252 or ASCII")
@pytest.mark.parametrize("encoding", ["latin-1", "ascii"])
def test_commands_on_outputs_of_other_encodings(tmp_path: Path, encoding: str) -> None:
    url = f"sqlite:///{tmp_path / 'jobs.db'}"
    app = App(url)
    label = TEXT.replace("\ud800", "")
    job = app.sync.enqueue(app.stub("名前.send", queue="列").job(text=label))
    app.sync.close()
    environment = {**os.environ, "PYTHONIOENCODING": encoding, "TREADLE_DEBUG": "1"}
    for words in COMMANDS:
        command = [sys.executable, "-m", "treadle", *words.format(id=job.id).split(), "--url", url]
        done = subprocess.run(command, env=environment, cwd=tmp_path, capture_output=True, check=False)
        assert done.returncode in (0, 1), (words, done.stderr)
        assert b"Traceback" not in done.stderr, words
        if words.endswith("--json"):
            text = done.stdout.decode("utf-8" if encoding == "ascii" else encoding)  # click writes UTF-8 for ASCII
            assert "名前.send" in json.dumps(json.loads(text), ensure_ascii=False)
