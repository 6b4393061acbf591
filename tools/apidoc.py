"""Writes docs/reference/ from the docstrings: one page per public module, one section per public name.

Public is what `__all__` lists, else every name without an underscore that the module itself defines. Run by
`python3 dev.py docs`. A name that cannot be had is reported and fails the run, after all the others were written.
"""

from __future__ import annotations

import dataclasses
import enum
import importlib
import inspect
import re
import sys
import types
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
MODULES = ("treadle", "treadle.errors", "treadle.testing", "treadle.testing.conformance", "treadle.storage.contract")
LONG = 100  # a signature longer than this gets a line per parameter


def signature(made: Callable[..., Any], name: str) -> str:
    """`name(parameters) -> result` as it was written; only the name where Python cannot tell."""
    try:
        found = inspect.signature(made)
    except (ValueError, TypeError):
        return name
    parameters = list(found.parameters.values())
    if parameters and parameters[0].name in {"self", "cls"}:
        found = found.replace(parameters=parameters[1:])
    # defaults that are objects print as <...>, annotations with the modules they came from: neither helps a reader
    text = re.sub(r"<(?:object|function|class|built-in \w+|factory)\b[^<>]*>", "...", str(found))
    text = re.sub(r"\b(?:treadle|typing|collections\.abc|datetime|types)(?:\.[a-z_]+)*\.(?=[A-Za-z])", "", text)
    # `from __future__ import annotations` leaves annotations as quoted text
    text = name + re.sub(r"""(: |-> )(['"])(.*?)\2(?=[,)=\s]|$)""", r"\1\3", text)
    if isinstance(made, type):
        text = text.removesuffix(" -> None")
    if len(text) > LONG and found.parameters:
        head, _, tail = text.rpartition(")")
        parts = split(head[len(name) + 1 :])
        text = f"{name}(\n" + "".join(f"    {part},\n" for part in parts) + f"){tail}"
    return text


def split(parameters: str) -> list[str]:
    """Cut at the commas that stand outside every bracket and string."""
    parts, depth, quote = [""], 0, ""
    for char in parameters:
        if quote:
            quote = "" if char == quote else quote
        elif char in "'\"":
            quote = char
        else:
            depth += (char in "([{") - (char in ")]}")
        if char == "," and depth == 0 and not quote:
            parts.append("")
        else:
            parts[-1] += char
    return [part.strip() for part in parts if part.strip()]


def doc(thing: object) -> str:
    """Its own docstring; not one that it inherits from a builtin or that dataclass made up from the fields."""
    text = inspect.getdoc(thing) or ""
    inherited = isinstance(thing, type) and not thing.__dict__.get("__doc__")
    made_up = isinstance(thing, type) and dataclasses.is_dataclass(thing) and text.startswith(f"{thing.__name__}(")
    return "" if inherited or made_up else text


def members(owner: type) -> Iterator[str]:
    """The public methods and properties of a class that say what they do, in the order they were written."""
    for name, raw in vars(owner).items():
        plain = raw.__func__ if isinstance(raw, (classmethod, staticmethod)) else raw
        if name.startswith("_") or not doc(plain):
            continue
        if isinstance(raw, property):
            yield f"#### `{owner.__name__}.{name}`\n\n{doc(raw)}\n"
        elif inspect.isfunction(plain):
            kind = "async " if inspect.iscoroutinefunction(plain) or inspect.isasyncgenfunction(plain) else ""
            yield f"#### `{owner.__name__}.{name}`\n\n```text\n{kind}{signature(plain, name)}\n```\n\n{doc(plain)}\n"


def section(name: str, thing: object) -> str:
    """What a page says of one name."""
    if isinstance(thing, type):
        parts = [f"### `{name}`\n"]
        if issubclass(thing, enum.Enum):
            parts.append("".join(f"- `{member.name}` = `{member.value!r}`\n" for member in thing))
        elif getattr(thing, "_is_protocol", False):
            parts.append(f"```text\nclass {name}(Protocol)\n```\n")
        elif "__init__" in vars(thing) or not issubclass(thing, BaseException):
            parts.append(f"```text\nclass {signature(thing, name)}\n```\n")
        bases = [base.__name__ for base in thing.__bases__ if base.__module__.startswith("treadle")]
        bases += [
            base.__name__ for base in thing.__bases__ if issubclass(base, Exception) and base.__name__ not in bases
        ]
        if bases:
            parts.append(f"Is a {', '.join(f'`{base}`' for base in bases)}.\n")
        parts.append(f"{doc(thing)}\n" if doc(thing) else "")
        return "\n".join(part for part in [*parts, *members(thing)] if part)
    if callable(thing) and not isinstance(thing, types.GenericAlias):
        kind = "async " if inspect.iscoroutinefunction(thing) else ""
        return f"### `{name}`\n\n```text\n{kind}{signature(thing, name)}\n```\n\n{doc(thing)}\n"
    value = repr(thing)
    shown = f" = `{value}`" if len(value) <= LONG and " at 0x" not in value and "`" not in value else ""
    return f"### `{name}`{shown}\n"


def page(module: types.ModuleType, problems: list[str]) -> str:
    """One module's page."""
    own = [name for name, value in vars(module).items() if getattr(value, "__module__", None) == module.__name__]
    names = list(getattr(module, "__all__", [name for name in own if not name.startswith("_")]))
    parts = [f"# `{module.__name__}`\n", f"{doc(module)}\n"]
    for name in names:
        try:
            thing = getattr(module, name)
        except Exception as error:
            problems.append(f"{module.__name__}.{name}: {type(error).__name__}: {error}")
            continue
        if not isinstance(thing, types.ModuleType):
            parts.append(section(name, thing))
    return "\n".join(parts)


def exists(name: str) -> bool:
    try:
        return find_spec(name) is not None
    except ModuleNotFoundError:  # its package is not there
        return False


def main(to: Path = ROOT / "docs" / "reference") -> int:
    """Write all pages -> how many names or modules could not be had."""
    problems: list[str] = []
    written: list[tuple[str, str]] = []
    to.mkdir(parents=True, exist_ok=True)
    for old in to.glob("treadle*.md"):
        old.unlink()
    for name in filter(exists, MODULES):
        try:
            module = importlib.import_module(name)
        except Exception as error:
            problems.append(f"{name}: {type(error).__name__}: {error}")
            continue
        (to / f"{name}.md").write_text(page(module, problems), encoding="utf-8")
        first = (doc(module).split("\n\n")[0] or name).replace("\n", " ")
        written.append((name, first))
    listed = "".join(f"- [`{name}`]({name}.md): {first}\n" for name, first in written)
    (to / "index.md").write_text(f"# Reference\n\nEvery public name, from its docstring.\n\n{listed}", encoding="utf-8")
    print(f"{len(written)} pages of reference")
    for problem in problems:
        print(problem, file=sys.stderr)
    return len(problems)


if __name__ == "__main__":
    sys.exit(min(main(), 1))
