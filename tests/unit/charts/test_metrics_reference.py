"""The reference page of metrics against what the replica and the operator really expose."""

from collections.abc import Iterable, Sequence
from pathlib import Path

import pytest
from crds.metrics import ONE_QUEUE, OPERATOR, SERVING, Metric
from prometheus_client import generate_latest
from prometheus_client.parser import text_string_to_metric_families

from batchedapi_core import contract
from batchedapi_operator.admin import OperatorMetrics
from batchedapi_operator.cluster import ObjectKey
from batchedapi_serving.metrics import slots
from batchedapi_serving.metrics.page import Part, whole_page

Described = set[tuple[str, str, frozenset[str]]]


def documented(metrics: Sequence[Metric]) -> Described:
    """Name, kind and labels as the page has them."""
    return {(metric.name, metric.kind, frozenset(metric.labels)) for metric in metrics}


def exposed(text: str) -> Described:
    """Name, kind and labels of every metric on a page; creation times are not metrics of ours."""
    return set(_described(text))


def _described(text: str) -> Iterable[tuple[str, str, frozenset[str]]]:
    for family in text_string_to_metric_families(text):
        if family.name.endswith("_created"):
            continue
        suffix = "_total" if family.type == "counter" else ""
        labels = {label for sample in family.samples for label in sample.labels} - {"le"}
        yield family.name + suffix, family.type, frozenset(labels)


def test_the_page_of_a_replica_is_documented_metric_by_metric(tmp_path: Path) -> None:
    """A metric with other labels than documented leaves users' queries empty."""
    slots.create_memory(tmp_path / "metrics")
    memory = slots.map_memory(tmp_path / "metrics")

    text = whole_page(memory, [("predict", 8)], part=Part("web", shared_queue=True)).decode()

    assert documented(SERVING) <= exposed(text) <= documented((*SERVING, *ONE_QUEUE))


def test_the_page_of_the_operator_is_documented_metric_by_metric() -> None:
    """The same promise for the operator."""
    metrics = OperatorMetrics()
    key = ObjectKey("team", "iris")
    metrics.reconciled("success", 0.1)
    metrics.scraped(key, "success")
    metrics.decided(key, "Steady", desired=2, ready=1, base=10.0, capacity=20.0)

    text = generate_latest(metrics.registry).decode()

    assert documented(OPERATOR) == exposed(text)


@pytest.mark.parametrize("prefix", ["METRIC_", "OPERATOR_"])
def test_every_metric_of_the_contract_is_documented(prefix: str) -> None:
    """A metric without a line on the page is one that nobody can use."""
    published = {
        value
        for name, value in vars(contract).items()
        if name.startswith(prefix) and isinstance(value, str)
    }

    names = {
        metric.name for metric in {"METRIC_": (*SERVING, *ONE_QUEUE), "OPERATOR_": OPERATOR}[prefix]
    }

    assert published == names
