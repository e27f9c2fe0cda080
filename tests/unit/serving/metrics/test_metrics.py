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
from batchedapi_serving.metrics.page import Part, whole_page
from batchedapi_serving.metrics.recorder import (
    MethodRecorder,
    Recorder,
    WebRecorder,
    WorkerRecorder,
)

SETTINGS = settings(derandomize=True, database=None, deadline=None, max_examples=100)
BATCHES = st.lists(
    st.tuples(
        st.sampled_from(contract.RELEASE_REASONS),
        st.integers(1, 40),
        st.integers(1, 40),
        st.integers(1, 65536),
        st.floats(0, 60, allow_subnormal=False),
    ),
    max_size=30,
)
PUBLISHED = {value for name, value in vars(contract).items() if name.startswith("METRIC_")}


def fresh() -> slots.Memory:
    """Memory of one replica, all zero."""
    return memoryview(bytearray(slots.BYTES)).cast("d")


def ready(max_batch_size: int = 32) -> tuple[slots.Memory, MethodRecorder]:
    """The memory and the recorder of a replica with one method."""
    memory = fresh()
    recorder = Recorder(memory)
    recorder.ready()
    method = recorder.method(0)
    method.sized(max_batch_size)
    return memory, method


def state(method: MethodRecorder, **changes: float) -> None:
    """Write gauges, those that are not named as zero."""
    values: dict[str, Any] = {
        "lanes": 0, "queue_rows": 0, "in_flight": 0, "max_batch_size": 0, "batch_interval": 0.0,
    }  # fmt: skip
    method.gauges(**{**values, **changes})


def samples(memory: slots.Memory, size: int = 32) -> dict[tuple[str, str], float]:
    """(name, labels but method) -> value, as Prometheus' own parser reads the page."""
    read: dict[tuple[str, str], float] = {}
    for family in text_string_to_metric_families(whole_page(memory, [("predict", size)]).decode()):
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
    whole = whole_page(memory, [("predict", 32)], part=Part("web", shared_queue=True))
    for family in text_string_to_metric_families(whole.decode()):
        names.add(f"{family.name}_total" if family.type == "counter" else family.name)

    assert names == PUBLISHED


@pytest.mark.parametrize("maximum", [1, 32, 65536])
def test_a_replica_has_at_most_150_series(maximum: int) -> None:
    """Each costs memory in every Prometheus that scrapes it."""
    memory, _ = ready(maximum)

    if maximum <= 1024:
        assert len(samples(memory, maximum)) <= 150
    else:
        assert len(samples(memory, maximum)) <= 170


def test_before_the_method_is_known_there_is_little_to_say() -> None:
    """Figures of the replica; not histograms with edges that would change."""
    families = text_string_to_metric_families(whole_page(fresh(), []).decode())
    names = {sample.name for family in families for sample in family.samples}

    assert names == {
        contract.METRIC_PROCESS_CPU_SECONDS,
        contract.METRIC_PROCESS_START_TIME,
        contract.METRIC_PROCESS_RESTARTS,
        contract.METRIC_ROLE,
        contract.METRIC_PREDICTOR_UPDATES_DROPPED,
        contract.METRIC_SPANS_DROPPED,
        contract.METRIC_WEB_CPU_SECONDS,
        contract.METRIC_MODEL_PROCESS_MEMORY_BYTES,
    }


@SETTINGS
@given(BATCHES)
def test_the_page_says_what_was_recorded(batches: list[Any]) -> None:
    """Counts, sums and buckets; and every batch carries exactly one reason."""
    memory, recorder = ready()
    for reason, rows, requests, size, seconds in batches:
        recorder.dispatched(reason, [seconds] * requests)
        recorder.executed(rows, requests, size, seconds)
    read = samples(memory)

    count = float(len(batches))
    by_reason = [read[contract.METRIC_BATCHES, f"reason={r}"] for r in contract.RELEASE_REASONS]
    assert [float(sum(b[0] == r for b in batches)) for r in contract.RELEASE_REASONS] == by_reason
    for name, observed in (
        (contract.METRIC_BATCH_ROWS, [float(b[1]) for b in batches]),
        (contract.METRIC_BATCH_REQUESTS, [float(b[2]) for b in batches]),
        (contract.METRIC_BATCH_SECONDS, [b[4] for b in batches]),
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
    assert float(sum(b[3] for b in batches)) == read[contract.METRIC_BATCH_SIZE, ""]
    assert float(sum(b[1] ** 2 for b in batches)) == read[contract.METRIC_BATCH_ROWS_SQUARED, ""]
    assert math.isclose(
        sum(b[1] * b[4] for b in batches), read[contract.METRIC_BATCH_ROW_SECONDS, ""], abs_tol=1e-6
    )


def test_padding_is_what_the_longest_row_adds_to_the_others() -> None:
    """1 - lengths / padded lengths is its share: rows of 2, 2 and 8, then two of 5."""
    memory, recorder = ready()

    recorder.padded(3, 8, 12)
    recorder.padded(2, 5, 10)

    assert 22.0 == value(memory, contract.METRIC_BATCH_LENGTHS)
    assert 34.0 == value(memory, contract.METRIC_BATCH_PADDED_LENGTHS)


def test_what_was_learned_of_the_time_of_a_batch_has_a_series_for_each_term() -> None:
    """A gauge: it is what holds now."""
    memory, recorder = ready()

    recorder.learned((0.01, 0.002, 0.0003))

    read = [value(memory, contract.METRIC_SERVICE_TIME, f"term={term}")
            for term in contract.SERVICE_TIME_TERMS]  # fmt: skip
    assert [0.01, 0.002, 0.0003] == read
    assert b"# TYPE batchedapi_service_time_seconds gauge" in whole_page(memory, [("predict", 32)])


def test_the_cpu_time_of_every_web_process_that_ran_has_a_series() -> None:
    """One of several may be out of CPU alone; sixteen series for the usual one would be a waste."""
    memory = fresh()
    memory[slots.WEB_CPU] = 12.5
    memory[slots.WEB_CPU + 2] = 0.5

    read = samples(memory)

    name = contract.METRIC_WEB_CPU_SECONDS
    assert [12.5, None, 0.5, None] == [read.get((name, f"process={i}")) for i in range(4)]


def test_requests_are_counted_by_code_and_timed_when_they_were_answered() -> None:
    """A request that was refused unread has no duration."""
    memory, recorder = ready()

    recorder.answered(200, [0.003, 0.3])
    recorder.answered(413)

    assert value(memory, contract.METRIC_REQUESTS, "code=200") == 2
    assert value(memory, contract.METRIC_REQUESTS, "code=413") == 1
    assert value(memory, f"{contract.METRIC_REQUEST_SECONDS}_count") == 2
    assert value(memory, f"{contract.METRIC_REQUEST_SECONDS}_bucket", "le=0.005") == 1


def test_durations_of_a_batch_come_in_any_order_and_lie_on_edges() -> None:
    """Each counts where it would alone: an edge belongs to the bucket below it."""
    memory, recorder = ready()

    recorder.answered(200, [30.0, 0.0005, 31.0, 0.0006, 0.0005, 0.0])
    recorder.dispatched("full", [0.02, 0.01, 0.011])
    recorder.dispatched("retry", [])

    answered, waited = contract.METRIC_REQUEST_SECONDS, contract.METRIC_QUEUE_WAIT_SECONDS
    buckets = [value(memory, f"{answered}_bucket", f"le={le}") for le in ("0.0005", "0.001", "30")]
    assert [3, 4, 5] == buckets
    assert value(memory, f"{answered}_bucket", "le=+Inf") == 6
    assert value(memory, f"{answered}_sum") == pytest.approx(61.0016)
    buckets = [value(memory, f"{waited}_bucket", f"le={le}") for le in ("0.005", "0.01", "0.025")]
    assert [0, 1, 3] == buckets


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
    assert value(memory, contract.METRIC_REQUEST_ROWS_SQUARED) == 5**2 + 2**2
    assert value(memory, contract.METRIC_ROWS_REJECTED, "reason=queue_full") == 2
    assert value(memory, contract.METRIC_ROWS_REJECTED, "reason=latency") == 0


def test_gauges_say_what_is_and_effective_values() -> None:
    """Also of settings that the manifest left to defaults."""
    memory, recorder = ready(64)

    state(recorder, lanes=2, queue_rows=7, in_flight=9, max_batch_size=48, batch_interval=0.01)

    assert value(memory, contract.METRIC_LANES) == 2
    assert value(memory, contract.METRIC_QUEUE_ROWS) == 7
    assert value(memory, contract.METRIC_IN_FLIGHT_REQUESTS) == 9
    assert value(memory, contract.METRIC_MAX_BATCH_SIZE) == 48
    assert value(memory, contract.METRIC_BATCH_INTERVAL_SECONDS) == 0.01


def test_a_batch_above_the_maximum_lands_beyond_the_last_edge() -> None:
    """SizeUnit Requests: rows of a batch are not bounded."""
    memory, recorder = ready(32)

    recorder.executed(33, 2, 2, 0.1)

    assert value(memory, f"{contract.METRIC_BATCH_ROWS}_bucket", "le=32") == 0
    assert value(memory, f"{contract.METRIC_BATCH_ROWS}_bucket", "le=+Inf") == 1


def test_a_replaced_process_goes_on_counting_where_the_old_one_stopped() -> None:
    """Counters are monotone over its death; gauges of the dead are not kept."""
    memory, recorder = ready()
    recorder.answered(200, [0.1])
    state(recorder, lanes=4, queue_rows=9, in_flight=9, max_batch_size=32)

    replaced = Recorder(memory).method(0)
    replaced.answered(200, [0.1])

    assert value(memory, contract.METRIC_REQUESTS, "code=200") == 2
    assert value(memory, contract.METRIC_QUEUE_ROWS) == 0
    assert value(memory, contract.METRIC_LANES) == 0
    assert value(memory, contract.METRIC_MAX_BATCH_SIZE) == 32


def test_processes_share_the_memory_through_its_file(tmp_path: Path) -> None:
    """One page for the whole replica, whoever counted."""
    path = tmp_path / "metrics"
    slots.create_memory(path)

    Recorder(slots.map_memory(path)).method(0).received(3)

    assert value(slots.map_memory(path), contract.METRIC_ROWS_RECEIVED) == 3


def test_every_worker_counts_what_it_answered_without_failure() -> None:
    """The supervisor takes a restarted process for good once this counter rises."""
    memory, recorder = ready()

    recorder.executed(1, 1, 1, 0.1, 5)

    assert memory[slots.ANSWERED + 5] == 1
    assert memory[slots.ANSWERED + 4] == 0


def test_methods_are_counted_apart_under_one_family_each() -> None:
    """Label `method`; what came to no method counts under the first."""
    memory = fresh()
    recorder = Recorder(memory)
    for index, size in enumerate((8, 4)):
        recorder.method(index).sized(size)
    recorder.method(1).executed(4, 2, 4, 0.1)
    recorder.method(1).received(4)
    recorder.answered(404)

    text = whole_page(memory, [("predict", 8), ("embed", 4)]).decode()
    read = {
        (sample.name, *(sample.labels.get(label) for label in ("method", "le", "code"))): value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
        for value in (sample.value,)
    }

    assert text.count(f"# TYPE {contract.METRIC_BATCH_ROWS} ") == 1
    assert 4 == read[contract.METRIC_ROWS_RECEIVED, "embed", None, None]
    assert 0 == read[contract.METRIC_ROWS_RECEIVED, "predict", None, None]
    assert 1 == read[f"{contract.METRIC_BATCH_ROWS}_bucket", "embed", "4", None]
    assert (f"{contract.METRIC_BATCH_ROWS}_bucket", "embed", "8", None) not in read
    assert 1 == read[contract.METRIC_REQUESTS, "predict", None, "404"]
    assert 0 == read[contract.METRIC_REQUESTS, "embed", None, "404"]


def test_edges_stay_while_the_effective_size_moves() -> None:
    """Adaptive and a lack of memory move the gauge; a histogram whose edges move is none."""
    memory, recorder = ready(32)
    before = {key for key in samples(memory) if key[0].endswith("_bucket")}

    state(recorder, max_batch_size=7)

    assert before == {key for key in samples(memory) if key[0].endswith("_bucket")}
    assert value(memory, contract.METRIC_MAX_BATCH_SIZE) == 7


def test_there_is_room_for_as_many_methods_as_are_allowed_and_no_more() -> None:
    """The memory is laid out before the predictor is known."""
    recorder = Recorder(fresh())
    recorder.method(contract.MAX_METHODS - 1).received(1)

    with pytest.raises(IndexError):
        recorder.method(contract.MAX_METHODS)
    with pytest.raises(ValueError, match="at most 32 methods, got 33"):
        slots.method_block(fresh(), contract.MAX_METHODS)


def test_the_memory_of_the_largest_process_is_published() -> None:
    """Written by the supervisor; 0 while it is not known."""
    memory, _ = ready()

    memory[slots.MODEL_MEMORY] = 5e8

    assert value(memory, contract.METRIC_MODEL_PROCESS_MEMORY_BYTES) == 5e8


def test_what_a_worker_and_a_web_process_cannot_read_is_one_figure() -> None:
    """A replica with both roles has two writers, and neither overwrites the other's."""
    memory = fresh()
    for of_method in (WebRecorder, WorkerRecorder, WorkerRecorder):
        Recorder(memory, of_method).unreadable(2)
    page = whole_page(memory, [], part=Part("replica", shared_queue=True)).decode()

    assert f"{contract.METRIC_QUEUE_UNREADABLE} 6.0" in page


def test_slots_do_not_overlap() -> None:
    """Two figures in one slot would both be wrong."""
    replica = [
        (slots.START_TIME, 6),
        (slots.WORKER_BEAT, 2),
        (slots.QUEUE_UNREADABLE, 2),
        (slots.READY, 1),
        (slots.BEAT, contract.MAX_WEB_PROCESSES),
        (slots.WEB_CPU, contract.MAX_WEB_PROCESSES),
        (slots.SPANS_DROPPED, contract.MAX_WEB_PROCESSES + 1),
        (slots.ANSWERED, contract.MAX_PROCESSES),
    ]
    block = [
        (slots.LANES, 20),
        (slots.BATCHES, len(contract.RELEASE_REASONS)),
        (slots.REQUESTS, len(contract.STATUS_CODES)),
        (slots.REJECTED, len(contract.REJECTION_REASONS)),
        (slots.BATCH_ROWS, slots.SIZE_SUM + 1),
        (slots.BATCH_REQUESTS, slots.SIZE_SUM + 1),
        (slots.BATCH_SECONDS, slots.LATENCY_SUM + 1),
        (slots.QUEUE_WAIT, slots.LATENCY_SUM + 1),
        (slots.REQUEST_SECONDS, slots.LATENCY_SUM + 1),
    ]
    named = {
        slots.START_TIME, slots.WEB_RESTARTS, slots.MODEL_RESTARTS, slots.MODEL_MEMORY,
        slots.STOPPING, slots.PROCESS_CPU,
    }  # fmt: skip

    def taken(spans: list[tuple[int, int]]) -> list[int]:
        return sorted(slot for first, count in spans for slot in range(first, first + count))

    assert 6 == len(named)
    assert list(range(slots.REPLICA_SLOTS)) == taken(replica)
    assert list(range(slots.METHOD_SLOTS)) == taken(block)
    assert len(contract.batch_size_buckets(contract.MAX_BATCH_SIZE_LIMIT)) <= slots.SIZE_EDGES
