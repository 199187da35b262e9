"""The alert rules and the dashboard are valid PromQL, and name only metrics and labels that a broker has.

test_exporter.py compares the table of families with the page of a broker. What the rules do is in alerts_test.yaml,
which promtool runs; CI does not have it, because building it takes longer than all other tests.
"""

import json
import re
from collections.abc import Iterator
from itertools import combinations
from typing import Any

import promql_parser
import pytest
from prometheus_client import CollectorRegistry, ProcessCollector

from kbroker.exporter.families import BY_NAME
from tests.unit.test_imports import ROOT

ALERTS = (ROOT / "monitoring/alerts.yaml").read_text()
DASHBOARD = json.loads((ROOT / "monitoring/dashboard.json").read_text())
PANELS: list[dict[str, Any]] = DASHBOARD["panels"]
# Prometheus adds these labels to every sample.
SCRAPED = {"job", "instance"}
_EXPRESSION = re.compile(r"^ +expr: (?:>-\n)?(.+\n(?: {10,}.+\n)*)", re.MULTILINE)


def dashboard_expressions() -> Iterator[str]:
    for panel in PANELS:
        yield from (target["expr"] for target in panel.get("targets", ()))
    for variable in DASHBOARD["templating"]["list"]:
        if variable["type"] == "query":
            yield variable["query"]["query"].removeprefix("label_values(").rpartition(",")[0]


EXPRESSIONS = [" ".join(text.split()) for text in (*_EXPRESSION.findall(ALERTS), *dashboard_expressions())]


def metric_labels() -> dict[str, set[str]]:
    """Return the labels of each name of a sample."""
    known = {"up": SCRAPED}
    for metric in ProcessCollector(registry=CollectorRegistry()).collect():
        known[metric.name + ("_total" if metric.type == "counter" else "")] = SCRAPED
    for family in BY_NAME.values():
        names = {label for label in family.labels.split(", ") if label}
        suffixes = {"_bucket": {"le"}, "_sum": set(), "_count": set()} if family.kind == "histogram" else {"": set()}
        for suffix, more in suffixes.items():
            known[family.name + suffix] = SCRAPED | names | more
    return known


def test_there_are_expressions() -> None:
    assert ALERTS.count(" expr:") == ALERTS.count("- alert:") == len(_EXPRESSION.findall(ALERTS)) > 15
    assert len(EXPRESSIONS) > 45


@pytest.mark.parametrize("expression", EXPRESSIONS)
def test_an_expression_names_metrics_and_labels_that_exist(expression: str) -> None:
    promql_parser.parse(expression.replace("$__rate_interval", "5m"))
    known = metric_labels()
    selectors = re.findall(
        r"\b((?:kbroker|kafka|process|python)_\w+|up\b)(?:\{([^}]*)\})?", re.sub(r'"[^"]*"', '""', expression)
    )
    assert selectors
    for name, matchers in selectors:
        assert name in known
        assert set(re.findall(r"(\w+)[!=]~?", matchers)) <= known[name], name
        for names in re.findall(r" by \(([^)]*)\)", expression):
            assert set(names.split(", ")) <= known[name], name


def test_legends_show_labels_of_their_expression() -> None:
    for panel in PANELS:
        for target in panel.get("targets", ()):
            by = {name for names in re.findall(r" by \(([^)]*)\)", target["expr"]) for name in names.split(", ")}
            shown = set(re.findall(r"\{\{(\w+)\}\}", target["legendFormat"]))
            assert shown <= (by - {"le"} or SCRAPED), panel["title"]


def test_panels_do_not_overlap() -> None:
    assert len({panel["id"] for panel in PANELS}) == len(PANELS)
    for first, second in combinations([panel["gridPos"] for panel in PANELS], 2):
        assert first["x"] + first["w"] <= 24
        assert (
            first["x"] + first["w"] <= second["x"]
            or second["x"] + second["w"] <= first["x"]
            or first["y"] + first["h"] <= second["y"]
            or second["y"] + second["h"] <= first["y"]
        ), (first, second)


def test_each_alert_has_a_severity_and_a_page_that_exists() -> None:
    for rule in ALERTS.split("- alert: ")[1:]:
        assert re.search(r"labels: \{severity: (critical|warning)\}", rule), rule
        assert re.search(r"^ +summary: .", rule, re.MULTILINE), rule
        see = re.search(r"^ +see: (docs/[\w.]+)#([\w-]+)$", rule, re.MULTILINE)
        assert see, rule
        headings = re.findall(r"^#+ (.+)$", (ROOT / see[1]).read_text(), re.MULTILINE)
        assert see[2] in {re.sub(r"[^\w\- ]", "", heading).lower().replace(" ", "-") for heading in headings}, see[0]
