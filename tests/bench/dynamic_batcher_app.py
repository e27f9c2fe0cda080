"""The workload named by BENCH_WORKLOAD behind dynamic_batcher: both of its programs.

`uvicorn dynamic_batcher_app:app` asks, `python dynamic_batcher_app.py` runs batches. REDIS__HOST
and REDIS__PORT say where its Redis is.
"""

import asyncio
import os
from typing import Any

import orjson
from dynamic_batcher import BatchProcessor, DynamicBatcher
from fastapi import FastAPI, Request, Response
from workloads import BATCH_INTERVAL_MS, MAX_BATCH, WORKLOADS, batch_of

app = FastAPI()
batcher = DynamicBatcher()


@app.post("/predict")
async def predict(request: Request) -> Response:
    """Same request and answer as batchedapi: a bare JSON array in, a JSON value out."""
    answer = await batcher.asend(orjson.loads(await request.body()))
    return Response(orjson.dumps(answer), media_type="application/json")


def main() -> None:
    """Run batches until the end."""
    predictor = WORKLOADS[os.environ["BENCH_WORKLOAD"]].predictor({}, None)

    def batch(rows: list[list[float]]) -> list[Any]:
        answers: list[Any] = predictor.predict(batch_of(rows)).tolist()
        return answers

    # Its batch_time is of whole seconds by its annotation, and compared with a float all the same.
    processor = BatchProcessor(batch_size=MAX_BATCH, batch_time=BATCH_INTERVAL_MS / 1000)
    asyncio.run(processor.start_daemon(batch))


if __name__ == "__main__":
    main()
