"""The page of a replica, and of all APIs, in a real Chromium: idle, loaded, overloaded, dead."""

import asyncio
import http.client
import itertools
import json
import os
import struct
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

import aiohttp
import click
import httpx
import pytest
from playwright.sync_api import Browser
from tests.unit.operator.worlds import (
    KEY,
    api_body,
    deployment_body,
    pod_body,
    replica_set_body,
)

from batchedapi_operator.admin import FleetCollector, decisions_server
from batchedapi_operator.autoscaling.scrape import Scraper
from batchedapi_operator.plugin.ui import page_server
from batchedapi_operator.store import Store
from browser import Watched
from ports import HOST, free_port
from serving import Replica, running_replica, write_manifest

MODEL: Final = """
    import time
    from batchedapi_serving import Tensor, batched

    class Model:
        @batched(inputs=Tensor("FP32", [4]), outputs=Tensor("FP32", [1]))
        def predict(self, x):
            time.sleep(0.01 + 0.0005 * len(x))
            return x.sum(1, keepdims=True)
"""
SPEC: Final = {"serverSideBatching": {"maxBatchSize": 16, "maxLatency": "60ms"}}
VIEWS: Final = [(width, scheme) for width in (1280, 400) for scheme in ("light", "dark")]
LAST: Final = 'figures(kept.at(-1).sums, "predict", kept.at(-1).seconds, 1)'
SCREENSHOTS: Final = os.environ.get("SCREENSHOTS")
"""A folder where somebody wants to look at what was seen."""
ROOT: Final = Path(__file__).resolve().parents[3]
PICTURE: Final = ROOT / "docs" / "pictures" / "page.png"
RENEWED: Final = bool(os.environ.get("PICTURE"))
"""Whether the picture is to be made anew."""
PICTURE_SECONDS: Final = 60
MOST_BYTES: Final = 200_000
"""Of the picture: everybody who looks at the README loads it."""


@pytest.fixture(scope="module")
def replica(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Replica]:
    """One that can do about 900 rows a second."""
    folder = tmp_path_factory.mktemp("page")
    with running_replica(folder, ["-f", str(write_manifest(folder, MODEL, SPEC))]) as running:
        yield running


@contextmanager
def clients(port: int, number: int, rows: Sequence[object] = ([1, 2, 3, 4],)) -> Iterator[None]:
    """So many, each of which asks again once it was answered, for these rows in turn."""
    stop = threading.Event()
    bodies = itertools.cycle([json.dumps(row) for row in rows])

    def ask() -> None:
        connection = http.client.HTTPConnection(HOST, port, timeout=30)
        while not stop.is_set():
            with suppress(OSError, http.client.HTTPException):
                headers = {"content-type": "application/json"}
                connection.request("POST", "/predict", body=next(bodies), headers=headers)
                connection.getresponse().read()
                continue
            connection.close()
        connection.close()

    threads = [threading.Thread(target=ask) for _ in range(number)]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        stop.set()
        for thread in threads:
            thread.join()


@contextmanager
def seen(
    running: Browser, replica: Replica, width: int = 1280, scheme: str = "dark", name: str = ""
) -> Iterator[Watched]:
    """The page; nothing may be complained of, asked elsewhere or be too wide."""
    url = f"http://{HOST}:{replica.admin_port}/"
    one = Watched(running, url, width=width, scheme=scheme)
    try:
        yield one
        if SCREENSHOTS and name:
            path = Path(SCREENSHOTS) / f"{name}-{scheme}-{width}.png"
            one.page.screenshot(path=path, full_page=True)
        assert [] == one.complaints
        assert not one.overflows()
    finally:
        one.page.close()


@pytest.mark.parametrize(("width", "scheme"), VIEWS)
def test_an_idle_replica_says_so(
    chromium: Browser, replica: Replica, width: int, scheme: str
) -> None:
    """Zeros are figures; what is unknown is a dash, and no axis runs to a second of latency."""
    with seen(chromium, replica, width, scheme, "idle") as one:
        one.wait_for("kept.length >= 2")
        one.wait_for('document.querySelector("#state").textContent.startsWith("idle")')

        assert 7 == one.page.locator("figure canvas").count()
        assert "maxBatchSize 16" in one.page.locator("#why").inner_text()


@pytest.mark.parametrize(("width", "scheme"), VIEWS)
def test_a_replica_under_load_shows_its_batches(
    chromium: Browser, replica: Replica, width: int, scheme: str
) -> None:
    """Every chart has something to show, and t(n) its line."""
    with seen(chromium, replica, width, scheme, "load") as one, clients(replica.port, 8):
        one.wait_for(f"kept.length >= 5 && {LAST}.run > 0")
        one.wait_for('/ms \\+ .* a row/.test(document.querySelector("#charts").textContent)')

        charts = one.page.locator("figure").evaluate_all(
            "all => all.map(one => one.getAttribute('aria-label'))"
        )
        assert [] == [chart for chart in charts if "nothing yet" in chart]
        assert "early" in charts[4]


def test_rows_of_several_lengths_have_three_lines_and_their_padding(
    chromium: Browser, tmp_path: Path
) -> None:
    """t(n, L), for the mean length, half and twice; clients send 2 and 64 numbers in turn."""
    model = MODEL.replace('Tensor("FP32", [4])', 'Tensor("FP32", ["length"], pad=0)')
    model = model.replace("0.0005 * len(x)", "2e-5 * x.size")
    with (
        running_replica(tmp_path, ["-f", str(write_manifest(tmp_path, model, SPEC))]) as replica,
        seen(chromium, replica, 1280, "light", "lengths") as one,
        clients(replica.port, 4, [[1, 2], [1] * 64]),
    ):
        one.wait_for(f"kept.length >= 5 && {LAST}.padding > 0")
        one.wait_for("lines([" + LAST + "]).length === 3")
        one.wait_for('/a row that is .* long/.test(document.querySelector("#charts").textContent)')

        assert "padding" in one.page.locator("#tiles").inner_text()


def test_an_overloaded_replica_shows_what_it_refuses(chromium: Browser, replica: Replica) -> None:
    """Full batches, and the requests that were sent away."""
    with seen(chromium, replica, 1280, "light", "overloaded") as one, clients(replica.port, 60):
        of_each = 'kept.map((one) => figures(one.sums, "predict", one.seconds, 1))'
        one.wait_for(f"kept.length >= 3 && {of_each}.some((one) => one.answers['429'] > 0)")
        one.wait_for(f"{of_each}.some((one) => one.reasons.full > 0)")

        assert "429" in one.page.locator("#charts").inner_text()


def test_the_readme_shows_the_page_as_it_is(chromium: Browser, replica: Replica) -> None:
    """`make picture` makes it anew: a minute of few clients, then many, then few again."""
    with seen(chromium, replica, 1280, "light") as one:
        for number in (6, 20, 9) if RENEWED else (8,):
            with clients(replica.port, number):
                one.wait_for(f"kept.length >= 3 && {LAST}.run > 0")
                one.page.wait_for_timeout(1e3 * PICTURE_SECONDS / 3 if RENEWED else 0)
                taken = _above(one, "Release reasons")
        if RENEWED:
            PICTURE.write_bytes(taken)

    shown = PICTURE.read_bytes()
    assert MOST_BYTES > len(shown)
    assert size_of(taken)[0] == size_of(shown)[0] == 1280
    assert PICTURE.relative_to(ROOT).as_posix() in (ROOT / "README.md").read_text("utf-8")


def _above(one: Watched, title: str) -> bytes:
    """A picture of the page down to the chart of that title."""
    box = one.page.locator("figure", has_text=title).bounding_box()
    assert box is not None
    height = round(box["y"] + box["height"] + box["x"] / 100)
    return one.page.screenshot(
        full_page=True, clip={"x": 0, "y": 0, "width": 1280, "height": height}
    )


def size_of(png: bytes) -> tuple[int, int]:
    """Width and height of a picture, which its first chunk says."""
    width, height = struct.unpack(">II", png[16:24])
    return width, height


def test_the_page_says_the_figures_of_the_metrics(chromium: Browser, replica: Replica) -> None:
    """It counts nothing itself: all that it showed adds up to what the replica counted."""
    rows = "batchedapi_rows_received_total"
    before = replica.metrics()[rows]
    with seen(chromium, replica) as one:
        one.wait_for("previous !== null")
        with clients(replica.port, 4):
            one.wait_for("kept.length >= 3")
        one.wait_for('document.querySelector("#state").textContent.startsWith("idle")')
        shown = one.page.evaluate(
            'kept.reduce((sum, one) => sum + figures(one.sums, "predict", 1, 1).received, 0)'
        )

    assert replica.metrics()[rows] - before == shown


def test_a_chart_is_read_with_the_keyboard(chromium: Browser, replica: Replica) -> None:
    """Whoever has no mouse sees the figures of a moment too."""
    with seen(chromium, replica) as one, clients(replica.port, 4):
        one.wait_for(f"kept.length >= 4 && {LAST}.run > 0")
        one.page.locator("figure").first.focus()
        one.page.keyboard.press("ArrowLeft")

        one.wait_for('/rows: .*\\/s/.test(document.querySelector("figcaption").textContent)')


def test_a_paused_page_asks_for_nothing(chromium: Browser, replica: Replica) -> None:
    """Whoever looks at one moment does not want it to go away."""
    with seen(chromium, replica) as one:
        one.wait_for("kept.length >= 1")
        one.page.get_by_role("button", name="pause").press("Enter")
        asked: list[str] = []
        one.page.on("request", lambda request: asked.append(request.url))
        one.page.wait_for_timeout(2500)

        assert [] == asked


def test_a_replica_that_is_gone_is_told_with_the_time(chromium: Browser, tmp_path: Path) -> None:
    """Old figures are not taken for new ones."""
    manifest = write_manifest(tmp_path, MODEL, SPEC)
    with running_replica(tmp_path, ["-f", str(manifest)]) as replica:
        url = f"http://{HOST}:{replica.admin_port}/"
        one = Watched(chromium, url, width=1280, scheme="dark")
        one.wait_for("kept.length >= 1")
    try:
        one.wait_for('document.body.dataset.state === "dead"')

        assert "no answer from the replica since" in one.page.locator("#state").inner_text()
        assert [] == one.complaints
    finally:
        one.page.close()


class Operator:
    """The operator's side of the page about all APIs: its own code, over one replica."""

    def __init__(self, replica: Replica) -> None:
        self.replica = replica
        self.dead = False
        self.store = Store()
        api = api_body()
        decision = {"text": "2 replicas (Demand): 1303 rows/s arrive <b>"}
        api["status"] = {
            "phase": "Ready", "readyReplicas": 1, "desiredReplicas": 2,
            "autoscaling": {"lastDecision": decision},
        }  # fmt: skip
        other = {**api, "metadata": {**api["metadata"], "name": "other", "uid": "other-uid"}}
        other.pop("status")
        for body in (api, other):
            self.store.put_api(body)
        self.store.put_deployment(KEY, deployment_body())
        self.store.put_replica_set(KEY, replica_set_body())
        self.store.put_pod(KEY, pod_body("iris-1", ip=HOST))
        self.store.put_pod(KEY, pod_body("iris-2", ip="127.0.0.9"))

    def ask(self, path: str) -> tuple[int, bytes]:
        """As the port-forward to the operator's pod does."""
        if self.dead:
            raise click.ClickException("no operator runs in namespace 'batchedapi-system'")
        return asyncio.run(self._ask(path))

    async def _ask(self, path: str) -> tuple[int, bytes]:
        port = free_port()
        async with (
            Scraper.opened(self.replica.admin_port) as scraper,
            decisions_server(
                port, lambda _key, _last: [], FleetCollector(self.store, scraper.whole_pages).look
            ),
            aiohttp.ClientSession() as session,
            session.get(f"http://{HOST}:{port}{path}") as answer,
        ):
            return answer.status, await answer.read()


@pytest.fixture
def operator(replica: Replica) -> Iterator[tuple[Operator, str]]:
    """An operator, and where `kubectl batchedapi ui` shows the page."""
    made = Operator(replica)
    with page_server(0, made.ask) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield made, f"http://{HOST}:{server.server_port}/"
        finally:
            server.shutdown()
            thread.join()


@pytest.mark.parametrize(("width", "scheme"), VIEWS)
def test_all_apis_are_listed_and_one_is_looked_at(
    chromium: Browser, operator: tuple[Operator, str], width: int, scheme: str
) -> None:
    """Whoever wonders about one chooses it, and sees its replicas and why they are as many."""
    made, url = operator
    with clients(made.replica.port, 8):
        one = Watched(chromium, url, width=width, scheme=scheme)
        one.page.get_by_role("link", name=str(KEY)).press("Enter")
        one.wait_for(f"kept.length >= 2 && {LAST}.run > 0")
    state, why = (one.page.locator(place).inner_text() for place in ("#state", "#why"))
    if SCREENSHOTS:
        one.page.screenshot(path=f"{SCREENSHOTS}/fleet-{scheme}-{width}.png", full_page=True)

    assert "2 APIs; 1 replicas could not be read" == state
    assert "2 replicas (Demand): 1303 rows/s arrive <b>" in why
    assert [] == one.complaints
    assert not one.overflows()
    one.page.close()


def test_a_dead_operator_is_told_and_one_that_is_back_is_seen(
    chromium: Browser, operator: tuple[Operator, str]
) -> None:
    """The page stays open over an operator's restart, without an error of the browser's own."""
    made, url = operator
    one = Watched(chromium, url, width=1280, scheme="dark")
    one.wait_for('document.body.dataset.state === "live"')
    made.dead = True
    one.wait_for('document.body.dataset.state === "dead"')
    said = one.page.locator("#state").inner_text()
    if SCREENSHOTS:
        one.page.screenshot(path=f"{SCREENSHOTS}/fleet-dead.png", full_page=True)
    made.dead = False
    one.wait_for('document.body.dataset.state === "live"')

    assert "no operator runs in namespace" in said
    assert [] == one.complaints
    one.page.close()


def test_a_page_of_somebody_else_reads_nothing(operator: tuple[Operator, str]) -> None:
    """A name that leads to loopback makes a browser ask here with that name."""
    _, url = operator

    assert 403 == httpx.get(f"{url}fleet", headers={"Host": "evil.example"}).status_code
    assert 404 == httpx.get(f"{url}metrics").status_code
