"""The workload named by BENCH_WORKLOAD behind mosec, with orjson in place of the standard json."""

import os
from typing import Any

import orjson
from mosec import Server, Worker
from workloads import BATCH_INTERVAL_MS, MAX_BATCH, WORKLOADS, batch_of


class Model(Worker):
    """Same request and answer as batchedapi: a bare JSON array in, a JSON value out."""

    def __init__(self) -> None:
        self._predictor = WORKLOADS[os.environ["BENCH_WORKLOAD"]].predictor({}, None)

    def deserialize(self, data: bytes) -> Any:
        """JSON of one request."""
        return orjson.loads(data)

    def serialize(self, data: Any) -> bytes:
        """JSON of one answer."""
        return orjson.dumps(data)

    def forward(self, data: list[list[float]]) -> list[Any]:
        """One batch."""
        answers: list[Any] = self._predictor.predict(batch_of(data)).tolist()
        return answers


if __name__ == "__main__":
    server = Server()  # type: ignore[no-untyped-call]  # mosec is annotated in parts
    server.append_worker(Model, num=1, max_batch_size=MAX_BATCH, max_wait_time=BATCH_INTERVAL_MS)
    server.run()  # type: ignore[no-untyped-call]  # mosec is annotated in parts
