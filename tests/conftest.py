"""What concerns the whole run: the closing report also says which code blocks of the documentation did not run."""

from __future__ import annotations

import pytest


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    reports = terminalreporter.getreports("passed") + terminalreporter.getreports("failed")
    found = [value for report in reports for name, value in report.user_properties if name == "code block not run"]
    if found:
        terminalreporter.section(f"code blocks not run: {len(found)} (they compile)")
        for line in sorted({str(value) for value in found}):
            terminalreporter.line(line)
