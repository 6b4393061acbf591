"""Checks the sentences of the project against word lists, and draws random ones for a reader to judge.

    python -m tools.prose [PATH ...]                        print each sentence that breaks a rule; exit 1 if any does
    python -m tools.prose --draw 30 --seed 7 --kind KIND    print 30 sentences of a kind (see `KINDS`)

It reads `docs/`, `changes/` and the pages at the root, and the docstrings, comments, strings and names of tests of
`src/`, `packages/` and `tests/`. Code blocks and `quoted code` are left out. If a list is wrong about a sentence, put a
comment at its end or just above it: `prose: ok` and the reason.
"""

from __future__ import annotations

import argparse
import ast
import random
import re
import sys
from collections.abc import Iterable, Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from tools.structure import without_collector

ROOT = Path(__file__).resolve().parents[1]
EXCUSE = "prose: ok"
EXAMPLES = ROOT / "tests/project/test_prose.py"  # its sentences break the rules on purpose
ERRORS = frozenset(
    name
    for path in (ROOT / "src/treadle/core/errors").glob("*.py")
    for name in re.findall(r"^class (\w+)", path.read_text(), re.MULTILINE)
)


class Sentence(NamedTuple):
    kind: str
    where: str
    text: str


class Rule(NamedTuple):
    """The words to find, and what to write instead."""

    write: str
    pattern: re.Pattern[str]


def _rule(write: str, pattern: str, flags: int = re.IGNORECASE) -> Rule:
    return Rule(write, re.compile(pattern, flags))


_SUBJECT = _rule(
    "the actor as the subject: 'the enqueuing process stores', not 'who stores'",
    r"^(Who|Whoever|Whatever|What|Whichever)\b(?!.*\?$)",
    0,
)
_THING = _rule("'it' for a thing, 'they' for a person", r"\b(he|his|him|himself)\b")
RULES = (
    _SUBJECT,
    _rule(
        "the actor and its verb: send, publish, notify, return, raise, store, read, write, poll, wait, wake",
        r"\b(is|are|was|were|be|been|being|gets?) "
        r"(?:(?:only|never|always|then|also|first|not|still|already|once|again|just|even|at once|[a-z]+ly) ){0,2}"
        r"(told|said|asked|heard|handed)\b",
    ),
    _THING,
    _rule(
        "the plain word: must, or, wrong, next to, read, repaired",
        r"\b(shall|nor|dear|amiss|beside|heeded|mended|in earnest|unto|thereby|hitherto|lest|alas|befalls?)\b",
    ),
    _rule(
        "the field's term: queue, queue position, blocked, maintenance, unit of work, notifier (see the glossary)",
        r"\b(goes? home|in line|stands? in|steps? aside|the line|tend(s|ed)?( to)? due|on the desk|rings?|bells?)\b",
    ),
    _rule("the verb for it: continues, notifies, reports, calls", r"\bgoes on\b|^Tells? (the|all|other)\b"),
    _rule("what it does, not what would happen without it", r"^(Without it|Without this|Else)\b", 0),
    _rule("'because'", r"[,;:] for (it|he|they|there|nobody|nothing|this|that|these|no|one|each|every) \w+"),
)

# The name of a test is a sentence too: fewer rules, because the sentence below it often explains a word.
OF_NAMES = (
    _SUBJECT,
    _THING,
    _rule("advance due rows; cancel (see the glossary)", r"\b(tend(s|ed|ing)?|doom(s|ed)?)\b"),
    _rule("the actor as the subject", r"^(it|they|so|also) |\b(what|who|which|wher|how)ever\b"),
    _rule(
        "what a test observes: returned, raised, published, reported, requested, released",
        r"\b(told|said|asked|heard|handed(?! off))\b|\bhands? (back|over)\b",
    ),
    _rule(
        "the verb for it: receives, reads, has, names, reports, requires, keeps",
        r"\b(tells?|says?|hears?|knows?|learns?|speaks?|wants?|stands?|survives?|remembers?|forgets?|forgot|believed)\b",
    ),
    _rule("continues, is unavailable, is deleted", r"\b(go|goes|going|went) on\b|\b(is|are|was|were) (away|gone)\b"),
    _rule("the worker, the caller, another program: these words are for people", r"\b(no|some|every|any)body\b"),
    _rule(
        "the plain word: time, next to, again, unchanged, invalid, damaged",
        r"\b(moments?|beside|anew|all the same|at hand|in vain|dear|mends?|spoil(s|ed)?|faces?)\b|\b(is|are) none\b",
    ),
)
_NAME = re.compile(r"^ *(?:async )?def test_(?:law\d\d_|more_)?(\w+)", re.MULTILINE)

_CODE = re.compile(r"``.*?``|`[^`]*`", re.DOTALL)
_END = re.compile(r"(?<=[.!?])(?<!e\.g\.)(?<!i\.e\.)\s+(?=[A-Z`\"*\[(])")


def split(text: str) -> list[str]:
    """The sentences of a paragraph."""
    return [part.strip() for part in _END.split(" ".join(text.split())) if part.strip()]


def _paragraphs(text: str, first: int) -> Iterator[tuple[int, str]]:
    """Each paragraph, list item and table cell with its line. Leaves out code blocks, headings and HTML comments."""
    held: list[str] = []
    start, fenced = first, False
    for number, line in enumerate([*text.splitlines(), ""], first):
        bare = line.strip()
        fence = bare.startswith(("```", "~~~"))
        if fence:
            fenced = not fenced
        ends = (
            fenced
            or fence
            or not bare
            or bare.startswith(("#", "<", "|", "* ", "- ", "> ", "1. ", "!!!"))
            or bool(re.match(r"\d+\. ", bare))
        )
        if ends and held:
            yield start, "\n".join(held)
            held = []
        if fenced or fence or not bare or bare.startswith(("#", "<")):
            continue
        if bare.startswith("|"):
            for cell in bare.strip("|").split("|"):
                yield number, cell.strip()
            continue
        if not held:
            start = number
        held.append(re.sub(r"^([*>-]|\d+\.) ", "", bare))


def _of_text(kind: str, where: str, text: str, first: int = 1) -> Iterator[Sentence]:
    lines = text.splitlines()
    for number, paragraph in _paragraphs(text, first):
        near = lines[max(0, number - first - 1) : number - first + 1]
        if any(EXCUSE in line for line in near):
            continue
        for sentence in split(paragraph):
            yield Sentence(kind, f"{where}:{number}", sentence)


def _without_examples(text: str) -> str:
    """Blank out indented blocks, which are examples and layouts, so that line numbers stay the same."""
    lines = text.splitlines()
    deep = [len(line) - len(line.lstrip()) for line in lines[1:] if line.strip()]
    base = min(deep, default=0)
    return "\n".join([lines[0], *("" if line.startswith(" " * (base + 4)) else line for line in lines[1:])])


# Comments, and before them the strings, which may contain a `#`. A regular expression: `tokenize` took a third of the
# time of the whole check.
_STRING_OR_COMMENT = re.compile(
    r'''(?s)"""(?:[^\\"]|\\.|"(?!""))*"""|\'\'\'(?:[^\\']|\\.|'(?!''))*\'\'\''''
    r"""|"(?:[^\\"\n]|\\.)*"|'(?:[^\\'\n]|\\.)*'|(\#[^\n]*)"""
)
_ORDERS = ("# ty", "# noqa", "# pragma", "# pyright", "# fmt", "#!")


def _comments(text: str) -> Iterator[tuple[int, str]]:
    """Each comment; those of consecutive lines are one text."""
    start, last, held = 0, -1, list[str]()
    line, counted = 1, 0
    for found in _STRING_OR_COMMENT.finditer(text):
        if found[1] is None or found[1].startswith(_ORDERS):
            continue
        line, counted = line + text.count("\n", counted, found.start()), found.start()
        whole = not text[text.rfind("\n", 0, found.start()) + 1 : found.start()].strip()
        if not (whole and line == last + 1) and held:
            yield start, "\n".join(held)
            held = []
        if not held:
            start = line
        held.append(found[1].lstrip("#: ").strip())
        last = line if whole else -1
    if held:
        yield start, "\n".join(held)


def _strings(tree: ast.Module) -> Iterator[tuple[str, int, str]]:
    """The kind, line and text of each string, in order. A statement that is only a string is a docstring: of a module,
    class or function, or below an assignment. The placeholders of an f-string read `x`."""
    left: list[tuple[ast.AST, str]] = [(tree, "texts")]
    while left:
        node, kind = left.pop()
        of: Any = node.__class__
        if of is ast.Constant:
            if isinstance(node.value, str):  # type: ignore[attr-defined]
                yield kind, node.lineno, node.value  # type: ignore[attr-defined]
            continue
        if of is ast.JoinedStr:
            values = node.values  # type: ignore[attr-defined]
            parts = [str(part.value) if isinstance(part, ast.Constant) else "`x`" for part in values]
            yield kind, node.lineno, "".join(parts)  # type: ignore[attr-defined]
            left += [(part.value, kind) for part in reversed(values) if isinstance(part, ast.FormattedValue)]
            continue
        if of is ast.Expr and isinstance(node.value, ast.Constant):  # type: ignore[attr-defined]
            if isinstance(node.value.value, str):  # type: ignore[attr-defined]
                yield "docstrings", node.lineno, _without_examples(node.value.value)  # type: ignore[attr-defined]
            continue
        if of in _NAMING:
            kind = _kind_of_strings(node) or kind
        for name in reversed(_inner(of)):
            value = getattr(node, name)
            if value.__class__ is list:
                left += [(each, kind) for each in reversed(value) if each.__class__ not in _BARE]
            elif value is not None and value.__class__ not in _BARE:
                left.append((value, kind))


_BARE = frozenset((ast.Name, ast.alias, ast.Import, ast.ImportFrom, ast.Pass, str, int, bool, type(None)))  # no strings
_NAMING = frozenset((ast.Raise, ast.keyword, ast.Call))  # they say of which kind the strings in them are


@cache
def _inner(of: Any) -> tuple[str, ...]:
    """The fields of a node that may contain strings."""
    names = ("ctx", "op", "ops", "id", "attr", "arg", "name", "kind", "type_comment", "names", "is_async", "simple")
    return tuple(field for field in of._fields if field not in names)


def _kind_of_strings(node: ast.AST) -> str | None:
    """The kind of the strings in a node; None: the same as around it."""
    if isinstance(node, ast.Raise):
        return "errors"
    if isinstance(node, ast.keyword) and node.arg in ("help", "description", "short_help"):
        return "help"
    if isinstance(node, ast.Call):
        name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
        owner = node.func.value if isinstance(node.func, ast.Attribute) else None
        if name in LEVELS and isinstance(owner, ast.Name) and "log" in owner.id.lower():
            return "logs"
        if name in ERRORS or name.endswith("Error"):
            return "errors"
        return {"Meta": "help", "about": "help"}.get(name)
    return None


def of_python(path: Path, where: str) -> Iterator[Sentence]:
    text = path.read_text()
    excused = {number for number, line in enumerate(text.splitlines(), 1) if EXCUSE in line} if EXCUSE in text else ()
    with without_collector():
        strings = list(_strings(ast.parse(text)))
    documented = ((line, found) for kind, line, found in strings if kind == "docstrings")
    for kind, texts in (("docstrings", documented), ("comments", _comments(text))):
        for line, found in texts:
            if line not in excused and line - 1 not in excused:
                yield from _of_text(kind, where, found, line)
    for kind, line, found in strings:
        if kind == "docstrings" or line in excused or line - 1 in excused:
            continue
        if found.count(" ") + found.count("\n") >= SHORTEST - 1 and len(found.split()) >= SHORTEST:
            for sentence in split(found):
                yield Sentence(kind, f"{where}:{line}", sentence)
    for name in _NAME.finditer(text):
        line = text.count("\n", 0, name.start()) + 1
        if line not in excused and line - 1 not in excused:
            yield Sentence("names", f"{where}:{line}", name[1].replace("_", " "))


def _comment_lines(path: Path, where: str, mark: str) -> Iterator[Sentence]:
    """The comments of an SQL or Lua file (`--`); those of consecutive lines are one text."""
    held: list[str] = []
    start = 1
    for number, line in enumerate([*path.read_text().splitlines(), ""], 1):
        before, there, comment = line.partition(mark)
        alone = there and not before.strip()
        if held and not alone:
            yield from _of_text("comments", where, "\n".join(held), start)
            held = []
        if there and comment.strip():
            if alone:
                start = start if held else number
                held.append(comment.strip())
            else:
                yield from _of_text("comments", where, comment.strip(), number)


def kind_of(path: Path) -> str:
    parts = path.relative_to(ROOT).parts
    if parts[0] == "changes" or parts[0] == "CHANGELOG.md":
        return "changelog"
    return "internals" if "internals" in parts else "guides"


STRINGS = ("errors", "logs", "help", "texts")  # texts: all others, for example of `explain` and `doctor`
KINDS = ("guides", "internals", "docstrings", "comments", *STRINGS, "changelog", "names")  # names: of tests
SHORTEST = 3  # words of a string that is read; shorter ones are names
LEVELS = ("debug", "info", "warning", "error", "exception")


def sentences(paths: Iterable[Path]) -> Iterator[Sentence]:
    for path in paths:
        where = path.relative_to(ROOT).as_posix()
        if path.suffix == ".py":
            yield from of_python(path, where)
        elif path.suffix in (".sql", ".lua"):
            yield from _comment_lines(path, where, "--")
        else:
            yield from _of_text(kind_of(path), where, path.read_text())


def files(given: Sequence[str]) -> list[Path]:
    starts = [ROOT / path for path in given] or [
        ROOT / name for name in ("docs", "changes", "src", "packages", "tests")
    ] + sorted(ROOT.glob("*.md"))
    found: list[Path] = []
    for start in starts:
        if not start.exists():
            raise SystemExit(f"{start}: no such file or folder")
        inside = sorted(start.rglob("*")) if start.is_dir() else [start]
        found += [path for path in inside if path.suffix in (".py", ".md", ".sql", ".lua") and path != EXAMPLES]
    return found


def broken(sentence: Sentence) -> list[str]:
    """For each rule that a sentence breaks: file, line, the words found, and what to write."""
    bare = _CODE.sub("`", sentence.text)
    if sentence.kind in (*STRINGS, "names"):
        bare = bare[:1].upper() + bare[1:]  # an error text begins in lower case
    return [
        f"{sentence.where}: found {found.group(0)!r}; write {rule.write}: {sentence.text}"
        for rule in (OF_NAMES if sentence.kind == "names" else RULES)
        if (found := rule.pattern.search(bare))
    ]


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="tools.prose")
    parser.add_argument(
        "paths", nargs="*", metavar="PATH", help="Files, folders. [default: docs, changes, src, packages, tests, *.md]"
    )
    parser.add_argument("--draw", type=int, metavar="N", help="Print N random sentences instead of checking.")
    parser.add_argument("--seed", type=int, default=0, help="With --draw: seed of the choice. [default: 0]")
    parser.add_argument("--kind", choices=KINDS, help="With --draw: the kind of sentences.")
    given = parser.parse_args(arguments)
    if given.draw:
        long = [one for one in sentences(files(given.paths)) if one.kind == given.kind and len(one.text.split()) > 4]
        for one in random.Random(given.seed).sample(long, given.draw):
            print(f"{one.where}: {one.text}")
        return 0
    count = 0
    for one in sentences(files(given.paths)):
        for finding in broken(one):
            count += 1
            print(finding)
    print(f"{count} to rewrite", file=sys.stderr)
    return 1 if count else 0


if __name__ == "__main__":
    raise SystemExit(main())
