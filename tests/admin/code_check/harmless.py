"""Changes of a program that its stored jobs survive: a check must say nothing about them."""

from __future__ import annotations

from tests.admin.code_check.planted import CHARGE, DATACLASS, ENUM, WAIT, call, durable, signature
from tests.admin.code_check.programs import Case

MORE = f"{ENUM}\n    GREEN = 'green'"

ARGUMENTS = [
    signature("a parameter with a default is new", "a: int", "a: int, b: str = 'x'", "1"),
    signature("a default is another", "a: int = 1", "a: int = 2", ""),
    signature("a parameter takes more types", "a: int", "a: int | str", "1"),
    signature("an int is a float", "a: int", "a: float", "1"),
    signature("a literal is wider", "a: typing.Literal['x']", "a: typing.Literal['x', 'y']", "'x'"),
    signature("an enum has a new member", "c: Colour", "c: Colour", "Colour.RED", types=ENUM, new_types=MORE),
    signature(
        "a dataclass has a new field with a default",
        "o: Order",
        "o: Order",
        "Order(1)",
        types=DATACLASS,
        new_types=DATACLASS + "\n    cents: int = 0",
    ),
    signature("named parameters have another order", "*, a: int, b: int", "*, b: int, a: int", "a=1, b=2"),
    signature("a positional parameter is renamed", "a: int", "amount: int", "1"),
    signature("free keywords are new", "a: int", "a: int, **more: int", "1"),
    signature("a list is a sequence", "a: list[int]", "a: typing.Sequence[int]", "[1]"),
    signature("a parameter has no type any more", "a: int", "a", "1"),
]

TASKS = [
    Case(
        "a task without unfinished jobs is removed",
        '@app.task(name="h_done")\nasync def done() -> None: ...',
        "",
        call("h_done"),
        runs=True,
    ),
    Case(
        "the arguments of a failed job do not fit any more",
        '@app.task(name="h_failed", retry=Retry(attempts=1))\nasync def failed(a: int) -> None: raise ValueError',
        '@app.task(name="h_failed")\nasync def failed() -> None: ...',
        call("h_failed", "1"),
        runs=True,
    ),
    Case(
        "the function of a task has another name",
        '@app.task(name="h_named")\nasync def before() -> None: ...',
        '@app.task(name="h_named")\nasync def after() -> None: ...',
        call("h_named"),
    ),
    Case(
        "an async function is a plain one",
        '@app.task(name="h_thread")\nasync def task(a: int) -> None: ...',
        '@app.task(name="h_thread")\ndef task(a: int) -> None: ...',
        call("h_thread", "1"),
    ),
    Case(
        "options are others",
        '@app.task(name="h_options", priority=1)\nasync def task(a: int) -> None: ...',
        '@app.task(name="h_options", priority=5, timeout=9, retry=Retry(attempts=7))\n'
        "async def task(a: int) -> None: ...",
        call("h_options", "1"),
    ),
    Case(
        "tasks, queues, reducers and middleware are new",
        '@app.task(name="h_old")\nasync def task() -> None: ...',
        '@app.task(name="h_old")\nasync def task() -> None: ...\n'
        '@app.task(name="h_new", queue="h-new")\nasync def new() -> None: ...\n'
        '@app.reducer("h_reducer")\ndef reducer(values: list[int]) -> int: return 1',
        call("h_old"),
    ),
    Case(
        "another task still has the queue",
        '@app.task(name="h_moves", queue="h-shared")\nasync def task() -> None: ...',
        '@app.task(name="h_moves", queue="h-other")\nasync def task() -> None: ...\n'
        '@app.task(name="h_stays", queue="h-shared")\nasync def stays() -> None: ...',
        call("h_moves"),
    ),
    Case(
        "a dependency is new",
        '@app.task(name="h_depends")\nasync def task(a: int) -> None: ...',
        "async def settings() -> dict[str, int]: return {}\n"
        '@app.task(name="h_depends")\n'
        "async def task(a: int, given: typing.Any = depends(settings)) -> None: ...",
        call("h_depends", "1"),
    ),
    Case(
        "a limit has more room",
        'app.limits.declare(Limit("h-api", slots=2))\n'
        '@app.task(name="h_limited", limits=["h-api"])\nasync def task() -> None: ...',
        'app.limits.declare(Limit("h-api", slots=20))\n'
        '@app.task(name="h_limited", limits=["h-api"])\nasync def task() -> None: ...',
        call("h_limited"),
    ),
    Case(
        "a schedule and its task stay",
        '@app.cron("0 3 * * *", args=(1,))\n@app.task(name="h_cron")\nasync def task(a: int) -> None: ...',
        '@app.cron("0 3 * * *", args=(1,))\n@app.task(name="h_cron")\nasync def task(a: int, b: int = 1) -> None: ...',
        "pass",
    ),
    Case(
        "a return annotation is wider",
        '@app.task(name="h_up")\nasync def up() -> int: return 1\n'
        '@app.task(name="h_down")\nasync def down(a: int) -> None: ...',
        '@app.task(name="h_up")\nasync def up() -> int | str: return 1\n'
        '@app.task(name="h_down")\nasync def down(a: int | str) -> None: ...',
        "await app.enqueue(chain(app.tasks['h_up'].job(), app.tasks['h_down'].options(delay=3600).job()))",
        runs=True,
    ),
]

TAKEN = f"await current().step('charge', charge); {WAIT}"

STEPS = [
    durable(
        "a step is new behind the others",
        "h_behind",
        TAKEN,
        TAKEN + "; await current().step('mail', pay)",
        types=CHARGE,
    ),
    Case(
        "the steps are in a helper now",
        f'{CHARGE}\n@app.task(name="h_helper")\nasync def task() -> None:\n    {TAKEN}',
        f"{CHARGE}\nasync def helper() -> None:\n    {TAKEN}\n"
        '@app.task(name="h_helper")\nasync def task() -> None:\n    await helper()',
        call("h_helper"),
        runs=True,
    ),
    durable(
        "the name of a step is an f-string now",
        "h_pattern",
        f"await current().step('page:7', charge); {WAIT}",
        f"await current().step(f'page:{{3 + 4}}', charge); {WAIT}",
        types=CHARGE,
    ),
    durable(
        "the name of a step is in a variable now",
        "h_variable",
        TAKEN,
        f"name = 'charge'; await current().step(name, charge); {WAIT}",
        types=CHARGE,
    ),
    durable(
        "the context has a name",
        "h_context",
        TAKEN,
        "job = current(); await job.step('charge', charge); await job.wait_for('go')",
        types=CHARGE,
    ),
]

HARMLESS = [*ARGUMENTS, *TASKS, *STEPS]
