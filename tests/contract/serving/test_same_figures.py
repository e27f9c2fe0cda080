"""`kubectl get bapi`, `kubectl batchedapi status`, the page and the dashboards say the same.

A Prometheus scrapes a real replica under load. Its first and last sample within a window are the
two pages that the operator, the plugin and the page's own script (in a real Chromium) are given;
the dashboards' queries are asked over the same window. So nothing differs but who computes.
"""

import itertools
import threading
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

import httpx
import pytest
from crds.crd import PRINTER_COLUMNS
from playwright.sync_api import Browser
from tests.unit.operator.worlds import api

import dashboards
import prometheus
from batchedapi_core.scaling.decide import decide
from batchedapi_core.scaling.observe import observe
from batchedapi_core.scaling.samples import Observation
from batchedapi_core.scaling.state import ScalingState
from batchedapi_operator.autoscaling import report
from batchedapi_operator.autoscaling.in_effect import policy_of, samples_of
from batchedapi_operator.autoscaling.metrics_page import parse_page
from batchedapi_operator.plugin import pages as plugin
from browser import Watched
from ports import HOST, free_port
from serving import Replica, running_replica, write_manifest

MODEL: Final = """
    import time
    from batchedapi_serving import Tensor, batched

    class Model:
        @batched(inputs=Tensor("FP32", [4]), outputs=Tensor("FP32", [1]))
        def predict(self, x):
            time.sleep(0.004 + 0.0005 * len(x))
            return x.sum(1, keepdims=True)
"""
SPEC: Final = {"serverSideBatching": {"maxBatchSize": 8}}
CLIENTS: Final = 6
WINDOW: Final = 10
"""Seconds."""
LONG: Final = 1e6
"""Seconds."""
LABELS: Final = {"namespace": "team", "pod": "api-0", "api": "api"}
TARGET_LABELS: Final = frozenset((*LABELS, "instance", "job", "__name__"))
PANELS: Final = {
    ("Rows received", "A"): "rows/s",
    ("Mean batch", "A"): "mean rows",
    ("Mean batch", "C"): "most rows",
    ("Fill", "A"): "fill",
    ("Busy lanes", "A"): "busy",
    ("Request latency", "A"): "p50",
    ("Request latency", "C"): "p99",
    ("Queue wait", "C"): "interval",
    ("Batch execution", "C"): "batch seconds",
}
"""Of the dashboard of one API: panel and query, and what it is called here."""


@dataclass(frozen=True)
class Pages:
    """A replica's metrics page at the two ends of a window, and the Unix times of both."""

    before: str
    after: str
    began: float
    ended: float

    @property
    def seconds(self) -> float:
        """Between them."""
        return self.ended - self.began


@pytest.fixture(scope="module")
def replica(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Replica]:
    """One under a steady load."""
    folder = tmp_path_factory.mktemp("figures")
    stop = threading.Event()

    def ask(port: int) -> None:
        with httpx.Client(base_url=f"http://{HOST}:{port}", timeout=60) as client:
            while not stop.wait(0.005):
                client.post("/predict", json=[1, 2, 3, 4])

    with running_replica(folder, ["-f", str(write_manifest(folder, MODEL, SPEC))]) as running:
        threads = [threading.Thread(target=ask, args=(running.port,)) for _ in range(CLIENTS)]
        for thread in threads:
            thread.start()
        try:
            yield running
        finally:
            stop.set()
            for thread in threads:
                thread.join()


@pytest.fixture(scope="module")
def seen(
    replica: Replica, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Pages, dict[str, float]]:
    """Two pages, and what the dashboards say of the time between them."""
    target = {"targets": [f"{HOST}:{replica.admin_port}"], "labels": LABELS}
    config = prometheus.static_config({"batchedapi-serving": [target]})
    port = free_port()
    try:
        folder = tmp_path_factory.mktemp("prometheus")
        with prometheus.running_prometheus(config, folder, port) as running:
            return _seen(running)
    except prometheus.PrometheusUnavailableError as error:
        pytest.skip(str(error))


def _seen(running: prometheus.Prometheus) -> tuple[Pages, dict[str, float]]:
    deadline = time.monotonic() + 120
    while True:  # a busy machine leaves scrapes out, and rates are then extrapolated
        time.sleep(1.0)
        at = str(time.time())
        found = asked(running, f'{{api="api"}}[{WINDOW}s]', at)
        if scraped_steadily(found):
            break
        assert time.monotonic() < deadline, "no ten scrapes in a row in time"
    values = {**LABELS, "name": "api", "method": ".*", "__rate_interval": f"{WINDOW}s"}
    said = {}
    for query in dashboards.queries("api"):
        called = PANELS.get((query.panel, query.ref))
        if called is not None:
            (series,) = asked(running, dashboards.substitute(query.expr, values), at)
            said[called] = float(series["value"][1])
    (began, _), *_, (ended, _) = found[0]["values"]
    return Pages(page_of(found, 0), page_of(found, -1), began, ended), said


def asked(running: prometheus.Prometheus, expr: str, at: str) -> list[dict[str, Any]]:
    """The answer as Prometheus writes it."""
    answer = httpx.get(f"{running.url}/api/v1/query", params={"query": expr, "time": at})
    result: list[dict[str, Any]] = answer.json()["data"]["result"]
    return result


def scraped_steadily(found: list[dict[str, Any]]) -> bool:
    """Whether all of the window was scraped, second by second."""
    if not found:
        return False
    times = [when for when, _ in found[0]["values"]]
    gaps = [after - before for before, after in itertools.pairwise(times)]
    whole = all(len(series["values"]) == len(times) for series in found)
    return whole and len(times) >= WINDOW and max(gaps) < 1.05


def page_of(found: list[dict[str, Any]], which: int) -> str:
    """The replica's page as it was, without what Prometheus added."""
    lines = []
    for series in found:
        labels = {k: v for k, v in series["metric"].items() if k not in TARGET_LABELS}
        text = ",".join(f'{name}="{value}"' for name, value in labels.items())
        name = series["metric"]["__name__"]
        if not name.startswith(("batchedapi_", "process_start")):
            continue
        lines.append(f"{name}{{{text}}} {series['values'][which][1]}" if text else
                     f"{name} {series['values'][which][1]}")  # fmt: skip
    return "\n".join(lines) + "\n"


def columns(pages: Pages) -> dict[str, str]:
    """The columns of `kubectl get bapi` for a status that the operator wrote of these two pages."""
    body = api(**SPEC)
    state = ScalingState()
    for text, at in ((pages.before, pages.began), (pages.after, pages.ended)):
        # of a pod that ran long before an operator first looks, nothing before that look counts
        found = (parse_page(text, "uid", time=at, unix_time=at + LONG),)
        policy = policy_of(body, found, state, at)
        observation = Observation(samples_of(body, found), ready=1, current=1, revision="r")
        load, state = observe(policy, state, observation, at)
        decision, state = decide(policy, load, state, at)
    look = report.Look(report.Decided(policy, load, decision, 1, found), learned={})
    status = {"status": report.build_report(look, {}, 1, "2026-01-01T00:00:00Z", last_scale=None)}

    def value(path: str) -> str:
        found: Any = status
        for step in path.strip(".").split("."):
            found = found.get(step, {}) if isinstance(found, Mapping) else {}
        return str(found)

    return {name: value(path) for name, _, path, _, _ in PRINTER_COLUMNS}


def drawn(chromium: Browser, replica: Replica, pages: Pages) -> dict[str, Any]:
    """The figures that the page's script computes from the two pages."""
    one = Watched(chromium, f"http://{HOST}:{replica.admin_port}/", width=1280, scheme="light")
    try:
        figures: dict[str, Any] = one.page.evaluate(
            """([before, after, seconds]) => {
              const page = (text) => new Map([["api-0", parsePage(text)]]);
              return figures(growth(page(before), page(after)), "predict", seconds, 1);
            }""",
            [pages.before, pages.after, pages.seconds],
        )
        return figures
    finally:
        one.page.close()


def test_the_page_and_the_dashboards_say_the_same(
    chromium: Browser, replica: Replica, seen: tuple[Pages, dict[str, float]]
) -> None:
    """Rows, batches, quantiles and lanes; to a thousandth, as Prometheus extrapolates."""
    pages, said = seen
    page = drawn(chromium, replica, pages)

    figures = {
        "rows/s": page["received"], "mean rows": page["meanRows"], "most rows": page["largest"],
        "busy": page["busy"], "p50": page["p50"], "p99": page["p99"],
        "interval": page["interval"], "batch seconds": page["meanSeconds"],
        "fill": page["meanRows"] / page["largest"],
    }  # fmt: skip
    assert said == pytest.approx(figures, rel=1e-3)
    assert said["rows/s"] > 0


def test_kubectl_get_and_the_dashboards_say_the_same(
    seen: tuple[Pages, dict[str, float]],
) -> None:
    """To the digits that columns have."""
    pages, said = seen
    shown = columns(pages)

    assert float(shown["Batch"]) == pytest.approx(said["mean rows"], abs=0.06)
    assert float(shown["Max"]) == said["most rows"]
    assert float(shown["Fill%"]) == pytest.approx(100 * said["fill"], abs=0.6)
    assert float(shown["Rows/s"]) == pytest.approx(said["rows/s"], abs=0.06, rel=1e-3)


def test_kubectl_batchedapi_status_and_the_page_say_the_same(
    chromium: Browser, replica: Replica, seen: tuple[Pages, dict[str, float]]
) -> None:
    """Both take differences of two pages, in two languages."""
    pages, _ = seen
    before, after = plugin.parse_page(pages.before), plugin.parse_page(pages.after)
    reading = plugin.Reading(before, after, pages.seconds, pages.ended)
    (status,) = plugin.figures_of([reading]).methods
    page = drawn(chromium, replica, pages)

    assert {
        "received": status.rows_received_per_second, "run": status.rows_per_second,
        "requests": status.requests_per_second, "meanRows": status.mean_rows,
        "meanSeconds": status.mean_batch_seconds, "wait": status.mean_queue_wait,
        "p50": status.p50, "p99": status.p99, "largest": status.max_batch_size,
        "interval": status.batch_interval, "queue": status.queue_rows,
        "inFlight": status.in_flight,
    } == pytest.approx({
        name: page[name]
        for name in (
            "received", "run", "requests", "meanRows", "meanSeconds", "wait", "p50", "p99",
            "largest", "interval", "queue", "inFlight",
        )
    })  # fmt: skip


def test_replicas_of_which_one_is_limited_have_one_largest_batch(
    chromium: Browser, replica: Replica, seen: tuple[Pages, dict[str, float]]
) -> None:
    """Memory ran out on one: everywhere the largest is told, which the others still run."""
    pages, _ = seen
    limited = [
        text.replace(
            'batchedapi_max_batch_size{method="predict"} 8',
            'batchedapi_max_batch_size{method="predict"} 2',
        )
        for text in (pages.before, pages.after)
    ]
    assert pages.after != limited[1]
    one = Watched(chromium, f"http://{HOST}:{replica.admin_port}/", width=1280, scheme="light")
    try:
        largest = one.page.evaluate(
            """([before, after]) => {
              const both = (one) => new Map(one.map((text, i) => [`api-${i}`, parsePage(text)]));
              return figures(growth(both(before), both(after)), "predict", 1, 2).largest;
            }""",
            [[pages.before, limited[0]], [pages.after, limited[1]]],
        )
    finally:
        one.page.close()

    assert 8 == largest
