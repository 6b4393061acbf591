"""Finds and parses the files of a package, and resolves names across them."""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterator
from pathlib import Path

import libcst as cst

from treadle.contrib.celery.model import UNREAD, Finding, Module, absolute

SKIPPED = {"__pycache__", "node_modules", "venv", "site-packages", "build", "dist"}
DEEPEST = 50  # re-exports of a name that are followed


class Package:
    """The modules of a folder or of one file.

    root      the folder that is on `sys.path` when the modules are imported
    findings  files that cannot be read
    """

    def __init__(self, path: Path) -> None:
        """Raises OSError."""
        self.path = path
        start = path if path.is_dir() else path.parent
        root = start.absolute()
        while (root / "__init__.py").is_file():
            root = root.parent
        self.root, self.folder = root, start
        self.findings: list[Finding] = []
        self.modules: dict[str, Module] = {}
        for file in _files(path):
            self._read(file)
        self.aliases: dict[str, str] = {}
        self._sources: dict[str, set[str]] = {}  # of each name that a module takes from elsewhere; "": a value
        self.stars: list[tuple[Module, cst.ImportFrom, str]] = []
        for module in self.modules.values():
            self._index(module)

    @property
    def name(self) -> str:
        """The dotted name of the package; "" for a folder of single files."""
        relative = self.folder.absolute().relative_to(self.root)
        return ".".join(relative.parts)

    def _read(self, file: Path) -> None:
        shown = file.as_posix()
        if file.is_symlink():
            inside = file.resolve().is_relative_to(self.folder.resolve())
            if not inside:
                self._unread(shown, f"is a link to {os.readlink(file)}, outside of the package; it is not changed")
            return
        relative = file.absolute().relative_to(self.root).with_suffix("")
        parts = relative.parts[:-1] if relative.name == "__init__" else relative.parts
        try:
            content = file.read_bytes()
            module = Module(file, shown, ".".join(parts), content)
            with warnings.catch_warnings(action="ignore"):  # libcst reads more than this Python compiles
                compile(content, shown, "exec", dont_inherit=True)
        except (cst.ParserSyntaxError, SyntaxError) as error:
            line = getattr(error, "raw_line", None) or getattr(error, "lineno", None) or 0
            self._unread(shown, f"cannot be parsed: {str(error).splitlines()[0]}", line)
        except (UnicodeError, LookupError, ValueError) as error:
            self._unread(shown, f"cannot be decoded: {error}")
        except RecursionError:
            self._unread(shown, "is nested too deeply to be parsed")
        else:
            self.modules[module.name] = module

    def _unread(self, shown: str, reason: str, line: int = 0) -> None:
        self.findings.append(Finding(shown, line, "left", "", reason, UNREAD))

    def _index(self, module: Module) -> None:
        """Note the names that a module takes from others, or gives to its own: `from .tasks import send as mail`."""
        for statement in statements(module.tree):
            if isinstance(statement, cst.ImportFrom):
                source = absolute("." * len(statement.relative) + _dotted(statement.module), module)
                if isinstance(statement.names, cst.ImportStar):
                    self.stars.append((module, statement, source))
                    continue
                for local, alias in zip(local_names(statement), statement.names, strict=True):
                    self._alias(module, local, f"{source}.{alias.evaluated_name}")
            elif (given_here := assigned(statement)) is not None:
                name, value = given_here
                named = module.canonical(value) if isinstance(value, cst.Name | cst.Attribute) else None
                self._alias(module, name, "" if named is None or named.startswith("builtins.") else named)

    def _alias(self, module: Module, name: str, source: str) -> None:
        full = f"{module.name}.{name}" if module.name else name
        if source != full:
            self._sources.setdefault(full, set()).add(source)
        if source and source != full and source not in self.modules:
            self.aliases[full] = source

    @property
    def clashes(self) -> set[str]:
        """The sources of names that are bound twice, so that it is not certain which binding a use refers to."""
        return {source for sources in self._sources.values() if len(sources) > 1 for source in sources}

    def resolve(self, name: str | None) -> str | None:
        """The dotted name under which an object is defined, given a name under which a module may re-export it."""
        for _ in range(DEEPEST):
            if name is None:
                return None
            parts = name.split(".")
            for length in range(len(parts), 0, -1):
                source = self.aliases.get(".".join(parts[:length]))
                if source is not None:
                    name = ".".join([source, *parts[length:]])
                    break
            else:
                return name
        return None


def _files(path: Path) -> Iterator[Path]:
    """The Python files, in order. Folders that are links are not entered."""
    if path.is_file():
        yield path
        return
    for folder, folders, names in os.walk(path):
        folders[:] = sorted(folder for folder in folders if folder not in SKIPPED and not folder.startswith("."))
        yield from (Path(folder, name) for name in sorted(names) if name.endswith(".py"))


def statements(tree: cst.Module) -> Iterator[cst.BaseSmallStatement]:
    """The simple statements of a module's own level, including those under `if` and `try`."""

    def inside(body: object) -> Iterator[cst.BaseSmallStatement]:
        for line in getattr(body, "body", ()):
            if isinstance(line, cst.SimpleStatementLine):
                yield from line.body
            elif isinstance(line, cst.If | cst.Try | cst.With):
                yield from inside(line.body)
                for part in ("orelse", "finalbody"):
                    yield from inside(getattr(getattr(line, part, None), "body", None))
                for handler in getattr(line, "handlers", ()):
                    yield from inside(handler.body)

    return inside(tree)


def assigned(statement: cst.CSTNode) -> tuple[str, cst.BaseExpression] | None:
    """The name and the value of `name = value` or `name: type = value`; None for any other statement."""
    if isinstance(statement, cst.Assign) and len(statement.targets) == 1:
        target: cst.BaseExpression = statement.targets[0].target
    elif isinstance(statement, cst.AnnAssign):
        target = statement.target
    else:
        return None
    if not isinstance(target, cst.Name) or statement.value is None:
        return None
    return target.value, statement.value


def assignments(module: Module) -> Iterator[tuple[str, cst.BaseExpression]]:
    """The name and the value of each assignment at a module's own level."""
    return (pair for statement in statements(module.tree) if (pair := assigned(statement)) is not None)


def local_names(statement: cst.ImportFrom) -> list[str]:
    """The names that `from ... import ...` defines in its module; none are known for `*`."""
    aliases = () if isinstance(statement.names, cst.ImportStar) else statement.names
    return [alias.evaluated_alias or alias.evaluated_name for alias in aliases]


def _dotted(node: cst.BaseExpression | None) -> str:
    if node is None:
        return ""
    if isinstance(node, cst.Attribute):
        return f"{_dotted(node.value)}.{node.attr.value}"
    return node.value if isinstance(node, cst.Name) else ""
