"""docs/reference/recommendations.md: what `status.recommendation` may say, and its limits."""

from typing import Final

from batchedapi_core.scaling import recommendation as rules
from crds.markdown import HEADER, code, table

_INTRODUCTION: Final = """\
`status.recommendation.effect` says with figures what a size and an interval would bring, or one of
these. [The guide](../guides/tuning.md#in-a-cluster) has how to follow one, and
[the decision](../decisions/0058-a-batching-that-is-recommended.md) why it is made so.
"""
_LIMITS: Final = (
    ("more rows/s, for which a setting is recommended", f"{100 * rules.GAIN:g} %"),
    ("more rows/s, for which what was recommended stays", f"{100 * rules.GAIN / 2:g} %"),
    ("by which a number may differ and still say the same", f"{100 * rules.ALIKE:g} %"),
    ("times the batch that the mean row rode in, which a size is at most", f"{rules.REACH:g}"),
    ("share of the target that two full batches take at most", f"{100 * rules.ROOM:g} %"),
    ("share of the most that any size serves, which is enough", f"{100 * rules.ENOUGH:g} %"),
)


def page() -> str:
    """The whole page."""
    effects = ((code(one.effect), one.meaning) for one in rules.NoRecommendation)
    return "\n".join(
        (
            f"{HEADER}# Recommendations of a batching\n",
            _INTRODUCTION,
            "## Effects without figures\n",
            "In braces are the latency target, the time of a batch, or `maxBatchSize`.\n",
            table(("effect", "meaning"), effects),
            "## Limits\n",
            table(("what", "value"), _LIMITS),
        )
    )
