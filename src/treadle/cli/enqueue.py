"""`treadle enqueue`: enqueues one job from a shell, and may wait for its result.

The options of the job have the descriptions of `treadle.tasks.json_options`.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import msgspec

from treadle.cli.options import duration
from treadle.cli.output import FAILED, USAGE, Stop, data, document, note, seconds
from treadle.cli.target import Target, pairs, targeted
from treadle.core.command_lines import command
from treadle.core.errors import UNREADABLE
from treadle.core.long_numbers import WORDS, has_long_number
from treadle.serialization import call_codec
from treadle.tasks.json_options import DESCRIPTIONS

if TYPE_CHECKING:
    from treadle.app import App
    from treadle.core.job import JobSpec


def value_of(text: str) -> Any:
    """A JSON value, or else the text itself. Raises Stop for a text that begins like JSON and is not JSON."""
    try:
        return msgspec.json.decode(text)
    except UNREADABLE as error:
        if has_long_number(text):
            raise Stop(USAGE, f"an argument cannot be sent: {WORDS}") from None
        if text[:1] in ("{", "[", '"'):
            problem = f"{text!r} begins like JSON but is not valid ({error}); put such a text in JSON quotes"
            raise Stop(USAGE, problem) from None
        return text


def spec_of(app: App, task: str, args: list[Any], kwargs: dict[str, Any], options: Any, typed: bool) -> JobSpec[Any]:
    """The job. `typed`: the app is the user's own, so its task is looked up (`send` finds `mail.send`) and checks the
    arguments."""
    if not typed:
        return app.stub(task, **options).job(*args, **kwargs)
    ends = [name for name in app.tasks if name.endswith(f".{task}")]
    declared = app.find_task(ends[0] if task not in app.tasks and len(ends) == 1 else task)
    positional, named = declared._core.signature.decode_call(
        call_codec.encode_foreign_call(args, kwargs, declared.name)
    )
    return declared.options(**options).job(*positional, **named)


def with_cost(text: str) -> tuple[str, int]:
    """A limit and its cost, which is 1 if the text has none."""
    name, _, cost = text.rpartition("=")
    return (name, int(cost)) if name and cost.isdecimal() else (text, 1)


def job_option(flag: str, name: str = "", **how: Any) -> Callable[[Any], Any]:
    """An option of the job. `name`: of the option in Python, if it differs from the flag."""
    name = name or flag.removeprefix("--")
    return click.option(flag, name, help=DESCRIPTIONS[name], **how)


@click.command()
@targeted
@click.argument("task")
@click.argument("args", nargs=-1)
@click.option("--kw", multiple=True, metavar="NAME=VALUE", help="Argument by name; the value is parsed like ARGS.")
@job_option("--queue")
@job_option("--priority", type=int)
@job_option("--delay", type=seconds, metavar="SECONDS")
@job_option("--expires", type=seconds, metavar="SECONDS")
@job_option("--timeout", type=seconds, metavar="SECONDS")
@job_option("--key")
@job_option("--lane")
@job_option("--limit", "limits", multiple=True, metavar="NAME[=COST]")
@job_option("--label", "labels", multiple=True, metavar="NAME=VALUE")
@job_option("--header", "headers", multiple=True, metavar="NAME=VALUE")
@job_option("--after", multiple=True, metavar="ID")
@job_option("--id")
@duration("--wait", help="Seconds to wait for the result, printed as JSON. [default: no wait]")
def enqueue(
    target: Target,
    task: str,
    args: tuple[str, ...],
    kw: tuple[str, ...],
    labels: tuple[str, ...],
    headers: tuple[str, ...],
    limits: tuple[str, ...],
    after: tuple[str, ...],
    wait: float | None,
    **plain: Any,
) -> int:
    """Enqueue one job of TASK and print its id.

    ARGS are JSON values; any other text is a string: `treadle enqueue mail.send ann@example.org 3 '{"a": 1}'`.
    Put `--` before arguments that begin with a dash. SECONDS are a number, or 30s, 5m, 2h, 1d. The options --kw,
    --limit, --label, --header and --after may be given several times.

    With --app the arguments are checked against the function, and the options declared for the task apply.
    """
    if not target.has_tasks and Path(task.partition(":")[0]).is_file():
        raise Stop(USAGE, f"{task!r} names an app, not a task: give it as --app {task}, and then the task")
    options: dict[str, Any] = {name: value for name, value in plain.items() if value is not None}
    several = {"labels": labels, "after": after}
    options |= {name: list(value) for name, value in several.items() if value}
    if limits:
        options["limits"] = dict(map(with_cost, limits))
    if headers:
        options["headers"] = pairs(headers, "--header")
    kwargs = {name: value_of(text) for name, text in pairs(kw, "--kw").items()}
    spec = spec_of(target.app, task, [value_of(text) for text in args], kwargs, options, target.has_tasks)

    async def send(app: App) -> int:
        await app._core.jobs.names.warn_of_new([spec.new])
        job = await app.enqueue(spec)
        if not job.created:
            note(f"{job.id} was already stored; this call stored nothing")
        if wait is None:
            data(job.id)
            return 0
        note(job.id)
        try:
            document(await job.result(wait))
        except TimeoutError:
            text = (
                f"{job.id} has not ended within {wait:g} s and continues; {command('jobs', 'explain', job.id)} says why"
            )
            raise Stop(FAILED, text) from None
        return 0

    return target.run(send, make=True)
