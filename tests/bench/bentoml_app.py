"""The workload named by BENCH_WORKLOAD behind BentoML: `bentoml serve bentoml_app:Model`.

A batchable API of BentoML takes a list of rows by its name, and answers a list: the body is
`{"rows": [row]}`, and the answer `[value]`. It learns how long to wait, within `max_latency_ms`.
"""

import os
from typing import Any

import bentoml
from workloads import MAX_BATCH, WORKLOADS, batch_of

_MAX_LATENCY_MS = 1000
"""End to end, as BentoML means it: far above what any batch takes, so that nothing is refused."""


@bentoml.service(
    workers=1,
    traffic={"timeout": 30, "max_concurrency": 4096},
    logging={"access": {"enabled": False}},
    metrics={"enabled": False},
)
class Model:
    """One worker, which serves and computes, as it is by default."""

    def __init__(self) -> None:
        self._predictor = WORKLOADS[os.environ["BENCH_WORKLOAD"]].predictor({}, None)

    @bentoml.api(batchable=True, max_batch_size=MAX_BATCH, max_latency_ms=_MAX_LATENCY_MS)
    def predict(self, rows: list[list[float]]) -> list[Any]:
        """One batch: rows in, an answer for each."""
        answers: list[Any] = self._predictor.predict(batch_of(rows)).tolist()
        return answers
