"""Predictors at the edges: very large rows, very many rows, what is raised that is no Exception."""

from pathlib import Path

import numpy as np
import orjson

from raw_http import ask, connected
from serving import running_replica, write_manifest

IMAGE = """
    from batchedapi_serving import Tensor, batched

    class Model:
        @batched(inputs=Tensor("FP32", [3, 224, 224]), outputs=Tensor("FP32", []), max_batch_size=2)
        def predict(self, x):
            return x.reshape(len(x), -1).sum(axis=1)
"""
ENDING = """
    import asyncio
    from batchedapi_serving import batched

    class Panic(BaseException):
        pass

    RAISED = {"cancelled": asyncio.CancelledError, "exit": SystemExit, "panic": Panic}

    class Model:
        @batched(example=1)
        def predict(self, items):
            for item in items:
                if item in RAISED:
                    raise RAISED[item]
            return items
"""


async def test_an_image_sized_tensor_is_served(tmp_path: Path) -> None:
    """Its example would fill pages, and once was too long for the line it was told on."""
    manifest = write_manifest(tmp_path, IMAGE, {})
    row = np.ones((1, 3, 224, 224), dtype=np.float32)
    body = orjson.dumps({"instances": row}, option=orjson.OPT_SERIALIZE_NUMPY)

    with running_replica(tmp_path, ["-f", str(manifest)]) as replica:
        async with connected(replica.port) as connection:
            response = await connection.post("/predict", body)
        restarts = replica.metrics()["batchedapi_process_restarts_total{role=web}"]

    assert (200, {"predictions": [150528.0]}) == (response.status, response.json())
    assert 0 == restarts


async def test_too_many_rows_are_refused_and_many_are_served(tmp_path: Path) -> None:
    """A body of some hundred kilobytes must not take gigabytes or seconds."""
    manifest = write_manifest(tmp_path, ENDING, {})
    with running_replica(tmp_path, ["-f", str(manifest)]) as replica:
        most = await ask(replica.port, {"instances": [1] * 65_536})
        more = await ask(replica.port, {"instances": [1] * 65_537})

    assert (200, 65_536) == (most.status, len(most.json()["predictions"]))
    assert 413 == more.status
    assert "65536" in more.error["message"]


async def test_what_would_end_a_thread_is_an_answer(tmp_path: Path) -> None:
    """Else a process, and a model that took minutes to load, would end with it."""
    manifest = write_manifest(tmp_path, ENDING, {})
    with running_replica(tmp_path, ["-f", str(manifest)]) as replica:
        failed = [await ask(replica.port, what) for what in ("cancelled", "exit", "panic")]
        after = await ask(replica.port, "on")
        restarts = replica.metrics()["batchedapi_process_restarts_total{role=model}"]

    assert [500] * 3 == [one.status for one in failed]
    assert (200, 0) == (after.status, restarts)
