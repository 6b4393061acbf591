"""`treadle enqueue`: one job, from a shell.

Without it trying out a worker would take a second program.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from treadle.cli.output import FAILED, USAGE, Stop, data, document, note, seconds
from treadle.cli.target import Target, pairs, targeted

if TYPE_CHECKING:
    from treadle.app import App
    from treadle.core.job import JobSpec


def value_of(text: str) -> Any:
    """A JSON value, or else the text itself. What begins as JSON does and is none is a mistake: raises Stop."""
    import msgspec

    from treadle.errors import UNREADABLE

    try:
        return msgspec.json.decode(text)
    except UNREADABLE as error:
        if text[:1] in ("{", "[", '"'):
            problem = f"{text!r} begins like JSON and is none ({error}); plain text that begins so is written in quotes"
            raise Stop(USAGE, problem) from None
        return text


def spec_of(app: App, task: str, args: list[Any], kwargs: dict[str, Any], options: Any, typed: bool) -> JobSpec[Any]:
    """The job. With the app its task is looked up (`send` finds `mail.send`) and the arguments are checked."""
    if not typed:
        return app.stub(task, **options).job(*args, **kwargs)
    from treadle.serialization import call_codec

    ends = [name for name in app.tasks if name.endswith(f".{task}")]
    found = app.find_task(ends[0] if task not in app.tasks and len(ends) == 1 else task)
    given, named = found.signature.decode_call(call_codec.encode_foreign_call(args, kwargs, found.name))
    return found.options(**options).job(*given, **named)


@click.command()
@targeted
@click.argument("task")
@click.argument("args", nargs=-1)
@click.option("--kw", multiple=True, metavar="NAME=VALUE", help="An argument by name; the value as ARGS are.")
@click.option("--queue", help="Which queue; without --app the task's own is not known here.")
@click.option("--priority", type=int, help="Higher first.")
@click.option("--delay", type=seconds, metavar="SECONDS", help="Not before so many seconds (5m, 2h, 1d).")
@click.option("--expires", type=seconds, metavar="SECONDS", help="It must have ended by then.")
@click.option("--timeout", type=seconds, metavar="SECONDS", help="Seconds one attempt may take.")
@click.option("--key", help="At most one unfinished job of this task with this key.")
@click.option("--lane", help="Lanes take turns.")
@click.option("--limit", "limits", multiple=True, metavar="NAME", help="A limit it obeys.")
@click.option("--label", "labels", multiple=True, metavar="NAME=VALUE", help="To find it by.")
@click.option("--header", "headers", multiple=True, metavar="NAME=VALUE", help="Handed to the task.")
@click.option("--after", multiple=True, metavar="ID", help="Wait for this job.")
@click.option(
    "--id", help="Its id, used once. The same job is not stored again; another task or other arguments are an error."
)
@click.option("--wait", type=seconds, metavar="SECONDS", help="Wait so long for its result, and print that as JSON.")
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
    """Send one job of TASK and print its id.

    ARGS are JSON values; what is no JSON is plain text: `treadle enqueue mail.send ann@example.org 3 '{"a": 1}'`.
    Put `--` before arguments that begin with a dash. With --app the arguments are checked against the function.
    """
    options: dict[str, Any] = {name: value for name, value in plain.items() if value is not None}
    several = {"labels": labels, "limits": limits, "after": after}
    options |= {name: list(value) for name, value in several.items() if value}
    if headers:
        options["headers"] = pairs(headers, "--header")
    kwargs = {name: value_of(text) for name, text in pairs(kw, "--kw").items()}
    spec = spec_of(target.app, task, [value_of(text) for text in args], kwargs, options, target.has_tasks)

    async def send(app: App) -> int:
        job = await app.enqueue(spec)
        if not job.created:
            note(f"{job.id} was stored before; this call stored nothing")
        if wait is None:
            data(job.id)
            return 0
        note(job.id)
        try:
            document(await job.result(wait))
        except TimeoutError:
            text = f"{job.id} has not ended in {wait:g} s and goes on; `treadle jobs explain {job.id}` says why"
            raise Stop(FAILED, text) from None
        return 0

    return target.run(send, make=True)
