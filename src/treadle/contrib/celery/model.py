"""The data of a run of the codemod: parsed files, tasks, their uses, and the lines of the report."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterator
from pathlib import Path
from typing import Any, Final, Literal

import libcst as cst
from libcst.metadata import MetadataWrapper, ParentNodeProvider, PositionProvider, QualifiedNameProvider, ScopeProvider
from msgspec import Struct, field

GUIDE: Final = "docs/guides/moving-from/celery.md"

UNREAD: Final = "files-that-cannot-be-read"
APP_MARK: Final = "\0app"  # stands for the local name of the Treadle app in planned decorators

Kind = Literal["rewritten", "left", "differs"]
"""A rewritten line; a line that stays as it is; a rewritten line whose meaning differs in the way that is stated."""


class Finding(Struct, frozen=True, order=True):
    """One line of the report.

    line     in the file as it was; 0: the whole file
    section  the anchor of the section of the guide
    """

    file: str
    line: int
    kind: Kind
    code: str
    reason: str
    section: str


Build = Callable[[Any, "Module"], cst.CSTNode]
"""Takes a node, whose parts are rewritten already, and its module; returns the node that replaces it."""


class Module:
    """A parsed file, with the names and the positions of its nodes."""

    def __init__(self, path: Path, shown: str, name: str, raw: bytes) -> None:
        """Raises ParserSyntaxError, and UnicodeDecodeError or LookupError for an encoding that does not fit."""
        self.path, self.shown, self.name, self.raw = path, shown, name, raw
        self.is_package = path.name == "__init__.py"
        wrapper = MetadataWrapper(cst.parse_module(raw))
        self.tree = wrapper.module
        metadata = wrapper.resolve_many([ParentNodeProvider, PositionProvider, QualifiedNameProvider, ScopeProvider])
        self.parents: Any = metadata[ParentNodeProvider]
        self.positions: Any = metadata[PositionProvider]
        names: Any = metadata[QualifiedNameProvider]
        # Computed when they are read, some of them lazily.
        self.names: dict[cst.CSTNode, Any] = {
            node: sources() if callable(sources) else sources for node, sources in names.items()
        }
        self.scopes: Any = metadata[ScopeProvider]
        self.edits: dict[cst.CSTNode, Build] = {}
        self.wanted: dict[str, str] = {}  # name of an additional import -> its local name

    def line(self, node: cst.CSTNode) -> int:
        line: int = self.positions[node].start.line
        return line

    def code(self, node: cst.CSTNode) -> str:
        """The source of a node, in one line."""
        text = " ".join(self.tree.code_for_node(node).split())
        return text if len(text) <= 100 else f"{text[:97]}..."

    def parse(self, text: str) -> cst.BaseExpression:
        """An expression, parsed with the newlines of this file."""
        return cst.parse_expression(text, config=self.tree.config_for_parsing)

    def text(self, node: cst.CSTNode) -> str:
        """The whole source of a node."""
        return self.tree.code_for_node(node)

    def parent(self, node: cst.CSTNode) -> cst.CSTNode | None:
        return next(self.above(node), None)

    def above(self, node: cst.CSTNode) -> Iterator[cst.CSTNode]:
        """The nodes around a node, from the inside out."""
        while (node := self.parents.get(node)) is not None:
            yield node

    def function_of(self, node: cst.CSTNode) -> cst.FunctionDef | cst.Lambda | None:
        """The innermost function around a node."""
        return next((above for above in self.above(node) if isinstance(above, cst.FunctionDef | cst.Lambda)), None)

    def always(self, node: cst.CSTNode) -> bool:
        """Whether a node is part of a statement that runs whenever the module is imported."""
        conditional = cst.If | cst.Try | cst.For | cst.While | cst.FunctionDef | cst.Lambda | cst.IfExp
        return not any(isinstance(above, conditional) for above in self.above(node))

    def is_async(self, node: cst.CSTNode) -> bool:
        """Whether the node is in an async function, where a blocking call would stop the event loop."""
        function = self.function_of(node)
        return isinstance(function, cst.FunctionDef) and function.asynchronous is not None

    def canonical(self, node: cst.CSTNode) -> str | None:
        """The dotted name that a name or an attribute refers to, from the import or the definition; None if it is
        local to a function, or not known for certain."""
        sources = list(self.names.get(node, ())) if is_dotted(node) else []
        if len(sources) != 1 or "<" in sources[0].name:
            return None
        source, name = sources[0].source.name, sources[0].name
        if source == "BUILTIN":
            return f"builtins.{name}"
        return absolute(name, self) if source == "IMPORT" else f"{self.name}.{name}"

    def finding(self, node: cst.CSTNode, kind: Kind, reason: str, section: str) -> Finding:
        return Finding(self.shown, self.line(node), kind, self.code(node), reason, section)


def below(node: cst.CSTNode, without: tuple[type[cst.CSTNode], ...] = ()) -> Iterator[cst.CSTNode]:
    """A node and everything in it, in the order of the source. `without`: kinds of nodes that are left out whole."""
    rest = [node]
    while rest:
        node = rest.pop()
        if not isinstance(node, without):
            yield node
            rest.extend(reversed(node.children))


def is_dotted(node: cst.CSTNode) -> bool:
    """Whether a node is a name, or a name with attributes."""
    while isinstance(node, cst.Attribute):
        node = node.value
    return isinstance(node, cst.Name)


def begins_with(name: str, known: Container[str]) -> str | None:
    """The dotted name among `known` that this one is or begins with; None: there is none. Its time does not depend on
    how many are known."""
    while name and name not in known:
        name = name.rpartition(".")[0]
    return name or None


def absolute(name: str, module: Module) -> str:
    """A name of an import, which may begin with dots, as an absolute one."""
    stripped = name.lstrip(".")
    dots = len(name) - len(stripped)
    if not dots:
        return name
    parts = module.name.split(".")
    parts = parts if module.is_package else parts[:-1]
    base = parts[: len(parts) - dots + 1]
    return ".".join([*base, stripped]) if stripped else ".".join(base)


class TaskDef(Struct, eq=False):
    """A Celery task: a function with a decorator that is known.

    full      module.function
    name      the name of its messages
    bound     the name of its first parameter, with bind=True
    problems  why it cannot be moved
    reads     whether its function reads `current()`, so that a direct call of it raises
    options   of Treadle's decorator: name -> source
    imports   names of `treadle` that the options use
    """

    full: str
    name: str
    module: Module
    function: cst.FunctionDef
    decorator: cst.Decorator
    options: dict[str, str] = field(default_factory=dict)
    imports: set[str] = field(default_factory=set)
    bound: str | None = None
    reads: bool = False
    attempts: str = "4"
    delay: str = "180"  # s before a retry that names none
    problems: list[Finding] = field(default_factory=list)
    notes: list[Finding] = field(default_factory=list)
    before: list[str] = field(default_factory=list)  # statements in front of the function
    above: list[str] = field(default_factory=list)  # decorators above it: its schedules
    edits: dict[cst.CSTNode, Build] = field(default_factory=dict)

    def problem(self, node: cst.CSTNode, reason: str, section: str) -> None:
        self.problems.append(self.module.finding(node, "left", reason, section))

    def note(self, node: cst.CSTNode, reason: str, section: str) -> None:
        self.notes.append(self.module.finding(node, "differs", reason, section))


class Use(Struct, eq=False):
    """A place that uses tasks, outside of their definitions.

    tasks     full names of the tasks; all of them move, or none
    problems  why it cannot be rewritten
    covers    the names and attributes that it explains
    """

    module: Module
    node: cst.CSTNode
    tasks: set[str]
    problems: list[Finding] = field(default_factory=list)
    notes: list[Finding] = field(default_factory=list)
    edits: dict[cst.CSTNode, Build] = field(default_factory=dict)
    covers: set[cst.CSTNode] = field(default_factory=set)
    needs: set[str] = field(default_factory=set)  # "app", and names of `treadle`
    whole: Build | None = None  # the edit of `node`, where a part of it must know the rest
    schedule: str | None = None  # the decorator that a beat entry becomes

    @property
    def whole_node(self) -> cst.CSTNode:
        """The node that the report shows: of a method that is called, the call."""
        above = self.module.parent(self.node)
        return above if isinstance(above, cst.Call) and above.func is self.node else self.node

    def problem(self, node: cst.CSTNode, reason: str, section: str) -> None:
        self.problems.append(self.module.finding(node, "left", reason, section))

    def note(self, node: cst.CSTNode, reason: str, section: str) -> None:
        self.notes.append(self.module.finding(node, "differs", reason, section))
