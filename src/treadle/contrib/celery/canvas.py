"""Rewrites chains, groups and chords whose parts are signatures of known tasks."""

from __future__ import annotations

from typing import Any, Final, Literal

import libcst as cst

from treadle.contrib.celery.calls import Parts, checked, parts
from treadle.contrib.celery.model import Build, Module, TaskDef, Use, begins_with
from treadle.contrib.celery.package import Package
from treadle.contrib.celery.results import plain, result_of
from treadle.contrib.celery.settings import Settings

SIGNATURES: Final = {"s", "si", "signature", "subtask"}
STARTS: Final = {"delay", "apply_async"}
CANVAS: Final = {
    f"{place}.{name}": name for place in ("celery", "celery.canvas") for name in ("chain", "group", "chord")
}
SECTION: Final = "canvas"
Position = Literal["first", "later", "member"]


class Canvas:
    """Recognises canvas expressions of one module, and adds their edits to a `Use`."""

    def __init__(self, package: Package, settings: Settings, tasks: dict[str, TaskDef], module: Module) -> None:
        self._package, self._settings, self._tasks, self.module = package, settings, tasks, module

    def task_of(self, node: cst.CSTNode) -> tuple[str, str] | None:
        """The task that a dotted name begins with, and the rest of the name."""
        whole = self._package.resolve(self.module.canonical(node)) or ""
        name = begins_with(whole, self._tasks)
        return None if name is None else (name, whole.removeprefix(name).lstrip("."))

    def kind(self, node: cst.BaseExpression) -> str | None:
        """ "signature", "chain", "group" or "chord"; None for anything else."""
        if isinstance(node, cst.BinaryOperation) and isinstance(node.operator, cst.BitOr):
            return "chain" if self.kind(node.left) and self.kind(node.right) else None
        if not isinstance(node, cst.Call):
            return None
        task = self.task_of(node.func)
        if task is not None:
            return "signature" if task[1] in SIGNATURES else None
        if isinstance(node.func, cst.Attribute) and node.func.attr.value == "set":
            return "signature" if self.kind(node.func.value) == "signature" else None
        return CANVAS.get(self._package.resolve(self.module.canonical(node.func)) or "")

    def start(self, call: cst.Call) -> Use | None:
        """The use that begins with this call, such as `chain(...).delay()`; None: it starts no canvas."""
        func = call.func
        body = None
        if isinstance(func, cst.Attribute) and func.attr.value in STARTS and (kind := self.kind(func.value)):
            inner: cst.BaseExpression = func.value
        elif (kind := self.kind(func)) in ("chain", "group", "chord"):
            inner = func
            if kind == "chord" and len(call.args) == 1 and isinstance(func, cst.Call) and len(func.args) == 1:
                body = call.args[0].value
        else:
            return None
        use = Use(self.module, call, set())
        if call.args and body is None:
            use.problem(call, "arguments of the call that starts a canvas are not certain", SECTION)
        assert kind is not None
        self._piece(use, inner, "first", body)
        use.edits[call] = use.whole or self._started(call, kind)
        if kind in ("group", "signature"):
            use.needs.add("app")
        result_of(use, call, many=kind == "group")
        return use

    def _started(self, call: cst.Call, kind: str) -> Build:
        def build(updated: Any, module: Module) -> cst.CSTNode:
            func, waits = updated.func, module.is_async(call)
            inner = func.value if isinstance(call.func, cst.Attribute) and self.kind(call.func) is None else func
            app = module.wanted.get("app")  # a chain needs none
            enqueue = f"{app}.enqueue" if waits else f"{app}.sync.enqueue"
            if kind == "group":
                source = module.text(inner.with_changes(func=module.parse(enqueue)))
            elif kind == "signature":
                source = f"{enqueue}({module.text(inner)})"
            else:
                source = f"{module.text(inner)}.{'enqueue' if waits else 'enqueue_sync'}()"
            return module.parse(plain(module, call, f"await {source}") if waits else source)

        return build

    def _piece(
        self, use: Use, node: cst.BaseExpression, position: Position, body: cst.BaseExpression | None = None
    ) -> None:
        """Add the edits of one part of a canvas."""
        kind = self.kind(node)
        if kind == "signature":
            assert isinstance(node, cst.Call)
            self._signature(use, node, position)
        elif isinstance(node, cst.BinaryOperation):
            self._pipe(use, node)
        elif kind == "chain" and isinstance(node, cst.Call):
            use.edits[node.func] = lambda _, module: module.parse(module.wanted["treadle.chain"])
            use.needs.add("treadle.chain")
            use.covers.add(node.func)
            self._steps(use, node, [arg.value for arg in node.args], any(arg.star or arg.keyword for arg in node.args))
        elif kind == "group" and isinstance(node, cst.Call) and position == "first":
            use.covers.add(node.func)
            self._group(use, node)
        elif kind == "chord" and isinstance(node, cst.Call):
            self._chord(use, node, body)
        else:
            use.problem(node, "a part of this canvas is not a signature of a known task", SECTION)

    def _steps(self, use: Use, node: cst.CSTNode, steps: list[cst.BaseExpression], unclear: bool) -> None:
        if unclear or len(steps) < 2:
            use.problem(node, "the steps of this chain are not written out", SECTION)
            return
        for number, step in enumerate(steps):
            if self.kind(step) != "signature":
                use.problem(step, "a step of this chain is not a signature of a known task", SECTION)
                continue
            self._piece(use, step, "later" if number else "first")

    def _pipe(self, use: Use, node: cst.BinaryOperation) -> None:
        """`a.s(1) | b.s()` becomes `chain(a.job(1), b.late())`."""
        self._steps(use, node, _piped(node), False)
        use.needs.add("treadle.chain")

        def build(updated: Any, module: Module) -> cst.CSTNode:
            return module.parse(f"{module.wanted['treadle.chain']}({', '.join(map(module.text, _piped(updated)))})")

        use.edits[node] = build

    def _signature(self, use: Use, node: cst.Call, position: Position) -> None:
        """`task.s(...)`, `task.si(...)`, `task.signature((...), ...)`, each also with `.set(...)`."""
        inner, extra = node, []
        if (
            isinstance(node.func, cst.Attribute)
            and node.func.attr.value == "set"
            and isinstance(node.func.value, cst.Call)
        ):
            inner, extra = node.func.value, list(node.args)
            use.edits[node] = lambda updated, _: updated.func.value
        task = self.task_of(inner.func)
        if task is None or task[1] not in SIGNATURES:
            use.problem(node, "this signature is not certain", SECTION)
            return
        full, how = task
        use.tasks.add(full)
        use.covers.add(inner.func)
        immutable = how == "si" or any(
            arg.keyword is not None and arg.keyword.value == "immutable" and self.module.text(arg.value) == "True"
            for arg in inner.args
        )

        def arguments_of(call: Any) -> Parts:
            """The parts of `task.signature(args, kwargs, ...)`."""
            kept = [arg for arg in call.args if arg.keyword is None or arg.keyword.value != "immutable"]
            return parts(kept if how in ("signature", "subtask") else (), self.module, self._settings)

        more = parts(extra, self.module, self._settings)

        def text(call: Any) -> str:
            whole = arguments_of(call)
            arguments = whole.args
            if how in ("s", "si"):
                arguments = self.module.text(call.with_changes(func=cst.Name("f")))[2:-1]
            options = [*whole.options, *more.options]
            if immutable and position == "later":
                options.append("pass_result=False")
            bound = f".options({', '.join(options)})" if options else ""
            verb = "late" if position == "later" and not immutable else "job"
            return f"{self.module.text(call.func.value)}{bound}.{verb}({arguments})"

        if how in ("signature", "subtask"):
            checked(use, inner, arguments_of(inner), text(inner))
        if extra:
            checked(use, node, more, text(inner))
        use.edits[inner] = lambda updated, module: module.parse(text(updated))

    def _group(self, use: Use, node: cst.Call) -> None:
        """The members of a group: signatures, a list of them, or one comprehension."""
        if any(arg.star or arg.keyword for arg in node.args) or not node.args:
            use.problem(node, "the members of this group are not written out", SECTION)
        else:
            self._members(use, [arg.value for arg in node.args], "group")

    def _members(self, use: Use, expressions: list[cst.BaseExpression], kind: str) -> None:
        for member in (member for expression in expressions for member in _each(expression)):
            if self.kind(member) != "signature":
                use.problem(member, f"a member of this {kind} is not a signature of a known task", SECTION)
            else:
                self._piece(use, member, "member")

    def _chord(self, use: Use, node: cst.Call, body: cst.BaseExpression | None) -> None:
        """`chord(header, body)` becomes `gather(header).into(body)`."""
        outer = self.module.parent(node)
        last = body if body is not None else node.args[1].value if len(node.args) == 2 else None
        if last is None or self.kind(last) != "signature" or any(arg.star or arg.keyword for arg in node.args):
            use.problem(node, "the header and the body of this chord are not written out", SECTION)
            return
        use.covers.add(node.func)
        header = node.args[0].value
        if self.kind(header) == "group" and isinstance(header, cst.Call):
            use.covers.add(header.func)
            self._group(use, header)
        else:
            self._members(use, [header], "chord")
        task = self.task_of(last.func) if isinstance(last, cst.Call) else None
        if task is None or task[1] not in ("s", "si"):
            use.problem(last, "the body of this chord is not written as task.s() or task.si()", SECTION)
            return
        use.tasks.add(task[0])
        use.covers.add(last.func)  # type: ignore[attr-defined]
        immutable = task[1] == "si"
        use.needs.add("treadle.flow" if immutable else "treadle.gather")

        def build(updated: Any, module: Module) -> cst.CSTNode:
            body_call = updated.args[1].value if body is None else updated.args[0].value
            args = module.text(body_call.with_changes(func=cst.Name("f")))[2:-1]
            task = module.text(body_call.func.value)
            head = updated.args[0].value if body is None else updated.func.args[0].value
            text = module.text(head)
            if isinstance(head, cst.GeneratorExp):
                text = text.strip()[1:-1]
            if isinstance(head, cst.Call) and self.kind(header) == "group":
                text = module.text(head.with_changes(func=cst.Name("f")))[2:-1]
            if immutable:
                return module.parse(f"{module.wanted['treadle.flow']}({text}).then({task}.job({args}))")
            more = f", {args}" if args.strip() else ""
            return module.parse(f"{module.wanted['treadle.gather']}({text}).into({task}{more})")

        if body is None:
            use.edits[node] = build
        else:
            assert isinstance(outer, cst.Call)

            def both(updated: Any, module: Module) -> cst.CSTNode:
                source, waits = module.text(build(updated, module)), module.is_async(outer)
                return module.parse(
                    plain(module, outer, f"await {source}.enqueue()") if waits else f"{source}.enqueue_sync()"
                )

            use.whole = both


def _piped(node: cst.BaseExpression) -> list[cst.BaseExpression]:
    """The steps of `a | b | c`."""
    return [*_piped(node.left), node.right] if isinstance(node, cst.BinaryOperation) else [node]


def _each(node: cst.BaseExpression) -> list[cst.BaseExpression]:
    """The elements of a list or a tuple, the one element of a comprehension, or else the expression itself."""
    if isinstance(node, cst.List | cst.Tuple):
        return [element.value for element in node.elements]
    if isinstance(node, cst.GeneratorExp | cst.ListComp):
        return [node.elt]
    return [node]
