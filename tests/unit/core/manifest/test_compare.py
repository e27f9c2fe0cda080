"""`spec.updateStrategy.compare`: what is in effect, and what is refused."""

from typing import Any

import pytest

from batchedapi_core.manifest import ManifestError, parse_api


def document(**compare: Any) -> dict[str, Any]:
    """A manifest with those fields."""
    return {
        "apiVersion": "batchedapi.dev/v1alpha1",
        "kind": "BatchedAPI",
        "metadata": {"name": "iris"},
        "spec": {"predictor": {"path": "model:Iris"}, "updateStrategy": {"compare": compare}},
    }


def test_nothing_is_compared_unless_it_is_asked_for() -> None:
    """Rows are data of clients: nobody keeps them who was not told to."""
    off, on = (parse_api(document(**one)) for one in ({}, {"mode": "On", "slower": "150%"}))

    assert [False, True] == [one.spec.update_strategy.compare.is_on for one in (off, on)]
    assert [(0.3, 0.0), (1.5, 0.0)] == [
        one.spec.update_strategy.compare.shares for one in (off, on)
    ]


@pytest.mark.parametrize("share", ["a third", 30, "-1%", "1000%"])
def test_a_share_is_a_percentage(share: Any) -> None:
    """As the apiserver takes it, too."""
    with pytest.raises(ManifestError, match=r"spec\.updateStrategy\.compare\.differ: expected"):
        parse_api(document(differ=share))
