"""`context.metrics`: what a predictor counts of its own, bounded and under names of its own."""

import json
import logging
import math
import resource
import signal
import struct
import threading
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from batchedapi_core import contract
from batchedapi_serving.metrics import slots
from batchedapi_serving.metrics.page import whole_page
from batchedapi_serving.predictor import Context
from batchedapi_serving.predictor.files import MeasuredFiles, PredictorFiles, forget_gauges
from batchedapi_serving.predictor.metrics import LONGEST_LABEL, MOST_METRICS, MOST_SERIES, Metrics
from odd_texts import ODD_TEXTS


def process(folder: Path, index: int = 0) -> Metrics:
    """The metrics that the model process with that number gives its predictor."""
    return Metrics(lambda: PredictorFiles(folder, index))


def page(folder: Path) -> dict[str, float]:
    """Samples of the replica's page that are the predictor's, and the count of what was dropped."""
    memory = memoryview(bytearray(slots.BYTES)).cast("d")
    text = whole_page(memory, [("predict", 8)], *MeasuredFiles(folder).read()).decode()
    found = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            labels = ",".join(f"{name}={value}" for name, value in sorted(sample.labels.items()))
            name = f"{sample.name}{{{labels}}}" if labels else sample.name
            if not name.startswith(("batchedapi_", "process_")):
                found[name] = sample.value
            if sample.name == contract.METRIC_PREDICTOR_UPDATES_DROPPED:
                found["dropped"] = sample.value
    return found


def test_what_a_process_measured_is_on_the_page(tmp_path: Path) -> None:
    """A counter, a gauge and a histogram, as prometheus-client's own would be."""
    metrics = process(tmp_path)
    words = metrics.counter("words", "Words.", ["language", "kind"])
    words.labels("en", "long").inc(3)
    words.labels(kind="long", language="en").inc()
    cached = metrics.gauge("cache_entries", "Entries.")
    cached.set(7)
    cached.dec(2)
    lengths = metrics.histogram("text_length", "Characters.", buckets=[10, 100])
    for length in (3, 10, 11, 1000, math.nan):
        lengths.observe(length)

    assert {
        "words_total{kind=long,language=en}": 4.0,
        "cache_entries": 5.0,
        "text_length_bucket{le=10.0}": 2.0,
        "text_length_bucket{le=100.0}": 3.0,
        "text_length_bucket{le=+Inf}": 4.0,
        "text_length_count": 4.0,
        "text_length_sum": 1024.0,
        "dropped": 0.0,
    } == page(tmp_path)


def test_a_counter_that_nothing_happened_to_is_zero(tmp_path: Path) -> None:
    """Else its first increment is no increase that Prometheus sees."""
    process(tmp_path).counter("failures_total", "Failures.")

    assert 0.0 == page(tmp_path)["failures_total"]


@pytest.mark.parametrize(
    ("merge", "expected"), [("sum", 6.0), ("max", 5.0), ("min", 1.0), ("mostrecent", 1.0)]
)
def test_processes_are_one_on_the_page(tmp_path: Path, merge: str, expected: float) -> None:
    """Counters and histograms are added up; a gauge says how."""
    for index, value in enumerate((5.0, 1.0)):
        metrics = process(tmp_path, index)
        metrics.counter("words", "Words.").inc(value)
        metrics.gauge("level", "Level.", merge=merge).set(value)
        metrics.histogram("seconds", "Seconds.", buckets=[2.0]).observe(value)

    found = page(tmp_path)

    assert 6.0 == found["words_total"]
    assert expected == found["level"]
    assert (1.0, 2.0) == (found["seconds_bucket{le=2.0}"], found["seconds_count"])


def test_counters_of_a_process_that_is_replaced_go_on_and_its_gauges_are_gone(
    tmp_path: Path,
) -> None:
    """A counter that falls is taken for a restart; a cache that is gone has no entries."""
    before = process(tmp_path)
    before.counter("words", "Words.", ["language"]).labels("en").inc(10)
    before.gauge("entries", "Entries.").set(3)
    before.histogram("seconds", "Seconds.").observe(1.0)
    forget_gauges(tmp_path, 0)
    between = page(tmp_path)
    after = process(tmp_path)
    after.counter("words", "Words.", ["language"]).labels("en").inc(1)
    after.gauge("entries", "Entries.").inc()
    after.histogram("seconds", "Seconds.").observe(1.0)

    assert (10.0, None) == (between["words_total{language=en}"], between.get("entries"))
    found = page(tmp_path)
    assert (11.0, 1.0) == (found["words_total{language=en}"], found["entries"])
    assert (2.0, 2.0) == (found["seconds_count"], found["seconds_sum"])


def test_what_is_beyond_the_limit_is_counted_in_one_series_and_told_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A user's name as a label must not fill the memory of who scrapes, nor fail a request."""
    for _ in range(2):  # the process is replaced: what is kept counts
        users = process(tmp_path).counter("requests_of", "Requests.", ["user"])
        with caplog.at_level(logging.WARNING):
            for user in range(MOST_SERIES + 20):
                users.labels(user).inc()

    found = page(tmp_path)
    assert 40.0 == found.pop("dropped")
    assert {2.0} == set(found.values())
    assert MOST_SERIES == len(found)
    warnings = [record for record in caplog.records if record.levelno == logging.WARNING]
    assert 2 == len(warnings)
    assert contract.METRIC_PREDICTOR_UPDATES_DROPPED in warnings[0].getMessage()


def test_histograms_count_as_many_series_as_they_have_buckets(tmp_path: Path) -> None:
    """Each bucket is one on the page."""
    sizes = process(tmp_path).histogram("sizes", "Sizes.", ["user"], buckets=range(98))
    for user in range(20):
        sizes.labels(user).observe(1)

    found = page(tmp_path)
    assert 10.0 == found["dropped"]
    assert 10 == sum(1 for name in found if name.startswith("sizes_sum"))


def test_names_are_bounded_too(tmp_path: Path) -> None:
    """One that is made for each request is as bad as a label."""
    metrics = process(tmp_path)
    for number in range(MOST_METRICS + 5):
        metrics.counter(f"count_{number}", "One of many.").inc()

    found = page(tmp_path)
    assert 5.0 == found.pop("dropped")
    assert MOST_METRICS == len(found)


def test_long_labels_are_cut(tmp_path: Path) -> None:
    """A text as a label is a mistake that costs a little only."""
    process(tmp_path).counter("words", "Words.", ["text"]).labels("x" * 10_000).inc()

    assert f"words_total{{text={'x' * LONGEST_LABEL}}}" in page(tmp_path)


@pytest.mark.parametrize(
    ("name", "labels", "message"),
    [
        ("batchedapi_words", [], "begin with batchedapi_ are the server's own; call it 'words'"),
        ("process_cpu_seconds", [], "begin with process_ are the server's own"),
        ("words read", [], "expected a name of letters, digits and underscores, got 'words read'"),
        ("", [], "expected a name of letters"),
        ("words", ["le"], "expected labels .* other than le and __..., got 'le'"),
        ("words", ["__name__"], "expected labels"),
        ("words", ["a", "a"], "a label is named twice"),
    ],
)
def test_names_of_ours_and_names_that_cannot_be_read_are_refused(
    name: str, labels: list[str], message: str
) -> None:
    """When the predictor starts, and in words."""
    with pytest.raises(ValueError, match=message):
        Metrics().counter(name, "Words.", labels)


@pytest.mark.parametrize("name", ["words", "words_total", "seconds_sum", "seconds_bucket"])
def test_two_metrics_are_never_one_on_the_page(name: str) -> None:
    """Prometheus refuses a page that has a name twice."""
    metrics = Metrics()
    metrics.counter("words", "Words.")
    metrics.histogram("seconds", "Seconds.")

    with pytest.raises(ValueError, match="is on the page already"):
        metrics.gauge(name, "Another.")


def test_a_metric_that_is_asked_for_again_is_the_same() -> None:
    """Two parts of a predictor may count the same; with other labels it is another metric."""
    metrics = Metrics()
    words = metrics.counter("words", "Words.", ["language"])

    assert words is metrics.counter("words_total", "Words.", ["language"])
    assert words.labels("en") is words.labels(language="en")
    with pytest.raises(ValueError, match="on the page already, of 'words'"):
        metrics.counter("words", "Words.", ["country"])


def test_what_cannot_be_meant_is_an_error() -> None:
    """Wrong use is found by the first test of a predictor."""
    metrics = Metrics()
    words = metrics.counter("words", "Words.", ["language"])

    with pytest.raises(ValueError, match=r"words: expected \.labels\(\.\.\.\) with language first"):
        words.inc()
    with pytest.raises(ValueError, match=r"words: labels\(\) expected, once, values of language"):
        words.labels("en", "de")
    with pytest.raises(ValueError, match=r"words: labels\(\) expected, once"):
        words.labels("en").labels("de")
    with pytest.raises(ValueError, match=r"words: labels\(\) expected, once"):
        words.labels(country="de")
    with pytest.raises(ValueError, match=r"words: expected inc\(\) of 0 or more, got -1"):
        words.labels("en").inc(-1)
    with pytest.raises(ValueError, match="expected merge to be sum, max, min, mostrecent"):
        metrics.gauge("level", "Level.", merge="average")
    with pytest.raises(ValueError, match="expected buckets that ascend"):
        metrics.histogram("seconds", "Seconds.", buckets=[2, 1])
    with pytest.raises(ValueError, match="seen: labels\\(\\) expected no labels"):
        metrics.gauge("seen", "Seen.").labels("en")


def test_a_context_of_a_unit_test_has_metrics_too() -> None:
    """A predictor that counts needs no server to be tested."""
    Context("test", 0, 1, 1, "cpu").metrics.counter("words", "Words.").inc()


def test_threads_lose_nothing(tmp_path: Path) -> None:
    """Lanes, `decode` and `encode` run in threads."""
    words = process(tmp_path).counter("words", "Words.", ["language"])

    def count() -> None:
        for number in range(1000):
            words.labels(number % 7).inc()

    threads = [threading.Thread(target=count) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert 4000.0 == sum(page(tmp_path).values())


def test_a_file_that_is_no_such_file_costs_the_predictors_metrics_alone(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Whatever runs in the pod may write there; ours are on the page all the same."""
    (tmp_path / "counter_0.db").write_bytes(
        struct.pack("iii52s", 64, 0, 12, b"not JSON" + b" " * 44)
    )
    files = MeasuredFiles(tmp_path)

    assert (0.0, 0.0) == (files.read().dropped, files.read().dropped)
    assert ["predictor's metrics cannot be read"] == [r.getMessage() for r in caplog.records]
    process(tmp_path).counter("words", "Words.").inc()
    assert {"words_total": 1.0, "dropped": 0.0} == page(tmp_path)


def test_a_file_that_was_just_made_is_no_file_yet(tmp_path: Path) -> None:
    """A scrape meets the file in that moment now and then."""
    process(tmp_path).counter("words", "Words.").inc()
    (tmp_path / "counter_1.db").touch()

    assert 1.0 == page(tmp_path)["words_total"]


@pytest.mark.parametrize("text", ODD_TEXTS.values(), ids=ODD_TEXTS)
def test_any_text_as_a_label_or_documentation_is_on_a_page_that_can_be_read(
    tmp_path: Path, text: str
) -> None:
    """Half a surrogate has no bytes: the whole page, and who serves it, would end by it."""
    metrics = process(tmp_path)
    metrics.counter("words", text, ["text"]).labels(text).inc()
    metrics.gauge("level", "Level.").set(1)

    found = page(tmp_path)

    assert 1.0 == found["level"]
    assert [1.0] == [value for name, value in found.items() if name.startswith("words_total")]
    assert len(process(tmp_path).counter("words", text, ["text"]).labels(text)._series) == 1


@pytest.mark.parametrize("buckets", [[math.nan], [1, math.nan], []])
def test_buckets_that_no_value_can_be_in_are_refused(buckets: list[float]) -> None:
    """Prometheus reads no edge that is no number."""
    with pytest.raises(ValueError, match="expected buckets that ascend"):
        Metrics().histogram("seconds", "Seconds.", buckets=buckets)


def entry(key: object, length: int | None = None) -> bytes:
    """A file of prometheus-client's with one value, whose key says to be so long."""
    text = json.dumps(key).encode()
    padded = text + b" " * (8 - (len(text) + 4) % 8)
    body = struct.pack("i", len(text) if length is None else length) + padded
    body += struct.pack("dd", 1.0, 0.0)
    return struct.pack("ii", 8 + len(body), 0) + body


WORDS = ["lines", "lines_total", {}, "Lines."]


@pytest.mark.parametrize(
    "content",
    [
        entry(WORDS)[:-8],
        entry(WORDS)[:20],
        entry(WORDS)[:6],
        entry(WORDS, -12),
        entry(WORDS, -100),
        entry(WORDS, 2**31 - 1),
        struct.pack("ii", 2**31 - 1, 0),
        struct.pack("ii", 2**20, 0) + bytes(2**20),
        entry(5),
        entry(["a", "b", "c", "d"]),
        entry(["a", None, {}, "d"]),
        entry(["a", "a_total", {}, None]),
        entry(["a", "a_total", {"x": "\ud800"}, "d"]),
        entry(["a", "a_total", {"x": 5}, "d"]),
        entry(["batchedapi_rows_received", "batchedapi_rows_received_total", {}, "Ours."]),
    ],
)
def test_a_file_that_was_broken_or_forged_costs_what_is_in_it(
    tmp_path: Path, content: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    """Its process was killed, or others write there; lengths that lead nowhere are not followed."""
    process(tmp_path, 1).counter("words", "Words.").inc()
    (tmp_path / "counter_0.db").write_bytes(content)

    assert {"words_total": 1.0, "dropped": 0.0} == page(tmp_path)
    assert len(caplog.records) <= 1
    process(tmp_path, 0).counter("words", "Words.").inc()
    assert 2.0 == page(tmp_path)["words_total"]


def test_a_full_disk_costs_a_metric_and_no_process(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A file that is mapped and has no bytes on the disk ends who writes to it, by a signal."""
    metrics = process(tmp_path)
    kept = metrics.counter("kept", "Kept.")
    resource_limit = resource.getrlimit(resource.RLIMIT_FSIZE)
    before = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 16, resource_limit[1]))
        words = metrics.counter("words", "Words.", ["text"])
        for number in range(MOST_SERIES - 1):
            words.labels(f"{number:0>128}").inc()
        kept.inc()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, resource_limit)
        signal.signal(signal.SIGXFSZ, before)

    found = page(tmp_path)
    assert 1.0 == found["kept_total"]
    assert 100 < sum(1 for name in found if name.startswith("words_total")) < MOST_SERIES
    assert 0 < found["dropped"]
    assert ["context.metrics: a metric cannot be kept"] == [r.message for r in caplog.records]


def test_a_folder_that_cannot_be_made_costs_metrics_alone(tmp_path: Path) -> None:
    """The predictor is served without them."""
    (tmp_path / "file").touch()
    words = process(tmp_path / "file" / "metrics").counter("words", "Words.")

    words.inc()

    assert {"dropped": 0.0} == page(tmp_path)
