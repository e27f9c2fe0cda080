"""One method's line: its codec, its queue, its door."""

import logging
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from batchedapi_core.batching import BatchPolicy, SizeUnit
from batchedapi_serving.codecs import Codec, codec_for
from batchedapi_serving.dispatch.door import Door
from batchedapi_serving.metrics.recorder import MethodRecorder
from batchedapi_serving.predictor import MethodSpec
from batchedapi_serving.settings import BatchingSettings, ReplicaSettings

if TYPE_CHECKING:
    from batchedapi_serving.dispatch.lane_group import LaneGroup

log = logging.getLogger(__name__)


class MethodLine:
    """See desk.Line; sizes are in the method's own unit."""

    def __init__(
        self,
        spec: MethodSpec,
        settings: ReplicaSettings,
        recorder: MethodRecorder,
        group: "LaneGroup",
    ) -> None:
        own = settings.of_method(spec.name)
        self.spec = spec
        self.name: Final = spec.name
        self.codec: Codec = codec_for(spec, own, settings.name, settings.receipts)
        self.recorder = recorder
        self.group = group
        self.scheduler = group.scheduler
        rows = own.batching.size_unit is SizeUnit.ROWS
        self.method = self.scheduler.add_method(
            spec.name, _policy(spec, own.batching), counts_rows=rows
        )
        self.batcher = self.method.batcher
        self.door = Door(settings.max_concurrency, own.batching.max_latency, recorder)

    def warmed_up(self, timings: Sequence[Sequence[float]]) -> None:
        """A model process was warmed up with batches of these rows, sizes and seconds."""
        for rows, size, seconds in timings:
            self.batcher.warmed_up(int(size if self.method.counts_rows else rows), seconds)

    def update_gauges(self, in_flight: int) -> None:
        """Write the state into the metrics memory; so many requests are not yet answered."""
        effective = self.batcher.effective
        self.recorder.gauges(
            lanes=self.group.at_once,
            queue_rows=self.batcher.queued_rows,
            in_flight=in_flight,
            max_batch_size=min(effective.max_batch_size, self.method.memory.limit_of(None)),
            batch_interval=effective.batch_interval,
        )


def _policy(spec: MethodSpec, batching: BatchingSettings) -> BatchPolicy:
    size = spec.max_batch_size
    return BatchPolicy(
        max_batch_size=size,
        batch_interval=batching.batch_interval,
        strategy=batching.strategy,
        latency_target=batching.max_latency,
        # A method that declares less than others leaves out what it cannot reach.
        preferred_sizes=tuple(n for n in batching.preferred_batch_sizes if n <= size),
        queue_order=batching.queue_order,
    )
