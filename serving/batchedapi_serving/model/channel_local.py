"""Submits of a predictor that is being warmed up: answered by its own methods, without a queue."""

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from batchedapi_serving.codecs import Collated, Encoded, Results
from batchedapi_serving.dispatch.channel_rows import submitted_rows
from batchedapi_serving.dispatch.desk import Line
from batchedapi_serving.dispatch.frames import Meta, Payload
from batchedapi_serving.errors import ServingError
from batchedapi_serving.predictor.api import MethodSpec


class Runner(Protocol):
    """Runs batches; `model.batch.BatchRunner`."""

    def run(self, meta: Meta, payload: bytes) -> tuple[Meta, Sequence[Payload]]:
        """Answer one batch of a sync method."""

    async def run_async(self, meta: Meta, payload: bytes) -> tuple[Meta, Sequence[bytes]]:
        """Answer one batch of an async method."""


class _FailedError(Exception):
    def __init__(self, meta: Meta) -> None:
        super().__init__(meta["error"])
        self.meta = meta


class LocalAnswers:
    """See channel_submits.Local."""

    def __init__(self, runner: Runner, lines: Mapping[str, Line]) -> None:
        self._runner = runner
        self._lines = lines

    async def answer(self, spec: MethodSpec, meta: Meta, payload: bytes) -> tuple[Meta, bytes]:
        """See Local."""
        line = self._lines[spec.name]
        try:
            encoded = submitted_rows(line, meta, payload)
            results = await self._results(line, encoded)
        except ServingError as error:
            return {"kind": "error", "status": error.status, "error": str(error)}, b""
        except _FailedError as error:
            return error.meta, b""
        answer, buffers = results.to_frame(0, encoded.rows)
        return answer, b"".join(buffers)

    async def _results(self, line: Line, encoded: Encoded) -> Results:
        """Calls and rows of different shapes run one by one, others together."""
        codec, rows, payload = line.codec, encoded.rows, encoded.payload
        if line.spec.batched and len(set(encoded.shapes or ())) <= 1:
            return await self._run(line, codec.collate([payload]), rows)
        parts = [
            await self._run(line, codec.collate([codec.part(payload, i, i + 1)]), 1)
            for i in range(rows)
        ]
        first, *others = parts
        return first.joined(0, 1, [(part, 0, 1) for part in others])

    async def _run(self, line: Line, batch: Collated, rows: int) -> Results:
        meta: dict[str, Any] = {"method": line.spec.name, "rows": rows, **batch.meta}
        body = b"".join(batch.buffers)
        buffers: Sequence[Payload]
        if line.spec.is_async:
            result, buffers = await self._runner.run_async(meta, body)
        else:
            result, buffers = await asyncio.to_thread(self._runner.run, meta, body)
        if result["kind"] == "error":
            raise _FailedError(result)
        return line.codec.results(result, b"".join(buffers))
