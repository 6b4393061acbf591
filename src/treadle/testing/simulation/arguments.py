"""Checks the arguments of `simulate`: each wrong one would otherwise let a simulation pass that has tested nothing."""

from __future__ import annotations

import functools
import inspect
import math
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final, cast

from treadle.core.argument_names import refuse_unknown
from treadle.core.errors import BadOption
from treadle.testing.simulation.faults import FLIPS, KINDS, Kind
from treadle.worker import Worker

if TYPE_CHECKING:
    from treadle.app import App

OWN: Final = {  # options of a worker that a simulation sets itself, and what to do instead
    "app": "give it as the first argument of simulate",
    "concurrency": "use concurrency= of simulate",
    "lease": "use lease= of simulate",
    "name": "the workers are named worker-0.1, worker-1.1 and so on",
    "grace": "a worker that stops has 1 s",
}


def maker_of(app: object, scenario: object) -> Callable[[], App]:
    """A function that returns the app of each seed. Raises BadOption if `app` is not an app, or if there is no
    scenario."""
    if not callable(scenario):
        raise BadOption("scenario", f"expected a coroutine function, `async def buy(sim):`; found {scenario!r:.80}")
    if hasattr(app, "_core"):
        return lambda: cast("App", app)
    if callable(app):
        return lambda: _checked(app())
    return lambda: _checked(app)


def _checked(app: Any) -> App:
    if not hasattr(app, "_core"):
        raise BadOption("app", f"expected an App, or a function that makes one for each seed; found {app!r:.80}")
    return cast("App", app)


def seeds_of(seeds: object) -> Iterable[int]:
    """The seeds to run. Raises BadOption for values that are not seeds. An iterator's values are checked one by one."""
    wanted = "expected how many, such as 200, or which ones, such as [17]"
    if isinstance(seeds, int) and not isinstance(seeds, bool) and seeds > 0:
        return range(seeds)
    if isinstance(seeds, str | bytes | int) or not isinstance(seeds, Iterable):
        raise BadOption("seeds", f"{wanted}; found {seeds!r}")
    return _checked_seeds(seeds, wanted)


def _checked_seeds(seeds: Iterable[object], wanted: str) -> Iterator[int]:
    number = 0
    for number, seed in enumerate(seeds, 1):
        if isinstance(seed, bool) or not isinstance(seed, int):
            raise BadOption("seeds", f"{wanted}; seed number {number} is {seed!r}")
        yield seed
    if not number:
        raise BadOption("seeds", f"{wanted}; found none, so nothing would be tested")


def faults_of(faults: object) -> tuple[Kind, ...]:
    """The kinds of faults. Raises BadOption for values that are not kinds of faults."""
    if isinstance(faults, str) or not isinstance(faults, Iterable):
        raise BadOption("faults", f'expected a list such as ["kill", "lost"], or [] for none; found {faults!r}')
    kinds = tuple(faults)
    wrong = [kind for kind in kinds if kind not in (*KINDS, FLIPS)]
    if wrong:
        names = ", ".join(kind if isinstance(kind, str) else repr(kind) for kind in wrong)
        raise BadOption("faults", f"expected some of {', '.join((*KINDS, FLIPS))}, found {names}")
    return cast("tuple[Kind, ...]", kinds)


def invariants_of(invariants: object) -> tuple[Callable[[Any], Any], ...]:
    """The invariants. Raises BadOption for one that would never run."""
    if callable(invariants) or not isinstance(invariants, Iterable):
        raise BadOption("invariants", f"expected a list of functions such as [nobody_pays_twice], found {invariants!r}")
    functions = tuple(invariants)
    for function in functions:
        if not callable(function):
            raise BadOption("invariants", f"expected functions of the simulation, found {function!r}")
        check_plain("invariants", function)
    return functions


def check_plain(option: str, function: Callable[..., Any]) -> None:
    """Raise BadOption for a function whose body would not run, because nothing awaits or iterates what it returns."""
    inner: Any = function
    while isinstance(inner, functools.partial):
        inner = inner.func
    for body in (inner, type(inner).__call__):
        if inspect.iscoroutinefunction(body) or inspect.isasyncgenfunction(body):
            raise BadOption(option, f"{name_of(function)} is a coroutine function, which nothing awaits: write `def`")
        if inspect.isgeneratorfunction(body):
            raise BadOption(option, f"{name_of(function)} contains `yield`, so calling it does not run it: use assert")


def check_numbers(counts: Mapping[str, object], most_faults: object, seconds: Mapping[str, object]) -> None:
    """Raise BadOption for a count under 1, for `most_faults` under 0, and for seconds that are not positive."""
    for name, number, least in [*((name, n, 1) for name, n in counts.items()), ("most_faults", most_faults, 0)]:
        if isinstance(number, bool) or not isinstance(number, int) or number < least:
            raise BadOption(name, f"expected {least} or more, found {number!r}")
    for name, length in seconds.items():
        if isinstance(length, bool) or not isinstance(length, int | float) or not 0 < length < math.inf:
            raise BadOption(name, f"expected seconds, more than 0, found {length!r}")


def check_worker_options(options: Mapping[str, Any]) -> None:
    """Raise BadOption for options that no worker has, and for those that a simulation sets itself."""
    for name in options:
        if name in OWN:
            raise BadOption("options", f"{name} cannot be set here: {OWN[name]}")
    refuse_unknown("Worker", options, [*inspect.signature(Worker).parameters][1:])


def check_result(name: str, result: object) -> None:
    """Raise BadOption for an invariant that has returned a coroutine, whose body has not run."""
    if inspect.isawaitable(result):
        if inspect.iscoroutine(result):
            result.close()
        raise BadOption("invariants", f"{name} returned {result!r:.80}, which nothing awaits: write a plain function")


def check_scenario(result: Awaitable[Any]) -> Awaitable[Any]:
    """The awaitable that the scenario returned. Raises BadOption for anything else."""
    if not inspect.isawaitable(result):
        raise BadOption("scenario", f"expected a coroutine function, `async def buy(sim):`; it returned {result!r:.80}")
    return result


def check_spawned(name: object, work: object) -> None:
    """Raise BadOption for what cannot be another process of the program."""
    if not isinstance(name, str) or not inspect.iscoroutine(work):
        for value in (name, work):
            if inspect.iscoroutine(value):
                value.close()
        raise BadOption("spawn", f"expected a name and a coroutine, found {name!r:.80} and {work!r:.80}")


def check_encoded(value: object) -> None:
    """Raise BadOption for an expected value that is not in its stored form."""
    if value is not None and not isinstance(value, str):
        raise BadOption("expect", f"""expected the encoded value, such as "42" or '"paid"', found {value!r:.80}""")


def check_repeatable(call: object) -> None:
    """Raise BadOption for a coroutine given to `Simulation.again`, which makes a call several times."""
    if inspect.iscoroutine(call):
        call.close()
        raise BadOption("again", "a coroutine can run only once: give a function, `lambda: task.enqueue(1)`")


def name_of(function: object) -> str:
    """The name of a function for a message."""
    return getattr(function, "__name__", None) or repr(function)
