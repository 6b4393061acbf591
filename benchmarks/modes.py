"""Compares modes of one program by the CPU time of a job: rounds that alternate, each in a new process."""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path


def one(module: str, mode: str, jobs: int) -> dict[str, float]:
    """The figures that the program prints as JSON, in microseconds."""
    program = [sys.executable, "-m", f"benchmarks.{module}", mode, str(jobs)]
    ran = subprocess.run(program, capture_output=True, text=True, check=True, cwd=Path(__file__).parents[1])
    found: dict[str, float] = json.loads(ran.stdout)
    return found


def compare(
    parser: argparse.ArgumentParser,
    words: list[str],
    module: str,
    modes: Sequence[str],
    figures: Sequence[str],
    digits: int = 1,
) -> None:
    """Print a row for each mode. `parser` has the options --rounds and --jobs with their defaults."""
    args = parser.parse_args(words)
    rounds: dict[str, list[dict[str, float]]] = {mode: [] for mode in modes}
    for _ in range(args.rounds):
        for mode in modes:
            rounds[mode].append(one(module, mode, args.jobs))
    print(f"microseconds of CPU a job: median of {args.rounds} rounds (least - most)\n")
    print(f"{'':<12}" + "".join(f"{name:>24}" for name in figures))
    for mode, found in rounds.items():
        shown = []
        for name in figures:
            times = [each[name] for each in found]
            shown.append(f"{statistics.median(times):.{digits}f} ({min(times):.{digits}f} - {max(times):.{digits}f})")
        print(f"{mode:<12}" + "".join(f"{text:>24}" for text in shown), flush=True)
