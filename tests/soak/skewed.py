"""`python -m tests.soak.skewed CLOCK ...`: tests.soak.process with the arguments after CLOCK, with another clock.

CLOCK  a seed of wrong settings, or the path of the machine's clock
"""

from __future__ import annotations

import runpy
import sys

from tests.soak import skew

if __name__ == "__main__":
    clock = sys.argv.pop(1)
    (skew.follow if "/" in clock else skew.set_wrong)(clock)
    runpy.run_module("tests.soak.process", run_name="__main__", alter_sys=True)
