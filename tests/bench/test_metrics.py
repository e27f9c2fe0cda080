"""Changes of the counters of a metrics page in a run."""

import math

import pytest
from harness.metrics import batch_delta, model_restarts, parse, total

BEFORE = """# TYPE batchedapi_batch_rows histogram
batchedapi_batch_rows_bucket{method="predict",le="1"} 4
batchedapi_batch_rows_bucket{method="predict",le="+Inf"} 4
batchedapi_batch_rows_count{method="predict"} 4
batchedapi_batch_rows_sum{method="predict"} 4
# TYPE batchedapi_batches counter
batchedapi_batches_total{method="predict",reason="full"} 0
batchedapi_batches_total{method="predict",reason="early"} 4
# TYPE batchedapi_process_restarts counter
batchedapi_process_restarts_total{role="web"} 5
batchedapi_process_restarts_total{role="model"} 2
"""
AFTER = (
    BEFORE.replace('rows_count{method="predict"} 4', 'rows_count{method="predict"} 14')
    .replace('rows_sum{method="predict"} 4', 'rows_sum{method="predict"} 604')
    .replace('reason="full"} 0', 'reason="full"} 9')
)


def test_the_mean_batch_is_of_the_run_and_not_of_the_replica() -> None:
    """Batches from before the run, warm-up among them, would pull the mean down."""
    delta = batch_delta(parse(BEFORE), parse(AFTER))

    assert (10.0, 600.0, 9.0) == delta
    assert 60.0 == delta.mean


def test_a_run_without_batches_has_no_finite_mean() -> None:
    """A server that answered nothing must not print a mean batch of 0."""
    assert math.inf == batch_delta(parse(BEFORE), parse(BEFORE)).mean


def test_restarts_are_those_of_model_processes() -> None:
    """Kills of model processes are compared with them; the web process has a count of its own."""
    assert 2 == model_restarts(parse(BEFORE))


def test_a_missing_metric_is_an_error() -> None:
    """A renamed metric read as 0 would make every check pass."""
    with pytest.raises(KeyError, match="batchedapi_gone"):
        total(parse(BEFORE), "batchedapi_gone")
