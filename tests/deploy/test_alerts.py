"""The alert rules: promtool checks them and runs their own tests, and every rule is among those."""

import re
import subprocess
from pathlib import Path
from typing import Any

import promql_parser
import pytest
import yaml
from tests.dashboard.test_dashboard import metric_names, metrics_in
from tests.tools import program

from silomix.runtime.core.errors import Reason

HERE = Path(__file__).parents[2] / "deploy" / "prometheus"
GROUPS: list[dict[str, Any]] = yaml.safe_load((HERE / "rules.yml").read_text())["groups"]
RULES: list[dict[str, Any]] = [rule for group in GROUPS for rule in group["rules"] if "alert" in rule]
PROMETHEUS_OWN = {"up"}


def promtool(*arguments: object) -> None:
    done = subprocess.run([program("promtool"), *map(str, arguments)], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_configuration_and_the_rules_are_valid() -> None:
    promtool("check", "config", HERE / "prometheus.yml")


def test_the_rules_fire_when_they_should_and_are_quiet_when_they_should_be() -> None:
    promtool("test", "rules", HERE / "rules_test.yml")


def test_a_rule_that_is_wrong_fails_its_test(tmp_path: Path) -> None:
    """The tests of the rules can fail: a threshold that is off by far is noticed."""
    spoiled = (HERE / "rules.yml").read_text().replace("silomix_node_info < 30", "silomix_node_info < 3")
    (tmp_path / "rules.yml").write_text(spoiled)
    (tmp_path / "rules_test.yml").write_text((HERE / "rules_test.yml").read_text())
    with pytest.raises(AssertionError, match="SilomixCertificateExpires"):
        promtool("test", "rules", tmp_path / "rules_test.yml")


def test_every_alert_is_tested_both_ways() -> None:
    tests = yaml.safe_load((HERE / "rules_test.yml").read_text())["tests"]
    cases = [case for test in tests for case in test["alert_rule_test"]]
    for rule in RULES:
        seen = {bool(case.get("exp_alerts")) for case in cases if case["alertname"] == rule["alert"]}
        assert seen == {True, False}, rule["alert"]


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: str(rule["alert"]))
def test_an_alert_asks_for_metrics_that_exist_and_says_what_to_do(rule: dict[str, Any]) -> None:
    promql_parser.parse(rule["expr"])
    assert metrics_in(rule["expr"]) - PROMETHEUS_OWN <= metric_names()
    assert rule["labels"]["severity"] in ("warning", "critical")
    assert len(rule["annotations"]["summary"]) > 20
    assert len(rule["annotations"]["action"]) > 20
    for reason in re.findall(r'reason[=!]~"([^"]+)"', rule["expr"]):
        assert set(reason.split("|")) <= {str(r) for r in Reason}


def test_the_documentation_explains_every_alert() -> None:
    text = (HERE.parents[1] / "docs" / "monitoring.md").read_text()
    for rule in RULES:
        assert f"`{rule['alert']}`" in text
