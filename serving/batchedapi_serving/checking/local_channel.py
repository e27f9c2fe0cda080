"""A channel without a dispatcher: what a predictor submits is answered by itself, at once."""

from collections.abc import Sequence

from batchedapi_serving.ipc.frames import Meta
from batchedapi_serving.model.batch import BatchRunner
from batchedapi_serving.model.submit import LocalAnswers
from batchedapi_serving.model.worker import ChannelLoop
from batchedapi_serving.predictor import MethodSpec
from batchedapi_serving.settings import ReplicaSettings


class LocalChannel(ChannelLoop):
    """See ChannelLoop; `answer_with` is called once the predictor is loaded."""

    def __init__(self) -> None:
        super().__init__()
        self._answers: LocalAnswers | None = None

    def answer_with(
        self, runner: BatchRunner, methods: Sequence[MethodSpec], settings: ReplicaSettings
    ) -> None:
        """Answer submits with these methods from now on."""
        self._answers = LocalAnswers(runner, methods, settings)

    async def submit(self, meta: Meta, payload: Sequence[bytes]) -> tuple[Meta, bytes]:
        """See ChannelLoop.submit."""
        if self._answers is None:
            return await super().submit(meta, payload)
        return await self._answers.answer(meta, b"".join(payload))
