"""The dashboard and the alert rules: well formed, and with a section of the documentation for each alert."""

from __future__ import annotations

import re
import shutil
import subprocess
from itertools import pairwise

import yaml

from tests.server.prometheus.promql import DEPLOY, alerts, dashboard, of_alerts, of_dashboard
from tools import metrics_page

PAGE = DEPLOY.parent / "docs/guides/observability.md"


def test_each_alert_has_a_severity_and_a_section() -> None:
    sections = {
        re.sub(r"[^\w-]", "", heading.lower().replace(" ", "-"))
        for heading in re.findall(r"^#+ (.*)$", PAGE.read_text(), re.MULTILINE)
    }
    names = [rule["alert"] for rule in alerts()]
    assert len(names) == len(set(names)) >= 15
    for rule in alerts():
        assert rule["labels"]["severity"] in ("info", "warning", "critical"), rule
        page, _, section = rule["annotations"]["runbook"].partition("#")
        assert page == "docs/guides/observability.md"
        assert section in sections, rule["alert"]


def test_a_single_failure_is_visible_for_longer_than_its_alert_waits() -> None:
    """`rate(...[10m])` of one failure is above 0 for less than 10 minutes: an alert `for: 10m` would never fire."""
    minutes = {"m": 1, "h": 60}
    for rule in alerts():
        waits = rule.get("for", "0m")
        ranges = [int(number) * minutes[unit] for number, unit in re.findall(r"\[(\d+)([mh])\]", rule["expr"])]
        if re.search("treadle_(runs|lost)_total", rule["expr"]):  # loops and calls are sampled all the time
            assert int(waits[:-1]) * minutes[waits[-1]] < min(ranges) - 1, rule["alert"]


def test_the_dashboard_can_be_provisioned() -> None:
    found = dashboard()
    assert (found["uid"], found["title"]) == ("treadle", "Treadle")
    assert found["templating"]["list"][0]["type"] == "datasource"
    ids = [panel["id"] for panel in found["panels"]]
    assert len(ids) == len(set(ids))
    rows = [panel["title"] for panel in found["panels"] if panel["type"] == "row"]
    assert rows == [
        "Overview",
        "Latency",
        "Throughput",
        "Failures",
        "Slots, limits and schedules",
        "Outbox",
        "Storage",
    ]
    for panel in found["panels"]:
        assert panel["gridPos"]["x"] + panel["gridPos"]["w"] <= 24
        for part in (panel, *panel.get("targets", ())) if panel["type"] != "row" else ():
            assert part["datasource"]["uid"] == "${datasource}", panel["title"]
    places = [panel["gridPos"] for panel in found["panels"]]
    assert all(after["y"] >= before["y"] for before, after in pairwise(places))
    assert "//" not in (DEPLOY / "grafana/treadle.json").read_text(), "no address of anybody"


def test_the_page_of_all_metrics_is_made_of_the_catalogue() -> None:
    assert metrics_page.PAGE.read_text() == metrics_page.page(), "run `python -m tools.metrics_page`"


def test_every_expression_names_a_metric_and_brackets_match() -> None:
    for each in (*of_alerts(), *of_dashboard()):
        assert each.metrics, each.where
    texts = [rule["expr"] for rule in alerts()]
    texts += [target["expr"] for panel in dashboard()["panels"] for target in panel.get("targets", ())]
    for text in texts:
        for opening, closing in ("()", "{}", "[]"):
            assert text.count(opening) == text.count(closing), text


def test_no_alert_compares_the_sum_of_the_queues_beyond_300_with_a_bound() -> None:
    [full] = [rule for rule in alerts() if rule["alert"] == "TreadleQueueFull"]
    assert 'treadle_jobs{state="ready", queue!="other"}' in full["expr"]


def test_the_scrape_config_names_the_rules_and_both_sources() -> None:
    found = yaml.safe_load((DEPLOY / "prometheus/prometheus.yml").read_text())
    assert found["rule_files"] == ["alerts.yml"]
    assert [job["job_name"] for job in found["scrape_configs"]] == ["treadle", "treadle-workers"]
    if promtool := shutil.which("promtool"):
        for kind, file in (("rules", "alerts.yml"), ("config", "prometheus.yml")):
            subprocess.run([promtool, "check", kind, file], cwd=DEPLOY / "prometheus", check=True)
