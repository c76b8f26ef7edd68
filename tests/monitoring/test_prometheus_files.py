"""Grafana's dashboard and Prometheus's rules: every expression parses, every metric and label in
them is one that processes expose.
"""

import json
import re
import runpy
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families
from promql_parser import parse

from bireme.monitoring.counters import Histogram, Sample, Tally
from bireme.monitoring.exposition import METRICS, exposed
from bireme.monitoring.step_clock import PHASES

FOLDER = Path(__file__).parents[2] / "docs" / "monitoring"
RULES = yaml.safe_load((FOLDER / "rules.yml").read_text())
DASHBOARD = json.loads((FOLDER / "grafana.json").read_text())
OF_PROMETHEUS = {"job", "instance"}  # labels that a scrape adds
ALWAYS = {"process_resident_memory_bytes", "process_cpu_seconds_total"}
WORDS = re.compile(r"\b(?:bireme|process)[:_][a-z0-9_:]+")


def rules() -> list[dict[str, Any]]:
    return [rule for group in RULES["groups"] for rule in group["rules"]]


def expressions() -> Iterator[Any]:
    for rule in rules():
        yield pytest.param(rule["expr"], id=rule.get("alert") or rule["record"])
    for panel in DASHBOARD["panels"]:
        for target in panel["targets"]:
            text = target["expr"].replace("$job", "bireme")
            yield pytest.param(text, id=f"{panel['title']} {target['refId']}")


def labels_of(name: str) -> set[str]:
    """The labels that a metric has on some process."""
    return {label for family in families() for s in family.samples if s.name == name
            for label in s.labels}  # fmt: skip


def families() -> list[Any]:
    """Everything that a trainer and a server with tables and checkpoints expose."""
    trainer = Tally()
    trainer.enter("trainer", 0)
    trainer.step(1, 0.1, np.ones(len(PHASES)))
    trainer.gauges |= {"bireme_loss": 1.0, "bireme_accuracy": 1.0}
    trainer.metrics["auc"] = 0.5
    trainer.saved(1, 1.0, 1.0)
    times = Histogram()
    by = {
        "bireme_table_rows": {"table": "t"}, "bireme_table_bytes": {"table": "t"},
        "bireme_queue_depth": {"queue": "updates"}, "bireme_barrier_waiting": {"barrier": "round"},
        "bireme_rpc_deduplicated_total": {"method": "exchange"},
        "bireme_peer_up": {"peer": "trainer 0"},
        "bireme_peer_last_heartbeat_timestamp_seconds": {"peer": "trainer 0"},
    }  # fmt: skip
    server = [Sample(name, 1.0, labels) for name, labels in by.items()]
    server.append(Sample("bireme_gradient_staleness_steps", times, {"trainer": 0}))
    text = exposed(trainer.samples()) + exposed(server)
    return list(text_string_to_metric_families(text))


def exists(name: str) -> bool:
    """Whether processes expose a series of this name, or a rule records it."""
    if name in ALWAYS or name in {rule.get("record") for rule in rules()}:
        return True
    base = re.sub(r"_(bucket|sum|count)$", "", name)
    if base != name:
        return METRICS.get(base, ("", ""))[0] == "histogram"
    return METRICS.get(name, ("histogram", ""))[0] != "histogram"


@pytest.mark.parametrize("expression", list(expressions()))
def test_an_expression_names_what_there_is(expression: str) -> None:
    parse(expression)
    names = WORDS.findall(re.sub(r'"[^"]*"', '""', expression))
    assert names
    assert [name for name in names if not exists(name)] == []


@pytest.mark.parametrize("expression", list(expressions()))
def test_labels_in_selectors_are_those_of_the_metric(expression: str) -> None:
    for name, inside in re.findall(r"\b(bireme_\w+)\{([^}]*)\}", expression):
        used = set(re.findall(r"(\w+)\s*[=!]", inside)) - OF_PROMETHEUS
        assert used <= labels_of(name), name


def test_rules_have_what_prometheus_asks_of_them() -> None:
    names = [rule.get("alert") or rule["record"] for rule in rules()]
    assert len(names) == len(set(names))
    for rule in rules():
        assert rule.keys() <= {"alert", "record", "expr", "for", "labels", "annotations"}
        assert ("alert" in rule) != ("record" in rule)
        assert re.fullmatch(r"\d+[smh]", rule.get("for", "1s"))
        assert "record" in rule or rule["annotations"]["summary"]


def test_the_dashboard_has_what_grafana_asks_of_it() -> None:
    made = runpy.run_path(str(FOLDER.parents[1] / "tools" / "grafana_dashboard.py"))
    assert made["dashboard"]() == DASHBOARD  # `make docs` has been run
    panels = DASHBOARD["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    places = {(p["gridPos"]["x"], p["gridPos"]["y"]) for p in panels}
    assert len(places) == len(panels)
    assert all(p["gridPos"]["x"] + p["gridPos"]["w"] <= 24 for p in panels)
    variables = {"$" + each["name"] for each in DASHBOARD["templating"]["list"]}
    used = set(re.findall(r"\$\{?(\w+)\}?", json.dumps(panels)))
    assert {"$" + name for name in used} <= variables
    for panel in panels:
        assert panel["type"] == "timeseries"
        assert [t["refId"] for t in panel["targets"]] == sorted(
            {t["refId"] for t in panel["targets"]}
        )


def test_prometheus_reads_what_the_launcher_writes() -> None:
    config = yaml.safe_load((FOLDER / "prometheus.yml").read_text())
    (scrape,) = config["scrape_configs"]
    assert scrape["file_sd_configs"] == [{"files": ["log/prometheus.json"]}]
    assert config["rule_files"] == ["rules.yml"]
