"""docs/guides/autoscaling.md has every word that an API's status may say, and the true defaults."""

import re
from pathlib import Path
from typing import Any, Final

import pytest
import yaml

from batchedapi_core import contract
from batchedapi_core.bottleneck import Kind
from batchedapi_core.manifest import behaviors_of, parse_api
from batchedapi_core.scaling.decision import Cause, ClampName
from batchedapi_core.scaling.need import DEFAULT_HEDGE
from batchedapi_core.scaling.policy import PolicyKind, ScalingPolicy, default_behaviors

PAGE: Final = (Path(__file__).resolve().parents[2] / "docs/guides/autoscaling.md").read_text()
DEFAULTS: Final = ScalingPolicy(
    min_replicas=1, max_replicas=1, max_batch_size=1, batch_interval=0.0
)


def section(heading: str) -> str:
    """The text below a heading of the second level."""
    _, found, rest = PAGE.partition(f"\n## {heading}\n")
    assert found, heading
    return rest.partition("\n## ")[0]


@pytest.mark.parametrize(
    ("heading", "words"),
    [
        ("Reasons", [reason.value for reason in Cause]),
        ("Limits", [clamp.value for clamp in ClampName]),
        ("The bottleneck", [kind.value for kind in Kind]),
    ],
)
def test_every_word_of_the_status_is_explained(heading: str, words: list[str]) -> None:
    """Whoever reads a word in the status looks it up here."""
    text = section(heading)

    assert [] == [word for word in words if f"`{word}`" not in text]


@pytest.mark.parametrize(
    "claim",
    [
        f"`targetUtilizationPercent`, {100 * DEFAULTS.target_utilization:.0f} %",
        f"a half-life of {DEFAULTS.model_half_life:.0f} s",
        f"The first {DEFAULTS.warm_up_batches:.0f} batches",
        f"At most {DEFAULTS.forecast_cap:g} times the base",
        f"to be gone in {DEFAULTS.drain_seconds:g} s",
        f"{DEFAULTS.start_up:g} s until one was seen",
        f"{DEFAULT_HEDGE:g} (`autoscaling.hedge`) while the base exceeds what the ready replicas",
        f"the ready replicas serve by {100 * (DEFAULTS.overload_trigger - 1):.0f} %",
        f"{DEFAULTS.passing_hold:g} s for what forecast and overload asked for",
        f"Under {100 * DEFAULTS.down_coverage:.0f} % of the ready pods seen no replica is removed",
        f"no replica is removed, under {100 * DEFAULTS.hold_coverage:.0f} % nothing moves",
    ],
)
def test_the_numbers_are_those_in_use(claim: str) -> None:
    """A platform engineer who checks a decision by hand needs the true ones."""
    assert claim in PAGE.replace("\n", " ").replace("  ", " ")


def specs() -> list[dict[str, Any]]:
    """The specs that the page says to write in a manifest."""
    blocks = re.findall(r"^```yaml\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
    found = [yaml.safe_load(block) for block in blocks]
    return [block for block in found if "autoscaling" in block]


def test_what_the_page_says_to_write_is_accepted_and_cortex_s_numbers_are_the_defaults() -> None:
    """W05: it is copied from here."""
    written = [
        parse_api(
            {
                "apiVersion": contract.API_VERSION,
                "kind": contract.KIND,
                "metadata": {"name": "iris"},
                "spec": {"predictor": {"path": "model:Iris"}, **spec},
            }
        ).spec.autoscaling
        for spec in specs()
    ]

    cortex = next(one for one in written if one.policy is PolicyKind.CONCURRENCY)
    assert 3 == len(written)
    assert default_behaviors(PolicyKind.CONCURRENCY) == behaviors_of(cortex)
