"""The metrics and labels that the expressions of dashboards and alert rules name, as far as ours use PromQL."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final, NamedTuple

import yaml

DEPLOY: Final = Path(__file__).resolve().parents[3] / "deploy"
METRIC: Final = re.compile(r"\b(treadle_\w+)(\{[^}]*\})?")
LABEL: Final = re.compile(r'(\w+)\s*(?:=~|!~|!=|=)\s*"')
GROUPING: Final = re.compile(r"\b(by|without|on)\s*\(([^)]*)\)")
OF_TARGETS: Final = {"instance", "pod"}  # labels that Prometheus adds


class Named(NamedTuple):
    """One expression: its metrics, each with the labels of its selector; and the labels of its groups."""

    where: str
    metrics: dict[str, set[str]]
    groups: set[str]


def named(where: str, expression: str) -> Named:
    metrics: dict[str, set[str]] = {}
    for name, selector in METRIC.findall(expression):
        metrics.setdefault(name, set()).update(LABEL.findall(selector))
    groups = {name.strip() for _, names in GROUPING.findall(expression) for name in names.split(",") if name.strip()}
    return Named(where, metrics, groups - OF_TARGETS)


def dashboard() -> dict[str, Any]:
    found: dict[str, Any] = json.loads((DEPLOY / "grafana/treadle.json").read_text())
    return found


def of_dashboard() -> Iterator[Named]:
    found = dashboard()
    for panel in found["panels"]:
        for target in panel.get("targets", ()):
            each = named(panel["title"], target["expr"])
            yield each._replace(groups=each.groups | set(re.findall(r"\{\{(\w+)\}\}", target["legendFormat"])))
    for variable in found["templating"]["list"]:
        if variable["type"] == "query":
            [(metric, label)] = re.findall(r"label_values\((\w+), (\w+)\)", variable["query"]["query"])
            yield Named(variable["name"], {metric: {label}}, set())


def alerts() -> list[dict[str, Any]]:
    groups = yaml.safe_load((DEPLOY / "prometheus/alerts.yml").read_text())["groups"]
    return [rule for group in groups for rule in group["rules"]]


def of_alerts() -> Iterator[Named]:
    for rule in alerts():
        each = named(rule["alert"], rule["expr"])
        shown = set(re.findall(r"\$labels\.(\w+)", rule["annotations"]["summary"]))
        yield each._replace(groups=each.groups | shown)
