"""The printed report of a simulation, on a terminal of any kind."""

from dataclasses import replace
from functools import cache

from batchedapi_core.scaling.policy import ScalingPolicy
from batchedapi_core.simulation import NoisyService, RecordedTrace, StepTrace
from batchedapi_serving.cli.simulate_request import text_of
from batchedapi_serving.laptop.simulating.report import (
    BLOCKS,
    HEIGHT,
    MOST_CHANGES,
    PLAIN,
    WIDTH,
    columns_of,
    draw,
    render,
)
from batchedapi_serving.laptop.simulating.run import Simulated, run
from batchedapi_serving.laptop.simulating.settings import SettingLine, Setup

SERVICE = NoisyService(0.025, 0.005, 32, 0.020, 0.500)
SETUP = Setup(
    service=SERVICE,
    policy=ScalingPolicy(1, 9, 32, 0.020, 0.500),
    replicas=None,
    min_replicas=1,
    max_replicas=9,
    startup=(20.0, 40.0),
    quantile=0.99,
    seed=0,
    settings=(SettingLine("balancing", "random", "assumed"),),
)


@cache
def climbing() -> Simulated:
    """A load that becomes four times as high."""
    return run(SETUP, StepTrace((0.0, 100.0), (100.0, 400.0), 200.0))


def test_the_outcome_is_a_table_and_says_what_it_rests_on() -> None:
    """Figures, changes with their reasons, a picture, and every assumption."""
    simulated = climbing()

    text = render(simulated)

    assert "answered later than 500ms, or refused" in text
    assert "times the clairvoyant minimum" in text
    assert "rows up to   batches" in text
    assert "replicas asked for" in text
    assert "load (most 400 rows/s)" in text
    assert "assumed" in text
    assert "as the first load needs" in text
    assert text.endswith("\n")
    assert max(len(line) for line in text.splitlines()) <= 100


def test_an_outcome_without_a_request_has_no_figures_to_draw() -> None:
    """And no division by zero."""
    simulated = run(SETUP, StepTrace((0.0,), (0.0,), 100.0))

    text = render(simulated)

    assert "p50 / p90 / p99  - / - / -" in text
    assert "rows up to" not in text
    assert "replicas asked for" not in text
    assert simulated.as_object()["p99"] is None


def test_many_changes_are_cut_short() -> None:
    """The rest is in --json."""
    simulated = climbing()
    choices = simulated.outcome.replicas
    flapping = tuple(choices[0]._replace(desired=1 + i % 2) for i in range(MOST_CHANGES + 6))

    text = render(replace(simulated, outcome=replace(simulated.outcome, replicas=flapping)))

    assert "and 5 more" in text


def test_without_a_target_nothing_is_late() -> None:
    """Only what is refused is a miss."""
    setup = replace(SETUP, service=replace(SERVICE, latency_target=None), policy=None, replicas=2)

    text = render(run(setup, StepTrace((0.0,), (100.0,), 100.0)))

    assert "misses           0%: refused (0%)" in text
    assert "given" in text


def test_a_picture_has_panels_of_one_width() -> None:
    """However long the trace is."""
    simulated = climbing()

    lines = draw(simulated.outcome).splitlines()

    assert 5 * (1 + HEIGHT) + 1 == len(lines)
    assert WIDTH >= len(columns_of(simulated.outcome)) > WIDTH / 2
    assert max(len(line) for line in lines) <= 10 + WIDTH
    loads = [column.load for column in columns_of(simulated.outcome)]
    assert [100.0, 400.0] == [loads[0], loads[-1]]
    assert lines[1].endswith("█")
    assert "█" not in lines[1][:20]


def test_a_simulation_of_no_time_has_no_picture() -> None:
    """Nothing to draw."""
    simulated = climbing()

    assert "" == draw(replace(simulated.outcome, timeline=()))


def test_a_terminal_without_blocks_gets_plain_ones() -> None:
    """A log of CI in ASCII must not end in a traceback."""
    simulated = climbing()

    text_of(simulated, "utf-8").encode("utf-8")
    assert BLOCKS[-1] in text_of(simulated, "utf-8")
    for encoding in ("ascii", "no-such-encoding"):
        assert text_of(simulated, encoding).isascii()
    assert PLAIN[-1] in text_of(simulated, "ascii")


def test_a_recording_is_measured_with_its_own_sizes() -> None:
    """A replica holds less of requests that do not fit together."""
    times = [i / 5 for i in range(500)]

    single, large = (run(SETUP, RecordedTrace(times, [rows] * 500)) for rows in (1, 20))

    assert large.rate < single.rate
    assert 20.0 == large.value("mean_rows")
    assert 500 == large.outcome.requests


def test_json_has_the_figures_in_seconds_and_shares() -> None:
    """Scripts read this output."""
    simulated = climbing()

    value = simulated.as_object()

    assert simulated.outcome.p99 == value["p99"]
    assert simulated.cost_ratio == value["cost_ratio"]
    assert simulated.outcome.scale_events == value["scale_events"]
    assert [2.0, 1, 1] == value["replicas"][0][:3]
    assert all(len(entry) == 4 for entry in value["replicas"])
    assert isinstance(simulated, Simulated)
    assert "random" == value["settings"]["balancing"]["value"]
