"""An alert for real: a predictor that fails, a Prometheus that scrapes it, with shorter windows."""

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import httpx
import pytest

import prometheus
from ports import HOST, free_port
from serving import Replica, running_replica, write_manifest

RULES: Final = Path(__file__).resolve().parents[3] / "charts/batchedapi/rules/batchedapi.yaml"
SHORTER: Final = {"[5m]": "[10s]", "for: 5m": "for: 2s"}
MODEL: Final = """
    from batchedapi_serving import batched

    class Model:
        @batched()
        def predict(self, items):
            return [1 / item for item in items]
"""
SECONDS: Final = 90.0


@pytest.fixture
def replica(tmp_path: Path) -> Iterator[Replica]:
    """Fails on a zero."""
    with running_replica(tmp_path, ["-f", str(write_manifest(tmp_path, MODEL, {}))]) as running:
        yield running


@pytest.fixture
def watching(replica: Replica, tmp_path: Path) -> Iterator[prometheus.Prometheus]:
    """A Prometheus with the chart's rules that scrapes it each second."""
    text = RULES.read_text(encoding="utf-8")
    for long, short in SHORTER.items():
        assert long in text
        text = text.replace(long, short)
    rules = tmp_path / "rules.yaml"
    rules.write_text(text, encoding="utf-8")
    labels = {"namespace": "team", "pod": "api-0", "api": "api"}
    target = {"targets": [f"{HOST}:{replica.admin_port}"], "labels": labels}
    config = prometheus.static_config({"batchedapi-serving": [target]})
    config |= {"rule_files": [str(rules)]}
    config["global"]["evaluation_interval"] = "1s"
    try:
        port = free_port()
        with prometheus.running_prometheus(config, tmp_path, port) as running:
            yield running
    except prometheus.PrometheusUnavailableError as error:
        pytest.skip(str(error))


def firing(watching: prometheus.Prometheus) -> dict[str, str]:
    """Alerts that fire now, each with what it says."""
    alerts = httpx.get(f"{watching.url}/api/v1/alerts").json()["data"]["alerts"]
    return {
        alert["labels"]["alertname"]: alert["annotations"]["summary"]
        for alert in alerts
        if alert["state"] == "firing"
    }


def test_a_predictor_that_fails_is_told_and_taken_back(
    replica: Replica, watching: prometheus.Prometheus
) -> None:
    """From user code that raises to the sentence that somebody reads, and its end."""

    def ask_until(item: int, *, fires: bool) -> dict[str, str]:
        deadline = time.monotonic() + SECONDS
        while ("BatchedAPIRequestsFail" in (found := firing(watching))) is not fires:
            assert time.monotonic() < deadline, found
            httpx.post(f"http://{HOST}:{replica.port}/predict", json=item)
            time.sleep(0.1)
        return found

    told = ask_until(0, fires=True)["BatchedAPIRequestsFail"]
    after = ask_until(2, fires=False)

    assert told.endswith("of the requests to team/api fail in the predictor.")
    assert "BatchedAPIRowsRefused" not in after
