"""Prints the demo's report as text."""

from __future__ import annotations

from treadle.cli.demo.run import Numbers
from treadle.cli.demo.tasks import Report
from treadle.cli.output import data, plural, table


def show(report: Report, numbers: Numbers) -> None:
    """Print the report to stdout."""
    data(
        f"The standard library of this Python: {report.modules:,} modules, {report.lines:,} lines, "
        f"{report.functions:,} functions, {report.classes:,} classes.\n"
    )
    rows = [(function.name, function.lines) for function in report.longest]
    table(("longest functions", "lines"), rows, "no functions", right=("lines",))
    data("")
    big = [(module.name, module.lines, module.functions, module.classes) for module in report.biggest]
    counts = ("lines", "functions", "classes")
    table(("biggest modules", *counts), big, "no modules", right=counts)
    lost = f"{numbers.lost:,} whose worker was killed ran again" if numbers.killed else "0 lost"
    data(
        f"\n{plural(numbers.enqueued, 'job')} enqueued: {numbers.succeeded:,} succeeded, {numbers.failed:,} failed, "
        f"{lost}, {numbers.missing:,} missing."
    )
    data(
        f"{numbers.seconds:.1f} s with {plural(numbers.processes, 'worker process')}, "
        f"{numbers.enqueued / numbers.seconds:,.0f} jobs/s."
    )
