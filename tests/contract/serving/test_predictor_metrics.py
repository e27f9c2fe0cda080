"""`context.metrics` of a running replica: on its page, of all processes, across their deaths."""

import asyncio
import json
import os
import signal
from pathlib import Path

from odd_texts import ODD_TEXTS
from raw_http import ask, connected
from serving import Replica, running_replica, start_replica, write_manifest

CODE = """
    from batchedapi_serving import batched

    class Model:
        def __init__(self, context):
            metrics = context.metrics
            self.words = metrics.counter("words", "Words that were read.", ["language"])
            self.sizes = metrics.histogram("texts", "Texts of a batch.", buckets=[1, 8])
            self.loaded = metrics.gauge("models_loaded", "Models in memory.")
            self.loaded.inc()
            self.device = context.worker_index

        @batched(max_batch_size=8)
        def predict(self, texts):
            self.sizes.observe(len(texts))
            for text in texts:
                self.words.labels("en").inc(len(text.split()))
            return [self.device for _ in texts]
"""
SPEC = {"predictor": {"processesPerReplica": 2}}
CLASHES = """
    class Model:
        def __init__(self, context):
            context.metrics.counter("batchedapi_words", "Words that were read.")

        def predict(self, payload):
            return payload
"""
ODD = """
    class Model:
        def __init__(self, context):
            self.seen = context.metrics.counter("seen", "Half of \\ud800 a surrogate.", ["text"])
            self.level = context.metrics.gauge("level", "Any number.")

        def predict(self, payload):
            self.seen.labels("half \\udfff " + payload["text"]).inc()
            self.level.set(payload["level"] * 10)
            return 1
"""
TEXT = "one two three"


async def texts(port: int, count: int) -> set[int]:
    """Send so many, eight side by side; the processes that answered."""

    async def one_client(share: int) -> set[int]:
        found = set()
        async with connected(port) as connection:
            for _ in range(share):
                response = await connection.post_json("/predict", TEXT)
                assert 200 == response.status, response
                found.add(json.loads(response.body))
        return found

    return set().union(*await asyncio.gather(*(one_client(count // 8) for _ in range(8))))


async def test_all_processes_are_one_on_the_page_and_counters_never_fall(
    replica: Replica,
) -> None:
    """Whoever looks at a rate must not see a model process that was replaced."""
    replica.wait_for(lambda: replica.metrics().get("models_loaded") == 2, "two are not loaded")
    assert {0, 1} == await texts(replica.port, 400)
    replica.wait_for(
        lambda: replica.metrics()["words_total{language=en}"] == 1200.0, "not all are counted"
    )
    before = replica.metrics()

    victim = replica.children("model")[0]
    os.kill(victim, signal.SIGKILL)
    replica.wait_for(lambda: victim not in replica.children("model"), "it goes on")
    seen = []
    replica.wait_for(
        lambda: seen.append(replica.metrics()) or seen[-1].get("models_loaded") == 2,
        "it is not replaced",
    )
    await texts(replica.port, 400)
    replica.wait_for(
        lambda: seen.append(replica.metrics()) or seen[-1]["words_total{language=en}"] == 2400.0,
        "not all are counted",
    )

    for name in ("words_total{language=en}", "texts_count", "texts_sum", "texts_bucket{le=8.0}"):
        values = [page[name] for page in (before, *seen)]
        assert values == sorted(values), name
    assert 800.0 == seen[-1]["texts_sum"]
    assert 0.0 == seen[-1]["batchedapi_predictor_updates_dropped_total"]


def test_a_name_of_ours_is_refused_when_it_starts(tmp_path: Path) -> None:
    """Two series of one name would spoil the whole page."""
    manifest = write_manifest(tmp_path, CLASHES, {})
    replica = start_replica(tmp_path, ["-f", str(manifest)])

    assert 0 != replica.process.wait(60)
    assert "names that begin with batchedapi_ are the server's own; call it 'words'" in (
        replica.text()
    )


async def test_odd_texts_and_broken_files_cost_a_series_and_not_the_admin_port(
    tmp_path: Path,
) -> None:
    """Probes and the page are a replica's life; what a predictor measures is data."""
    manifest = write_manifest(tmp_path, ODD, {})
    with running_replica(tmp_path, ["-f", str(manifest)]) as replica:
        for text in ODD_TEXTS.values():
            spoken = text.encode("utf-8", "replace").decode()
            answer = await ask(replica.port, {"text": spoken, "level": 1e308})
            assert 200 == answer.status, answer
        for folder in replica.scratch.rglob("counter_0.db"):
            (folder.parent / "counter_7.db").write_bytes(b"\xff" * 100)

        page = replica.metrics()

        assert sum(1 for name in page if name.startswith("seen_total")) > 10
        assert 0.0 == page["batchedapi_predictor_updates_dropped_total"]
        assert replica.process.poll() is None
        assert {200} == {replica.admin(path)[0] for path in ("/readyz", "/livez", "/metrics", "/")}
