"""The first batches, before anybody waits for them: at real sizes, and with the answers checked."""

import logging
from typing import Protocol

import orjson

from batchedapi_core import contract
from batchedapi_serving.dispatch.frames import Meta
from batchedapi_serving.errors import LoadError
from batchedapi_serving.predictor.api import MethodSpec

log = logging.getLogger(__name__)


class Runner(Protocol):
    """What runs a batch; `model.batch.BatchRunner`."""

    def run(self, rows: int, payload: bytes) -> tuple[Meta, object]:
        """Answer one batch."""


def warm_up(runner: Runner, method: MethodSpec, max_batch_size: int) -> None:
    """Run batches of 1, 2, 4, ... rows up to the maximum, of zeros or of the method's example.

    A method for JSON items without an example cannot be warmed up: nobody knows what it takes.

    Raises:
        LoadError: ShapeProbeFailed or WarmUpFailed, with the size and what came.
    """
    row = _row(method)
    if row is None:
        log.info(
            "no warm-up", extra={"remedy": "@batched(example=...) gives an item to warm up with"}
        )
        return
    for rows in contract.batch_size_buckets(max_batch_size):
        payload = row * rows if method.inputs is not None else b"[%b]" % b",".join([row] * rows)
        meta, _ = runner.run(rows, payload)
        if meta["kind"] == "error":
            reason = "WarmUpFailed" if meta["error"].startswith("raised") else "ShapeProbeFailed"
            raise LoadError(
                reason, f"{method.name} with a warm-up batch of {rows} rows {meta['error']}"
            )


def _row(method: MethodSpec) -> bytes | None:
    if method.inputs is not None:
        return bytes(method.inputs.row_bytes)
    if method.batched and method.example is not None:
        return orjson.dumps(method.example)
    return None
