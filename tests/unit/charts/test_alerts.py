"""The alerts that the chart ships: each fires, clears, and has a runbook; checked by promtool."""

import subprocess
from pathlib import Path
from typing import Any, Final

import pytest
import yaml
from crds.alerts import ALERTS, RECORDS

import prometheus
from batchedapi_core import contract as c

ROOT: Final = Path(__file__).resolve().parents[3]
RULES: Final = ROOT / "charts/batchedapi/rules/batchedapi.yaml"
PAGE: Final = ROOT / "docs/reference/alerts.md"
FIRES: Final = "28m"
"""Trouble lasts for the first half hour of each story ..."""
CLEARS: Final = "70m"
"""... and is over then; the longest window is of 15 minutes."""

Series = tuple[str, str]
"""A series and its values minute by minute, in promtool's notation: first + step x times."""

FOR_HALF_AN_HOUR: Final = "0+60x30 1800x60"
ALL_THE_TIME: Final = "0+60x90"
AFTERWARDS: Final = "0x30 0+60x60"
REPLICA: Final = 'namespace="team",api="iris",pod="iris-0",method="predict"'
OBJECT: Final = 'namespace="team",name="iris"'


def of_replica(metric: str, more: str, values: str) -> Series:
    """One series of a replica's page."""
    return f"{metric}{{{REPLICA}{more and ','}{more}}}", values


def of_operator(metric: str, more: str, values: str) -> Series:
    """One series about an API of the operator's page."""
    return f"{metric}{{{OBJECT}{more and ','}{more}}}", values


STORIES: Final[dict[str, tuple[Series, ...]]] = {
    "BatchedAPIRequestsFail": (
        of_replica(c.METRIC_REQUESTS, 'code="500"', FOR_HALF_AN_HOUR),
        of_replica(c.METRIC_REQUESTS, 'code="200"', "0+600x90"),
    ),
    "BatchedAPIRowsRefused": (
        of_replica(c.METRIC_ROWS_REJECTED, 'reason="latency"', FOR_HALF_AN_HOUR),
        of_replica(c.METRIC_ROWS_REJECTED, 'reason="disconnected"', ALL_THE_TIME),
        of_replica(c.METRIC_ROWS_RECEIVED, "", "0+600x90"),
    ),
    "BatchedAPIReplicasMissing": (
        of_operator(c.OPERATOR_READY_REPLICAS, "", "1x30 3x60"),
        of_operator(c.OPERATOR_DESIRED_REPLICAS, "", "3x90"),
        of_replica(c.METRIC_LANES, "", "1x90"),
    ),
    "BatchedAPIAtMaxReplicas": (
        of_operator(c.OPERATOR_DECISIONS, 'reason="MaxReplicas"', FOR_HALF_AN_HOUR),
        of_operator(c.OPERATOR_DECISIONS, 'reason="Demand"', AFTERWARDS),
    ),
    "BatchedAPIProcessesCrash": (
        (f"{c.METRIC_PROCESS_RESTARTS}{{{REPLICA},role='model'}}", "0+1x30 30x60"),
    ),
    "BatchedAPIWebProcessBusy": (
        (f"{c.METRIC_WEB_CPU_SECONDS}{{{REPLICA},process='0'}}", "0+59x30 1770+6x60"),
    ),
    "BatchedAPIReplicasUnread": (
        of_operator(c.OPERATOR_SCRAPES, 'result="timeout"', FOR_HALF_AN_HOUR),
        of_operator(c.OPERATOR_SCRAPES, 'result="success"', AFTERWARDS),
    ),
    "BatchedAPIReplicasNotScraped": (
        of_operator(c.OPERATOR_READY_REPLICAS, "", "2x90"),
        of_replica(c.METRIC_LANES, "", "_x30 1x60"),
    ),
    "BatchedAPIReconcilesFail": (
        (f"{c.OPERATOR_RECONCILES}{{result='error'}}", FOR_HALF_AN_HOUR),
        (f"{c.OPERATOR_RECONCILES}{{result='success'}}", ALL_THE_TIME),
    ),
    "BatchedAPIOperatorDown": ((f"{c.OPERATOR_LEADER}{{pod='operator-0'}}", "0x30 1x60"),),
}
LEADS: Final = (f"{c.OPERATOR_LEADER}{{pod='operator-1'}}", "1x90")


def promtool(*arguments: str | Path) -> str:
    """The output of promtool; a failure of it is one of the test."""
    try:
        program = prometheus.program("promtool")
    except prometheus.PrometheusUnavailableError as error:
        pytest.skip(str(error))
    result = subprocess.run(
        [program, *arguments], capture_output=True, text=True, timeout=60, check=False
    )
    assert not result.returncode, result.stdout + result.stderr
    return result.stdout


def story(name: str) -> dict[str, Any]:
    """The trouble of one alert: it alone fires, and nothing does once it is over."""
    (alert,) = [one for one in ALERTS if one.name == name]
    labels = {"namespace": "team", "api": "iris", "name": "iris", "severity": alert.severity}
    of_each = [of for of in ("namespace", "api", "name") if f"$labels.{of} " in alert.summary]
    expected = {key: labels[key] for key in (*of_each, "severity")}
    leads = () if name == "BatchedAPIOperatorDown" else (LEADS,)
    firing = {"eval_time": FIRES, "alertname": name, "exp_alerts": [{"exp_labels": expected}]}
    quiet = [
        {"eval_time": time, "alertname": one.name, "exp_alerts": []}
        for one in ALERTS
        for time in (FIRES, CLEARS)
        if (time, one.name) != (FIRES, name)
    ]
    return {
        "interval": "1m",
        "input_series": [
            {"series": series, "values": values} for series, values in (*STORIES[name], *leads)
        ],
        "alert_rule_test": [firing, *quiet],
    }


def without_annotations(folder: Path) -> Path:
    """The rules as they are but for texts, which promtool would want to be repeated."""
    rules = yaml.safe_load(RULES.read_text(encoding="utf-8"))
    for group in rules["groups"]:
        for rule in group["rules"]:
            rule.pop("annotations", None)
    file = folder / "rules.yaml"
    file.write_text(yaml.safe_dump(rules), encoding="utf-8")
    return file


def test_the_rules_are_valid() -> None:
    """Expressions and templates of messages, by Prometheus' own parser."""
    printed = promtool("check", "rules", RULES)

    assert f"SUCCESS: {len(RECORDS) + len(ALERTS)} rules found" in printed


@pytest.mark.parametrize("name", [alert.name for alert in ALERTS])
def test_an_alert_fires_alone_and_clears(name: str, tmp_path: Path) -> None:
    """One that stays quiet, or never ends, is not looked at for long."""
    rules = without_annotations(tmp_path)
    tests = tmp_path / "tests.yaml"
    tests.write_text(
        yaml.safe_dump({"rule_files": [str(rules)], "tests": [story(name)]}), encoding="utf-8"
    )

    assert "SUCCESS" in promtool("test", "rules", tests)


@pytest.mark.parametrize("name", [alert.name for alert in ALERTS])
def test_an_alert_links_to_its_runbook(name: str) -> None:
    """The anchor is what Markdown makes of the heading."""
    rules = yaml.safe_load(RULES.read_text(encoding="utf-8"))["groups"][1]["rules"]
    (rule,) = [one for one in rules if one["alert"] == name]
    headings = [
        line.removeprefix("## ") for line in PAGE.read_text(encoding="utf-8").splitlines()
        if line.startswith("## ")
    ]  # fmt: skip

    assert rule["annotations"]["runbook_url"].partition("#")[2] in [
        heading.lower() for heading in headings
    ]
