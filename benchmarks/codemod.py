"""The cost of `treadle from celery` for a large program: 2,000 generated modules, also odd ones.

python3 dev.py bench codemod [FILES]
"""

from __future__ import annotations

import ast
import random
import resource
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

from treadle.contrib import celery

FILES = 2_000
PER_PACKAGE = 40
OPTIONS = (
    "",
    "(bind=True)",
    "(bind=True, max_retries=5, default_retry_delay=30)",
    '(name="named.{n}")',
    "(autoretry_for=(ConnectionError,), retry_backoff=True, max_retries=7)",
    "(ignore_result=True)",
    "(acks_late=True, queue='low')",
    '(rate_limit="10/m")',
    "(time_limit=60, soft_time_limit=50)",
    "(priority=5, expires=120)",
    "(serializer='pickle')",
    "(base=Base)",
)
BODIES = (
    "    return {arg} + 1\n",
    "    try:\n        work({arg})\n    except ConnectionError as exc:\n"
    "        raise self.retry(exc=exc, countdown=2 ** 3)\n",
    "    log.info('%s', {arg})\n"
    "    if (found := cache.get({arg})) is None:\n        found = load({arg})\n    return found\n",
    "    match {arg}:\n"
    "        case {{'kind': 'a', **rest}}:\n            return rest\n        case _:\n            return None\n",
    "    with transaction.atomic():\n        for row in rows({arg}):\n            row.save()\n",
    '    text = f"{{{arg}!r:>{{width}}}}" rf"\\d"\n    return text.encode()\n',
    "    self.update_state(state='HALF', meta={{'n': {arg}}})\n    return self.request.id\n",
)
CALLS = (
    "{task}.delay({value})",
    "{task}.apply_async(({value},), countdown=60)",
    "{task}.apply_async(args=[{value}], queue='low', expires=300)",
    "{task}.apply_async(kwargs={{'x': {value}}}, eta=tomorrow())",
    "result = {task}.delay({value}); result.get(timeout=10)",
    "chain({task}.s({value}), {other}.s())()",
    "group({task}.s(each) for each in range({value})).apply_async()",
    "chord([{task}.s(1), {task}.s(2)])({other}.s())",
    "{task}({value})",
    "{task}.apply(({value},))",
    "map({task}.delay, [1, {value}])",
    "register('{task}', {task})",
    "app.send_task('{task}', args=[{value}])",
    "transaction.on_commit(lambda: {task}.delay({value}))",
    "{task}.si({value}).set(countdown=3).delay()",
)
ODD = (
    "\ufeff# with a byte order mark\nx = 1\n",
    "# -*- coding: latin-1 -*-\nname = 'x'\n",
    "x = (\n    1,\n)\r\ny = 2\r\n",
    "if True:\n\tx = 1\n\ty = [\n\t\t2,\n\t]\n",
    "",
    "größe = 'ü' * 3\n",
    "class A:\n    class B:\n        def c(self): return lambda *a, k=1, **w: (yield)\n",
    "def broken(:\n",
    "x = " + " + ".join(map(str, range(300))) + "\n",
)


def program(folder: Path, files: int, seed: int = 1) -> None:
    """Write a program of so many modules: six in ten define and call tasks, three only call some, one has neither."""
    rng = random.Random(seed)
    (folder / "__init__.py").write_text("")
    (folder / "celery.py").write_text(
        "from celery import Celery\n\napp = Celery('big', broker='redis://localhost')\napp.conf.timezone = 'UTC'\n"
    )
    known: list[tuple[str, str]] = []
    for number in range(files):
        package = folder / f"part{number // PER_PACKAGE}"
        package.mkdir(exist_ok=True)
        (package / "__init__.py").touch()
        kind = rng.choices(("tasks", "calls", "odd"), (6, 3, 1))[0]
        module = f"{folder.name}.{package.name}.m{number}"
        text = rng.choice(ODD) if kind == "odd" else _module(rng, module, known, kind == "tasks", number)
        (package / f"m{number}.py").write_text(text, newline="")


def _module(rng: random.Random, module: str, known: list[tuple[str, str]], defines: bool, number: int) -> str:
    here: list[str] = []
    lines = [f'"""Part {number}."""\n\nimport logging\n', "from celery import chain, chord, group, shared_task\n"]
    lines.append(rng.choice(("from big.celery import app\n", "from ..celery import app\n")))
    others = rng.sample(known, min(len(known), rng.randrange(4)))
    for where, name in others:
        lines.append(f"from {where} import {name}\n")
    lines.append("\nlog = logging.getLogger(__name__)\n")
    for at in range(rng.randrange(1, 6) if defines else 0):
        name, options, body = f"task_{number}_{at}", rng.choice(OPTIONS), rng.choice(BODIES)
        bound = "self, " if "bind=True" in options or "self." in body else ""
        if bound and "bind=True" not in options:
            options = "(bind=True)"
        lines.append(f"\n\n@{rng.choice(('app.task', 'shared_task'))}{options.format(n=number)}\n")
        lines.append(f"def {name}({bound}x, width=3):\n    # what it does\n{body.format(arg='x')}")
        here.append(name)
    usable = [*here, *(name for _, name in others)]
    for at in range(rng.randrange(1, 9)):
        if not usable:
            break
        head = rng.choice(("def", "def", "def", "async def"))
        lines.append(f"\n\n{head} caller_{at}(value, rows=()):\n")
        for _ in range(rng.randrange(1, 4)):
            call = rng.choice(CALLS).format(task=rng.choice(usable), other=rng.choice(usable), value="value")
            lines.append(f"    {call}  # as ever\n")
    known += [(module, name) for name in here]
    return "".join(lines)


def main(words: list[str]) -> int:
    files = int(words[0]) if words else FILES
    with tempfile.TemporaryDirectory() as parent:
        folder = Path(parent, "big")
        folder.mkdir()
        program(folder, files)
        bytes_ = sum(path.stat().st_size for path in folder.rglob("*.py"))
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        began, cpu = time.perf_counter(), time.process_time()
        made = celery.plan(folder)
        text = celery.as_text(made)
        wall, used = time.perf_counter() - began, time.process_time() - cpu
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        wrong = [path for path, found in made.files.items() if not _is_valid(found)]
        kinds = Counter(each.kind for each in made.findings)
    print(
        f"{files:,} modules, {bytes_ / 1e6:.1f} MB: {used:.0f} s of CPU ({wall:.0f} s), "
        f"{(peak - before) / 1024:,.0f} MiB"
    )
    print(
        f"{len(made.files):,} files changed, {len(wrong)} of them invalid; {len(made.moved):,} tasks move, "
        f"{len(made.stayed):,} stay; findings {dict(kinds)}; report of {len(text.splitlines()):,} lines"
    )
    for path in wrong[:5]:
        print(f"invalid: {path}")
    return 1 if wrong else 0


def _is_valid(source: bytes) -> bool:
    try:
        ast.parse(source)
    except (SyntaxError, ValueError):
        return False
    return True


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
