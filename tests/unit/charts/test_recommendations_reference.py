"""The reference of recommendations against what the autoscaler says."""

import pytest

from batchedapi_core.scaling.recommendation import GAIN, REACH, NoRecommendation
from pages import ROOT

PAGE = (ROOT / "docs/reference/recommendations.md").read_text("utf-8")


@pytest.mark.parametrize("reason", NoRecommendation)
def test_every_reason_for_no_recommendation_has_its_line(reason: NoRecommendation) -> None:
    """Somebody who reads it in a status looks for these words."""
    assert f"| `{reason.effect}` | {reason.meaning} |" in PAGE


def test_limits_are_those_of_the_rules() -> None:
    """A figure written by hand would stay when the rule changes."""
    assert f"recommended | {100 * GAIN:g} % |" in PAGE
    assert f"at most | {REACH:g} |" in PAGE
