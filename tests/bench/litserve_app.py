"""The workload named by BENCH_WORKLOAD behind LitServe, on the port given as the argument."""

import os
import sys
from typing import Any

from litserve import LitAPI, LitServer
from workloads import BATCH_INTERVAL_MS, MAX_BATCH, WORKLOADS, batch_of


class Model(LitAPI):
    """Same request and answer as batchedapi: a bare JSON array in, a JSON value out."""

    def setup(self, device: str) -> None:
        """The predictor, once a worker."""
        del device
        self._predictor = WORKLOADS[os.environ["BENCH_WORKLOAD"]].predictor({}, None)

    def decode_request(self, request: list[float], **_: Any) -> list[float]:
        """A row as it came."""
        return request

    def batch(self, inputs: list[list[float]]) -> list[list[float]]:
        """Rows of one batch; LitServe's own makes an array of them only if they are tensors."""
        return list(inputs)

    def predict(self, x: list[list[float]], **_: Any) -> list[Any]:
        """One batch."""
        answers: list[Any] = self._predictor.predict(batch_of(x)).tolist()
        return answers

    def unbatch(self, output: list[Any]) -> list[Any]:
        """An answer for each row."""
        return output

    def encode_response(self, output: Any, **_: Any) -> Any:
        """An answer as it is."""
        return output


if __name__ == "__main__":
    api = Model(max_batch_size=MAX_BATCH, batch_timeout=BATCH_INTERVAL_MS / 1000)
    server = LitServer(api, accelerator="cpu", workers_per_device=1, timeout=30)
    server.run(
        host="127.0.0.1",
        port=int(sys.argv[1]),
        num_api_servers=1,
        generate_client_file=False,
        log_level="warning",
        access_log=False,
    )
