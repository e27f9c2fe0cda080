"""The page says what was recorded, under the published names and no others."""

import math
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from prometheus_client.parser import text_string_to_metric_families

from batchedapi_core import contract
from batchedapi_serving.metrics import slots
from batchedapi_serving.metrics.page import page
from batchedapi_serving.metrics.recorder import Recorder

SETTINGS = settings(derandomize=True, database=None, deadline=None, max_examples=100)
BATCHES = st.lists(
    st.tuples(
        st.sampled_from(contract.RELEASE_REASONS),
        st.integers(1, 40),
        st.integers(1, 40),
        st.floats(0, 60, allow_subnormal=False),
    ),
    max_size=30,
)
PUBLISHED = {value for name, value in vars(contract).items() if name.startswith("METRIC_")}


def fresh() -> slots.Memory:
    """Memory of one replica, all zero."""
    return memoryview(bytearray(slots.BYTES)).cast("d")


def ready(max_batch_size: int = 32) -> tuple[slots.Memory, Recorder]:
    """Of a replica whose method is known."""
    memory = fresh()
    recorder = Recorder(memory)
    recorder.ready(max_batch_size, 0.01)
    return memory, recorder


def samples(memory: slots.Memory) -> dict[tuple[str, str], float]:
    """(name, labels but method) -> value, as Prometheus' own parser reads the page."""
    read: dict[tuple[str, str], float] = {}
    for family in text_string_to_metric_families(page(memory).decode()):
        for sample in family.samples:
            labels = {k: v for k, v in sample.labels.items() if k != "method"}
            key = (sample.name, ",".join(f"{k}={v}" for k, v in labels.items()))
            assert key not in read
            read[key] = sample.value
    return read


def value(memory: slots.Memory, name: str, labels: str = "") -> float:
    """One sample."""
    return samples(memory)[name, labels]


def test_every_family_is_published_and_every_published_name_is_there() -> None:
    """The names are public: dashboards and the operator read them."""
    memory, _ = ready()
    names = set()
    for family in text_string_to_metric_families(page(memory).decode()):
        names.add(f"{family.name}_total" if family.type == "counter" else family.name)

    assert names == PUBLISHED


@pytest.mark.parametrize("maximum", [1, 32, 65536])
def test_a_replica_has_at_most_150_series(maximum: int) -> None:
    """Each costs memory in every Prometheus that scrapes it."""
    memory, _ = ready(maximum)

    if maximum <= 1024:
        assert len(samples(memory)) <= 150
    else:
        assert len(samples(memory)) <= 170


def test_before_the_method_is_known_there_is_little_to_say() -> None:
    """Start time and restarts; not histograms with edges that would change."""
    names = {name for name, _ in samples(fresh())}

    assert names == {contract.METRIC_PROCESS_START_TIME, contract.METRIC_PROCESS_RESTARTS}


@SETTINGS
@given(BATCHES)
def test_the_page_says_what_was_recorded(batches: list[Any]) -> None:
    """Counts, sums and buckets; and every batch carries exactly one reason."""
    memory, recorder = ready()
    for reason, rows, requests, seconds in batches:
        recorder.dispatched(reason, [seconds] * requests)
        recorder.executed(rows, requests, seconds, 0)
    read = samples(memory)

    count = float(len(batches))
    by_reason = [read[contract.METRIC_BATCHES, f"reason={r}"] for r in contract.RELEASE_REASONS]
    assert [float(sum(b[0] == r for b in batches)) for r in contract.RELEASE_REASONS] == by_reason
    for name, observed in (
        (contract.METRIC_BATCH_ROWS, [float(b[1]) for b in batches]),
        (contract.METRIC_BATCH_REQUESTS, [float(b[2]) for b in batches]),
        (contract.METRIC_BATCH_SECONDS, [b[3] for b in batches]),
    ):
        assert count == read[f"{name}_count", ""] == read[f"{name}_bucket", "le=+Inf"]
        assert math.isclose(sum(observed), read[f"{name}_sum", ""], abs_tol=1e-9)
        for (sample, label), cumulative in read.items():
            if sample == f"{name}_bucket":
                edge = float(label.removeprefix("le="))
                assert float(sum(x <= edge for x in observed)) == cumulative
    assert (
        float(sum(b[2] for b in batches)) == read[f"{contract.METRIC_QUEUE_WAIT_SECONDS}_count", ""]
    )
    assert float(sum(b[1] ** 2 for b in batches)) == read[contract.METRIC_BATCH_ROWS_SQUARED, ""]
    assert math.isclose(
        sum(b[1] * b[3] for b in batches), read[contract.METRIC_BATCH_ROW_SECONDS, ""], abs_tol=1e-6
    )


def test_requests_are_counted_by_code_and_timed_when_they_were_answered() -> None:
    """A request that was refused unread has no duration."""
    memory, recorder = ready()

    recorder.answered(200, 0.003)
    recorder.answered(200, 0.3)
    recorder.answered(413)

    assert value(memory, contract.METRIC_REQUESTS, "code=200") == 2
    assert value(memory, contract.METRIC_REQUESTS, "code=413") == 1
    assert value(memory, f"{contract.METRIC_REQUEST_SECONDS}_count") == 2
    assert value(memory, f"{contract.METRIC_REQUEST_SECONDS}_bucket", "le=0.005") == 1


@pytest.mark.parametrize(("code", "counted"), [(307, 200), (418, 400), (599, 500)])
def test_a_code_without_a_series_counts_with_its_class(code: int, counted: int) -> None:
    """A redirect or an ItemError's own status is no failure of the server."""
    memory, recorder = ready()

    recorder.answered(code)

    assert value(memory, contract.METRIC_REQUESTS, f"code={counted}") == 1


def test_rows_are_counted_on_arrival_and_when_rejected() -> None:
    """Received counts both, so that demand is seen while it is refused."""
    memory, recorder = ready()

    recorder.received(5)
    recorder.received(2)
    recorder.rejected("queue_full", 2)

    assert value(memory, contract.METRIC_ROWS_RECEIVED) == 7
    assert value(memory, contract.METRIC_ROWS_REJECTED, "reason=queue_full") == 2
    assert value(memory, contract.METRIC_ROWS_REJECTED, "reason=latency") == 0


def test_gauges_say_what_is_and_effective_values() -> None:
    """Also of settings that the manifest left to defaults."""
    memory, recorder = ready(48)

    recorder.gauges(lanes=2, queue_rows=7, in_flight=9)

    assert value(memory, contract.METRIC_LANES) == 2
    assert value(memory, contract.METRIC_QUEUE_ROWS) == 7
    assert value(memory, contract.METRIC_IN_FLIGHT_REQUESTS) == 9
    assert value(memory, contract.METRIC_MAX_BATCH_SIZE) == 48
    assert value(memory, contract.METRIC_BATCH_INTERVAL_SECONDS) == 0.01


def test_a_batch_above_the_maximum_lands_beyond_the_last_edge() -> None:
    """SizeUnit Requests: rows of a batch are not bounded."""
    memory, recorder = ready(32)

    recorder.executed(33, 2, 0.1, 0)

    assert value(memory, f"{contract.METRIC_BATCH_ROWS}_bucket", "le=32") == 0
    assert value(memory, f"{contract.METRIC_BATCH_ROWS}_bucket", "le=+Inf") == 1


def test_a_replaced_process_goes_on_counting_where_the_old_one_stopped() -> None:
    """Counters are monotone over its death; gauges of the dead are not kept."""
    memory, recorder = ready()
    recorder.answered(200, 0.1)
    recorder.gauges(lanes=4, queue_rows=9, in_flight=9)

    replaced = Recorder(memory)
    replaced.ready(32, 0.01)
    replaced.answered(200, 0.1)

    assert value(memory, contract.METRIC_REQUESTS, "code=200") == 2
    assert value(memory, contract.METRIC_QUEUE_ROWS) == 0
    assert value(memory, contract.METRIC_LANES) == 0


def test_processes_share_the_memory_through_its_file(tmp_path: Path) -> None:
    """One page for the whole replica, whoever counted."""
    path = tmp_path / "metrics"
    slots.create_memory(path)

    Recorder(slots.map_memory(path)).received(3)

    assert slots.map_memory(path)[slots.ROWS_RECEIVED] == 3


def test_every_worker_counts_what_it_answered() -> None:
    """What tells the supervisor that a restarted process is good."""
    memory, recorder = ready()

    recorder.executed(1, 1, 0.1, 5)

    assert memory[slots.ANSWERED + 5] == 1
    assert memory[slots.ANSWERED + 4] == 0


def test_slots_do_not_overlap() -> None:
    """Two figures in one slot would both be wrong."""
    spans = [
        (slots.START_TIME, 13),
        (slots.BATCHES, len(contract.RELEASE_REASONS)),
        (slots.REQUESTS, len(contract.STATUS_CODES)),
        (slots.REJECTED, len(contract.REJECTION_REASONS)),
        (slots.ANSWERED, slots.MAX_PROCESSES),
        (slots.BATCH_ROWS, slots.SIZE_SUM + 1),
        (slots.BATCH_REQUESTS, slots.SIZE_SUM + 1),
        (slots.BATCH_SECONDS, slots.LATENCY_SUM + 1),
        (slots.QUEUE_WAIT, slots.LATENCY_SUM + 1),
        (slots.REQUEST_SECONDS, slots.LATENCY_SUM + 1),
    ]

    taken = [slot for first, count in spans for slot in range(first, first + count)]

    assert list(range(slots.BYTES // 8)) == sorted(taken)
    assert len(contract.batch_size_buckets(contract.MAX_BATCH_SIZE_LIMIT)) <= slots.SIZE_EDGES
