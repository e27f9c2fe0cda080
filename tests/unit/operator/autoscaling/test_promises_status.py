"""How batching goes, as the status of a BatchedAPI tells it."""

from tests.unit.operator.autoscaling.pages import page

from batchedapi_core.scaling.decide import decide
from batchedapi_core.scaling.observe import observe
from batchedapi_core.scaling.policy import ScalingPolicy
from batchedapi_core.scaling.samples import Observation
from batchedapi_core.scaling.state import ScalingState
from batchedapi_operator.autoscaling.metrics_page import parse_page
from batchedapi_operator.autoscaling.report import Decided, Look, build_report

POLICY = ScalingPolicy(min_replicas=1, max_replicas=5, max_batch_size=16, batch_interval=0.005)


def test_the_mean_batch_in_the_status_is_rows_over_batches_of_the_replicas() -> None:
    """C26: 25 batches of 12 rows in 5 s; what ran before the first look does not count."""
    state, now = ScalingState.empty(), 0.0
    for now, rows, batches in ((0.0, 100.0, 50.0), (5.0, 400.0, 75.0)):
        text = page(received=rows, rows=rows, batches=batches, full=0, seconds=batches / 50)
        found = parse_page(text, "pod", time=now, unix_time=4600.0 + now)
        load, state = observe(POLICY, state, Observation((found.sample,), 1, 1, "a"), now)
    decision, state = decide(POLICY, load, state, now)

    look = Look(Decided(POLICY, load, decision, 1, (found,)), state.to_saved())
    batching = build_report(look, {}, 1, "2026-01-02T03:04:05Z", last_scale=None)["batching"]

    assert ("12.0", 75, 16) == tuple(
        batching[name] for name in ("meanRows", "fillPercent", "maxBatchSize")
    )
    assert float(batching["rowsPerSecond"]) == 12.0 * float(batching["batchesPerSecond"])
