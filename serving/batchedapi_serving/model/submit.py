"""`context.submit` of a running predictor: rows go to the queue of another of its methods.

During the warm-up there is no queue yet, and rows are answered by that method at once.
"""

import asyncio
from collections.abc import Sequence
from typing import Any, Final

from batchedapi_serving.codecs import Codec, Collated, Results, codec_for
from batchedapi_serving.codecs.submits import answered_rows, rows_frame, submitted_rows
from batchedapi_serving.errors import ServingError
from batchedapi_serving.ipc import Meta, Payload
from batchedapi_serving.model.batch import BatchRunner
from batchedapi_serving.model.worker import ChannelLoop, ConnectionLostError
from batchedapi_serving.predictor import MethodSpec, SubmitError
from batchedapi_serving.settings import ReplicaSettings

_WHERE: Final = (
    "context.submit({!r}): expected to be awaited in an async method of the predictor; write"
    " `async def` for the method that awaits it"
)


class ChannelSubmitter:
    """See Submitter."""

    def __init__(self, channel: ChannelLoop, specs: Sequence[MethodSpec]) -> None:
        self._channel = channel
        self._specs = {spec.name: spec for spec in specs}
        self.local: LocalAnswers | None = None
        """Set while there is no dispatcher yet: during the warm-up."""

    async def submit(self, method: str, rows: Any) -> Any:
        """See Context.submit."""
        if asyncio.get_running_loop() is not self._channel.loop:
            raise SubmitError(500, _WHERE.format(method))
        spec = self._specs.get(method)
        if spec is None:
            served = ", ".join(self._specs)
            raise SubmitError(500, f"there is no method {method!r}; served are {served}")
        meta, payload = rows_frame(spec, rows)
        try:
            if self.local is None:
                answer, body = await self._channel.submit(meta, payload)
            else:
                answer, body = await self.local.answer(meta, b"".join(payload))
        except ConnectionLostError as error:
            raise SubmitError(503, f"{method}: {error}") from error
        return answered_rows(spec, answer, body)


class _FailedError(Exception):
    def __init__(self, meta: Meta) -> None:
        super().__init__(meta["error"])
        self.meta = meta


class LocalAnswers:
    """Answers rows in this process, without a queue."""

    def __init__(
        self, runner: BatchRunner, methods: Sequence[MethodSpec], settings: ReplicaSettings
    ) -> None:
        self._runner = runner
        self._codecs = {
            method.name: codec_for(method, settings.of_method(method.name), settings.name)
            for method in methods
        }

    async def answer(self, meta: Meta, payload: bytes) -> tuple[Meta, bytes]:
        """As the dispatcher would answer a submit's frame."""
        codec = self._codecs[meta["method"]]
        try:
            encoded = submitted_rows(codec, meta, payload)
            rows, shapes = encoded.rows, set(encoded.shapes or ())
            if codec.method.batched and len(shapes) <= 1:
                results = await self._run(codec, codec.collate([encoded.payload]), rows)
            else:  # calls and rows of different shapes run one by one
                parts = (codec.part(encoded.payload, i, i + 1) for i in range(rows))
                first, *others = [
                    await self._run(codec, codec.collate([part]), 1) for part in parts
                ]
                results = first.joined(0, 1, [(other, 0, 1) for other in others])
        except ServingError as error:
            return {"kind": "error", "status": error.status, "error": str(error)}, b""
        except _FailedError as error:
            return error.meta, b""
        answer, buffers = results.to_frame(0, rows)
        return answer, b"".join(buffers)

    async def _run(self, codec: Codec, batch: Collated, rows: int) -> Results:
        method = codec.method
        meta: dict[str, Any] = {"method": method.name, "rows": rows, **batch.meta}
        body = b"".join(batch.buffers)
        buffers: Sequence[Payload]
        if method.is_async:
            result, buffers = await self._runner.run_async(meta, body)
        else:
            result, buffers = await asyncio.to_thread(self._runner.run, meta, body)
        if result["kind"] == "error":
            raise _FailedError(result)
        return codec.results(result, b"".join(buffers))
