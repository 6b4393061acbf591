"""The report of a move, for people and as JSON; and the changes as a diff."""

from __future__ import annotations

import difflib
from typing import Any, Final

from treadle.contrib.celery.model import GUIDE, Finding
from treadle.contrib.celery.plan import Plan

HEADINGS: Final = {"rewritten": "Rewritten", "differs": "Rewritten, with another meaning", "left": "Left as it is"}


def as_json(plan: Plan, written: bool) -> dict[str, Any]:
    """The report as a JSON value. `written`: whether the files were changed."""
    return {
        "written": written,
        "moved": plan.moved,
        "stayed": plan.stayed,
        "files": [path.as_posix() for path in plan.files],
        "guide": GUIDE,
        "findings": plan.findings,
    }


def as_text(plan: Plan) -> str:
    """The report as text: what was rewritten, what differs, and every other line with its reason."""
    counts = f"{len(plan.moved)} of {len(plan.moved) + len(plan.stayed)} tasks move to Treadle"
    parts = [counts + (f"; these stay with Celery: {', '.join(plan.stayed)}" if plan.stayed else "")]
    for kind in ("left", "differs", "rewritten"):
        lines = [_line(finding) for finding in plan.findings if finding.kind == kind]
        if lines:
            parts.append("\n".join([f"{HEADINGS[kind]} ({len(lines)})", *lines]))
    parts.append(f"Sections are those of {GUIDE}")
    return "\n\n".join(parts) + "\n"


def _line(finding: Finding) -> str:
    place = f"{finding.file}:{finding.line}" if finding.line else finding.file
    code = f"  {finding.code}\n" if finding.code else ""
    return f"{place}: {finding.reason} (#{finding.section})\n{code}".rstrip("\n")


def diff(plan: Plan) -> str:
    """The changes, as `diff -u` prints them."""
    texts = []
    for path, new in plan.files.items():
        old = plan.before[path]
        source = path.as_posix() if old else "/dev/null"
        lines = difflib.unified_diff(_lines(old), _lines(new), source, path.as_posix(), lineterm="")
        texts += [line.rstrip("\r\n") for line in lines]
    return "\n".join(texts)


def _lines(content: bytes) -> list[str]:
    return content.decode("utf-8", "replace").splitlines(keepends=True)
