"""Imports the app that `module:attribute` or `path/to/file.py:attribute` names, or calls `module:factory()` for it.

Without an attribute, the module must contain exactly one app.
"""

from __future__ import annotations

import difflib
import importlib
import importlib.util
import os
import re
import sys
import traceback
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext, redirect_stdout
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, Final

import treadle
from treadle.cli.app_search import Found, search
from treadle.cli.output import FAILED, USAGE, Stop, note
from treadle.core.errors import BadOption, TreadleError
from treadle.core.standard_modules import keep_from

if TYPE_CHECKING:
    from treadle.app import App

when_loaded: Final[list[Callable[[], None]]] = []  # called when an app and its modules are imported
BEHIND: Final = '; move that behind `if __name__ == "__main__":`'
INSIDE: Final = "; this directory is a package: name the file, as in tasks.py:app, or run in the directory above"
CIRCLE: Final = "; modules import each other: create the app in a module that does not import the tasks"


def find_app(named: str, *, prints: bool = False) -> App:
    """Import the app and the modules of `app.autodiscover`; the current directory comes first on sys.path. Raises Stop
    with the names to try.

    prints  whether the output of the modules goes to stdout; if not, to stderr: stdout is for the data of the command
    """
    with _apart(prints):
        app = _found(named)
        try:
            app._core.modules.load()
        except BadOption:
            raise
        except Exception as error:
            raise _broken(error, named) from error
    _tell()
    return app


def _found(named: str) -> App:
    from treadle.app import App

    place, _, attribute = named.partition(":")
    module = _import(_module_of(place, named), named)
    if attribute:
        value: Any = module
        attribute, is_call, _ = attribute.partition("()")
        for part in attribute.split("."):
            if not hasattr(value, part):
                raise Stop(USAGE, f"{place!r} has no {attribute!r}; {_apps_in(module)}")
            value = getattr(value, part)
        if is_call:
            value = _called(value, named)
        elif not isinstance(value, App) and callable(value):
            raise Stop(USAGE, f"{named!r} is {type(value).__name__}, not a treadle.App; if it returns one: '{named}()'")
        if not isinstance(value, App):
            raise Stop(USAGE, f"{named!r} is {type(value).__name__}, not a treadle.App; {_apps_in(module)}")
        return value
    apps: dict[int, App] = {id(value): value for value in vars(module).values() if _is_app(value)}
    if len(apps) != 1:
        raise Stop(USAGE, f"{place!r} names a module, not an app: {_apps_in(module)}")
    return next(iter(apps.values()))


def _called(factory: Callable[[], object], named: str) -> object:
    """Call a factory, which takes no arguments."""
    try:
        return factory()
    except Exception as error:
        raise _broken(error, named) from error


def _apart(prints: bool) -> AbstractContextManager[object]:
    return nullcontext() if prints else redirect_stdout(sys.stderr)


def find_any(*, prints: bool = False) -> tuple[App, Found]:
    """The only app of the project in the current directory, with its modules called `tasks` imported. Raises Stop."""
    project = search(Path.cwd())
    _first_on_path(project.root)
    app = find_app(project.named, prints=prints)
    with _apart(prints):
        for module in project.modules:
            _import(module, module)
    _tell()
    return app, project


def _tell() -> None:
    for call in when_loaded:
        call()


def serve_main_names(app: App, named: str) -> None:
    """Register the app's tasks also under the names that `python jobs.py` gives them, without the module prefix.

    A module that runs as a program is named `__main__` and its task is named `send`. In a worker, which imports the
    module, the same task is `jobs.send`. The worker runs jobs of both names.
    """
    place = named.partition(":")[0]
    module = _module_of(place, named)
    for name, task in list(app.tasks.items()):
        short = name.removeprefix(f"{module}.")
        if short not in app.tasks and task.function.__module__ == module:
            app._core.register(short, task)


def _module_of(place: str, named: str) -> str:
    """The dotted name of the module. Puts the directory that the import starts from first on sys.path."""
    if not place:
        raise Stop(USAGE, f"expected module:app or path/to/file.py:app, found {named!r}")
    if not (place.endswith(".py") or "/" in place or os.sep in place):
        _first_on_path(Path.cwd())
        return place
    file = Path(place).resolve()
    if not file.is_file():
        raise Stop(USAGE, f"there is no file {place!r}")
    names, folder = [file.stem], file.parent
    while (folder / "__init__.py").is_file():
        names.insert(0, folder.name)
        folder = folder.parent
    _first_on_path(folder)
    return ".".join(names[:-1] if names[-1] == "__init__" else names)


def _first_on_path(folder: Path) -> None:
    """Put the folder first on sys.path, as Python does for a script."""
    if str(folder) not in sys.path[:1]:
        keep_from(folder)
        sys.path.insert(0, str(folder))


def _import(module: str, named: str) -> ModuleType:
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name and (module == error.name or module.startswith(f"{error.name}.")):
            hint = _like(module)
            raise Stop(USAGE, f"no module {error.name!r} here or on sys.path (for {named!r}){hint}") from None
        raise _broken(error, named) from error
    except SystemExit as error:
        raise Stop(FAILED, f"{named!r} cannot be imported: the module calls sys.exit({error.code!r}){BEHIND}") from None
    except Exception as error:
        raise _broken(error, named) from error


def _like(module: str) -> str:
    *above, last = module.split(".")
    if above and Path(*above).with_suffix(".py").is_file():
        return f"; did you mean '{'.'.join(above)}:{last}'?"
    if above and above[0] == Path.cwd().name and Path("__init__.py").is_file():
        return INSIDE
    file = Path(*module.split(".")).with_suffix(".py")
    others = sorted(path.stem for path in Path.cwd().glob("*.py") if path.stem.isidentifier())
    if file.is_file() or not others:
        return ""
    if close := difflib.get_close_matches(module, others, 1):
        return f"; did you mean {close[0]!r}?"
    return f"; modules in this directory: {', '.join(others[:5])}{', and others' if len(others) > 5 else ''}"


def _broken(error: Exception, named: str) -> Stop:
    """Print the traceback of the user's module without the frames of the import machinery, and for an error that we
    raise, without ours -> the error to raise."""
    ours = (__file__, importlib.__file__, "<frozen importlib._bootstrap>", "<frozen importlib._bootstrap_external>")
    tb = error.__traceback__
    while tb is not None and tb.tb_frame.f_code.co_filename in ours:
        tb = tb.tb_next
    if isinstance(error, TreadleError):
        inside = str(Path(treadle.__file__).parent) + os.sep
        frames = [frame for frame in traceback.extract_tb(tb) if not frame.filename.startswith(inside)]
        lines = ["Traceback (most recent call last):\n", *traceback.format_list(frames)]
        lines += traceback.format_exception_only(error)
    else:
        lines = traceback.format_exception(type(error), error, tb)
    note("".join(lines).rstrip())
    hint = ""
    if isinstance(error, ImportError):
        running = {frame.filename for frame in traceback.extract_tb(tb) if frame.name == "<module>"}
        hint = CIRCLE if error.path in running else hint  # the name is missing in a module that is still running
        hint = INSIDE if "no known parent package" in str(error) else hint
    return Stop(FAILED, f"{named!r} cannot be imported: it raised the error above{hint}")


def _is_app(value: object) -> bool:
    """Whether the value is an App. isinstance would read `__class__`, which may raise on Django's lazy settings."""
    from treadle.app import App

    return issubclass(type(value), App)


def _apps_in(module: ModuleType) -> str:
    names = sorted(name for name, value in vars(module).items() if _is_app(value))
    if not names:
        return "it defines no treadle.App"
    return "try " + " or ".join(f"{module.__name__}:{name}" for name in names)


# --- an app that no command names
#
# The app of a command that names none: its storage URL, and how texts are stored, from the environment.


OFFLOAD: Final = "TREADLE_OFFLOAD"
KEYS: Final = "TREADLE_KEYS"


def app_at(url: str | None) -> App:
    """An app without tasks on this storage; None: on the default one. Raises BadOption and BadUrl."""
    from treadle.app import App

    return App(url, **payload_options())


def payload_options(environment: Mapping[str, str] = os.environ) -> dict[str, Any]:
    """The arguments `blobs`, `offload`, `keys` and `redact` of an App that the environment gives. Raises BadOption."""
    options: dict[str, Any] = {}
    if blobs := environment.get("TREADLE_BLOBS", "").strip():
        options["blobs"] = blobs
    if offload := environment.get(OFFLOAD, "").strip():
        if not (offload.isascii() and offload.isdigit()):
            raise BadOption(OFFLOAD, f"expected a number of bytes, found {offload[:40]!r}")
        options["offload"] = int(offload[:20])
    if environment.get(KEYS, "").strip():
        from treadle.serialization import Keys

        options["keys"] = Keys.from_environment(KEYS)
    if names := [name for name in re.split(r"[\s,]+", environment.get("TREADLE_REDACT", "")) if name]:
        options["redact"] = names
    return options
