"""`python3 dev.py soak --url STORAGE --minutes N --seed S`: trials of a minute each until the time is over."""

from __future__ import annotations

import argparse
import asyncio
import functools
import random
import sys
import time
from collections import Counter
from pathlib import Path

from tests.faults.stages import staged
from tests.soak.nemesis import STAGES
from tests.soak.planted import FAULTS
from tests.soak.trial import trial
from tests.soak.verdict import summary

TRIAL = 60.0  # seconds of faults in one trial, then it drains: a failure has a short history


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(prog="python3 dev.py soak", description=__doc__)
    made.add_argument("--url", choices=sorted(STAGES), default="sqlite", help="The storage. [default: sqlite]")
    made.add_argument("--minutes", type=float, default=2.0, help="Minutes of faults altogether. [default: 2]")
    made.add_argument("--seed", type=int, help="Seed of the faults; each trial uses the next. [default: random]")
    made.add_argument("--only", default="", help="Names of faults, separated by commas. [default: all]")
    made.add_argument("--plant", choices=sorted(FAULTS), default="", help="Break the storage on purpose.")
    made.add_argument(
        "--other-version", type=_version, metavar="FOLDER",
        help="The src of another version, which half of the processes use.",
    )  # fmt: skip
    return made


def _version(text: str) -> Path:
    folder = Path(text).resolve()
    if not (folder / "treadle").is_dir():
        raise argparse.ArgumentTypeError(f"expected a folder with the package treadle, found {text!r}")
    return folder


async def main(words: list[str]) -> int:
    args = parser().parse_args(words)
    seed = random.SystemRandom().randrange(1_000_000) if args.seed is None else args.seed
    only = tuple(name.strip() for name in args.only.split(",") if name.strip())
    left, trials, total, begun = args.minutes * 60, 0, Counter[str](), time.monotonic()
    while left > 0:
        async with staged(STAGES[args.url]) as stage:
            say = functools.partial(print, f"[{args.url} seed {seed}]", flush=True)
            verdict = await trial(
                stage, seed, min(TRIAL, left), say, only=only, plant=args.plant, other_version=args.other_version
            )
        print(verdict, flush=True)
        total += verdict.counts
        trials, left, seed = trials + 1, left - TRIAL, seed + 1
        if not verdict.ok:
            print(f"again: python3 dev.py soak --url {args.url} --minutes 1 --seed {verdict.seed}", flush=True)
            return 1
    took = time.monotonic() - begun
    print(f"{args.url}: {trials} trials in {took / 60:.1f} minutes, 0 violations; {summary(total)}", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(asyncio.run(main(sys.argv[1:])))
