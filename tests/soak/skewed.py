"""`python -m tests.soak.skewed SEED ...`: runs tests.soak.process with a wrong clock and the arguments after SEED."""

from __future__ import annotations

import runpy
import sys

from tests.soak.skew import set_wrong

if __name__ == "__main__":
    set_wrong(sys.argv.pop(1))
    runpy.run_module("tests.soak.process", run_name="__main__", alter_sys=True)
