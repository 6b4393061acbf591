"""Writes docs/benchmarks.md: the command replaces the parts between marks and leaves the rest of the page unchanged.

No figure is copied by hand.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Final

from benchmarks.harness import goals, plots
from benchmarks.harness.cells import CELLS
from benchmarks.harness.goals import number
from benchmarks.harness.keep import Results
from benchmarks.harness.marked_page import Section
from benchmarks.harness.plots import Bar, Panel
from benchmarks.harness.systems import SYSTEMS, System

GOALS: Final = Section("<!-- goals: written by `dev.py bench` -->", "<!-- /goals -->")
TITLES: Final = {
    "postgres": "PostgreSQL",
    "redis": "Redis, nothing written to disk",
    "redis-aof": "Redis, appendfsync everysec",
    "sqlite": "SQLite",
}
PICTURES: Final = (  # file, figure, title, unit, whether lower is better
    ("drain", goals.DRAIN, "Drain of no-op jobs", "jobs/s until the last job is settled; longer is better", False),
    (
        "backlog",
        goals.DEEP,
        "Drain of 100,000 no-op jobs",
        "jobs/s; longer is better; slow systems are left out",
        False,
    ),
    ("bulk", goals.BULK, "Enqueue in bulk", "jobs/s; longer is better; only systems with a bulk call", False),
    (
        "together",
        goals.TOGETHER,
        "Enqueue from 100 coroutines",
        "jobs/s, each awaits its own call; longer is better",
        False,
    ),
    ("pick-up", goals.PICK, "Pick-up by an idle worker, p99", "ms at 50 jobs/s; shorter is better", True),
    ("cpu", f"drain: {goals.CPU}", "CPU of the worker", "s for 10,000 no-op jobs; shorter is better", True),
)
NOISY: Final = 0.3  # cores in use by other processes, above which a figure is marked


def part(minor: str) -> Section:
    """The part of the page for one Python."""
    return Section(f"<!-- peers on {minor}: written by `dev.py bench` -->", f"<!-- /peers on {minor} -->")


def minor(results: Results) -> str:
    return str(results.machine["python"]).rpartition(".")[0]


def groups() -> Iterable[tuple[str, list[System]]]:
    for group, title in TITLES.items():
        yield title, [it for it in SYSTEMS if it.group == group]


def label(system: System) -> str:
    """The name of a column or bar: the storage is in the heading, except for SQLite's durability."""
    if system.group != "sqlite":
        return system.peer
    way = system.storage.removeprefix("sqlite-")
    return f"{system.peer} ({ {'off': 'no fsync', 'own': 'as it is'}.get(way, way) })"


def cell(results: Results, system: System, figure: str) -> str:
    found = results.figure(system.name, figure)
    if found is None:
        return "-"
    spread = f" ±{found.spread * 50:.0f} %" if found.rounds > 1 else ""
    return f"{number(found.median)}{spread}"


def rows(results: Results, systems: Sequence[System]) -> list[str]:
    """All figures that any of these systems has, in the order of measurement."""
    names = {it.name for it in systems}
    found: dict[str, None] = {}
    for kept in results.cells.values():
        if kept["system"] in names:
            found |= dict.fromkeys(kept.get("figures", ()))
    return list(found)


def table(results: Results, systems: Sequence[System]) -> str:
    seen = [it for it in systems if any(kept["system"] == it.name for kept in results.cells.values())]
    if not seen:
        return "Not measured."
    lines = [f"| | {' | '.join(label(it) for it in seen)} |", f"|---|{'---|' * len(seen)}"]
    for figure in rows(results, seen):
        cells = [cell(results, it, figure) for it in seen]
        lines.append(f"| {figure} | {' | '.join(cells)} |")
    return "\n".join(lines)


def failures(results: Results) -> str:
    found: dict[str, None] = {}
    for kept in results.cells.values():
        if "error" in kept:
            words = kept["error"].replace("|", "/").replace("<", "&lt;")
            found[f"* {kept['system']}, {kept['cell']}: {words}"] = None
    return "\n".join(found) if found else "None."


def noisy(results: Results) -> str:
    marked = [kept for kept in results.cells.values() if kept.get("others", 0.0) > NOISY]
    if not marked:
        return "Other processes never kept more than 0.3 cores busy."
    systems = sorted({kept["system"] for kept in marked})
    return (
        f"**In {len(marked)} of {len(results.cells)} cells other processes kept more than 0.3 cores busy** "
        f"({max(kept['others'] for kept in marked):.1f} at most). The figures of {', '.join(systems)} are unreliable."
    )


def about(results: Results) -> str:
    lines = [
        "| | versions | how it is set up | a killed worker | a crash of the server |",
        "|---|---|---|---|---|",
    ]
    for system in SYSTEMS:
        said = results.about.get(system.name)
        if said:
            versions = ", ".join(f"{name} {version}" for name, version in said["versions"].items())
            lines.append(
                f"| {system.name} | {versions}; Python {said['python']} | {said['notes']} | {said['worker']} | "
                f"{said['server']} |"
            )
    return "\n".join(lines)


def probed(results: Results) -> str:
    found = results.machine.get("probes", {})
    lines = ["| | | jobs/s |", "|---|---|---|"]
    for storage, rates in found.items():
        lines += [f"| {storage} | {what} | {number(value)} |" for what, value in rates.items()]
    return "\n".join(lines) if found else "Not measured."


def pictures(results: Results, folder: Path) -> list[str]:
    """Writes the pictures -> their lines in the page."""
    lines = []
    for name, figure, title, unit, lower in PICTURES:
        panels = []
        for heading, systems in groups():
            found = [Bar(label(it), value, it.ours) for it in systems if (value := results.figure(it.name, figure))]
            if found:
                found.sort(key=lambda bar: bar.figure.median, reverse=not lower)
                panels.append(Panel(heading, found))
        if panels:
            folder.mkdir(parents=True, exist_ok=True)
            (folder / f"{name}.svg").write_text(plots.bars(title, unit, panels))
            lines.append(f"![{title}](plots/{folder.name}/{name}.svg)")
    return lines


def head(results: Results) -> str:
    machine = results.machine
    kept = [it for it in results.cells.values() if "figures" in it]
    if not kept:
        return "Not measured."
    first, last = min(it["at"] for it in kept), max(it["at"] for it in kept)
    commits = sorted({it["commit"] for it in kept if it["commit"]})
    rounds = max(it["round"] for it in kept)
    places = "; ".join(machine.get("places", {}).values())
    return (
        f"{first} to {last[-5:] if first[:10] == last[:10] else last} (UTC), {machine['cores']} cores "
        f"({machine['model']}, {machine['system']}), CPython {machine['python']}, files on {machine['disk']}; "
        f"Treadle at {', '.join(commits) or 'an unknown commit'}. {places}. A `{machine['size']}` run, {rounds} "
        f"round{'s' if rounds > 1 else ''}: medians, ± half the distance from the lowest to the highest. "
        f"{noisy(results)}"
    )


def unmeasured(results: Results) -> str:
    """Name the measures that this run left out."""
    seen = {kept["cell"] for kept in results.cells.values()}
    missing = [name for name in CELLS if name not in seen]
    return f"Measures left out: {', '.join(missing)}." if missing else "No measure was left out."


def text(results: Results, folder: Path) -> str:
    verdicts = goals.judged(results)
    parts = [
        f"### With CPython {minor(results)}\n\n{head(results)}",
        f"#### The goals\n\n{goals.count(verdicts)}\n\n{goals.table(verdicts)}",
        *pictures(results, folder),
        *(f"#### On {title}\n\n{table(results, systems)}" for title, systems in groups()),
        f"#### The floor\n\nRaw loops without any job library, the median of the rounds.\n\n{probed(results)}",
        f"#### Systems measured\n\n{about(results)}",
        f"#### Failures and omissions\n\n{failures(results)}\n\n{unmeasured(results)}",
    ]
    return "\n\n".join(parts)


def put(page: str, section: Section, words: str, behind: str = "") -> str:
    """The page with this text in the section. If it has none yet, it is added after `behind`, or at the end."""
    found = section.around(page)
    if found is None:
        at = page.rindex(behind) + len(behind) if behind and behind in page else len(page)
        found = f"{page[:at]}\n\n{section.start}", f"{section.end}{page[at:] or chr(10)}"
    return f"{found[0]}\n\n{words}\n\n{found[1]}"


def write(results: Results, target: Path, others: Iterable[Results] = ()) -> str:
    """Writes the figures into the page, and returns the table of goals for the terminal.

    others  results for other Pythons in a run of this size: the goals of all are shown side by side
    """
    name = minor(results)
    target.parent.mkdir(parents=True, exist_ok=True)
    page = target.read_text() if target.exists() else ""
    known = sorted({minor(it) for it in others} - {name})
    last = next((part(it).end for it in reversed(known) if part(it).end in page), GOALS.end)
    page = put(page, part(name), text(results, target.parent / "plots" / name), last)
    judged = {minor(it): goals.judged(it) for it in (*others, results)}
    target.write_text(put(page, GOALS, goals.side_by_side({it: judged[it] for it in sorted(judged)})))
    return goals.table(judged[name])
