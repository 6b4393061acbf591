"""Compares the limits that the code declares with the stored rules, and with the limits that jobs name."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from treadle.admin.code_check.findings import Findings
from treadle.admin.known_names import has_rule
from treadle.core.command_lines import command
from treadle.core.limit_model import Limit, LimitUse
from treadle.core.similar_names import near


class LimitNames:
    """The limits that unfinished jobs name: how many jobs, and one of them."""

    def __init__(self) -> None:
        self.jobs: dict[str, int] = {}
        self.example: dict[str, str] = {}

    def note(self, names: Iterable[tuple[str, int]], id: str) -> None:
        for name, _ in names:
            base = name.partition(":")[0]
            self.jobs[base] = self.jobs.get(base, 0) + 1
            self.example.setdefault(base, id)


def look(stored: Iterable[LimitUse], declared: Mapping[str, Limit], named: LimitNames, findings: Findings) -> None:
    """Add notes. A rule never makes a job fail, but a wrong one may let no job start, or too many."""
    rules = {use.key: use for use in stored}
    for name, rule in declared.items():
        use = rules.get(name)
        acting = None if use is None else use.behind or use.rule
        if use is not None and not use.declared and not use.pauses and acting is not None and acting != rule:
            findings.add(
                "limit",
                name,
                f"this code declares {_words(rule)}, and an operator has set {_words(acting)}, which stays in force",
                f"{command('limits', 'remove', name)} removes it; a worker that starts stores the declared rule again",
                level="note",
            )
    for name, use in rules.items():
        if use.declared and name not in declared:
            findings.add(
                "limit",
                name,
                f"this code does not declare it any more; the stored rule ({_words(use.rule)}) stays in force",
                f"after the deployment, {command('limits', 'remove', name)} removes it",
                level="note",
            )
    known = {*rules, *declared}
    for name, jobs in named.jobs.items():
        if not has_rule(name, known) and not any(key.partition(":")[0] == name for key in known):
            for _ in range(jobs):
                findings.add(
                    "limit",
                    name,
                    f"jobs name this limit, and no rule is stored or declared for it{near(name, known)}",
                    "declare it, or set it with `treadle limits set`; until then only a pause or a rest acts",
                    level="note",
                    example=named.example[name],
                )


def _words(rule: Limit) -> str:
    parts = [] if rule.slots is None else [f"slots={rule.slots}"]
    parts += [] if rule.rate is None else [f"rate={rule.rate} per {rule.per:g} s"]
    if rule.max_waiting is not None:
        parts += [f"max_waiting={rule.max_waiting}"]
        parts += [] if rule.when_full == "refuse" else [f"when_full={rule.when_full!r}"]
    return ", ".join(parts) or "nothing"
