"""What counts as recommended by a tuning, and how it is served."""

import pytest
from tuned import changes_of, recommended

from batchedapi_core.simulation.tuning import Setting

OWN = Setting(8, 0.01)


@pytest.mark.parametrize(
    ("change", "expected"),
    [({}, OWN), ({"serverSideBatching": {"maxBatchSize": 64}}, Setting(64, 0.02, 2, 1))],
)
def test_without_a_change_the_manifest_is_what_is_recommended(
    change: dict[str, object], expected: Setting
) -> None:
    """Where tune does not decide, too: then `best` is what it saw, and nothing is to change."""
    runs = [
        {"label": "as the manifest says", "max_batch_size": 8, "batch_interval": 0.01,
         "processes": 1, "threads": 1},
        {"label": "found", "max_batch_size": 64, "batch_interval": 0.02, "processes": 2,
         "threads": 1},
    ]  # fmt: skip

    assert expected == recommended({"runs": runs, "best": runs[1], "change": change})


def test_a_setting_is_written_as_in_a_manifest() -> None:
    """All four values, whatever the manifest has."""
    expected = {
        "serverSideBatching": {"maxBatchSize": 64, "batchInterval": "25ms"},
        "predictor": {"processesPerReplica": 2, "threadsPerProcess": 1},
    }

    assert expected == changes_of(Setting(64, 0.025, 2, 1))
