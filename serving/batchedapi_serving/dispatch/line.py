"""One method's line: its queue, its door, what is learned about its sizes."""

import logging
from collections.abc import Hashable, Sequence
from typing import TYPE_CHECKING, Final

from batchedapi_core.batching import (
    Batcher,
    BatchPolicy,
    Entry,
    Isolation,
    Lanes,
    SizeUnit,
    split_parts,
)
from batchedapi_serving.codecs import Codec, Decoded, codec_for
from batchedapi_serving.dispatch.door import Door
from batchedapi_serving.dispatch.jobs import Job, Part, PartEntry
from batchedapi_serving.metrics.recorder import MethodRecorder
from batchedapi_serving.predictor import MethodSpec
from batchedapi_serving.settings import BatchingSettings, ReplicaSettings

if TYPE_CHECKING:
    from batchedapi_serving.dispatch.lane_group import LaneGroup

log = logging.getLogger(__name__)
_SUSPECTED_SHAPES: Final = 256


class HalvesOfBatch:
    """The two halves of a batch that ran out of memory."""

    __slots__ = ("missing", "shape", "size")

    def __init__(self, shape: Hashable, size: int) -> None:
        self.shape = shape
        self.size = size
        """Of the whole."""
        self.missing = 2
        """Halves that have not yet run with success."""


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
        self.batcher = _batcher(spec, own.batching, group.lanes)
        self.door = Door(settings.max_concurrency, own.batching.max_latency, recorder)
        self.isolation = Isolation()
        self.awaited = 0
        """While the group waits: ask again only when so much is queued here."""
        self.max_size: Final = self.batcher.policy.max_batch_size
        self.counts_rows: Final = own.batching.size_unit is SizeUnit.ROWS
        self._suspected: dict[Hashable, int] = {}
        self.limited = False
        """Whether memory ever ran out, of whatever shape; until then at_most changes nothing."""

    # ------------------------------------------------------------ requests

    def size_of(self, decoded: Decoded) -> int:
        """What a request counts."""
        if not self.counts_rows:
            return 1
        return decoded.rows if decoded.sizes is None else sum(decoded.sizes)

    def arrive(self, job: Job, decoded: Decoded, size: int, now: float) -> None:
        """Queue an admitted request, in parts if it is too large or its rows differ in shape."""
        shape: Hashable = None
        if self.limited or size > self.max_size or decoded.shapes is not None:
            if not self._in_one_piece(decoded.shapes, size):
                self._arrive_parts(job, decoded, now)
                return
            shape = None if decoded.shapes is None else decoded.shapes[0]
        entry: PartEntry = Entry(
            Part(job, decoded.payload), decoded.rows, size, job.client, now, job.deadline, shape
        )
        job.entries = (entry,)
        self.batcher.arrive(entry, now)

    def _in_one_piece(self, shapes: Sequence[Hashable] | None, size: int) -> bool:
        if shapes is None:
            return size <= self.limit_of(None)
        return size <= self.limit_of(shapes[0]) and _alike(shapes)

    def _arrive_parts(self, job: Job, decoded: Decoded, now: float) -> None:
        rows, sizes, shapes = decoded.rows, decoded.sizes, decoded.shapes
        if not self.counts_rows:
            spans = [(a, b, 1, shape) for a, b, _, shape in split_parts(rows, shapes, rows)]
        else:
            limit = min(map(self.limit_of, shapes or (None,)))
            spans = list(split_parts(rows if sizes is None else sizes, shapes, limit))
        if len(spans) > 1:
            job.missing = rows
        part, payload = self.codec.part, decoded.payload
        job.entries = [
            Entry(
                Part(job, part(payload, start, stop) if len(spans) > 1 else payload, start),
                stop - start,
                size,
                job.client,
                now,
                job.deadline,
                shape,
            )
            for start, stop, size, shape in spans
        ]
        self.batcher.arrive_parts(job.entries, now)

    # ------------------------------------------------------------ memory

    def limit_of(self, shape: Hashable) -> int:
        """Size of the largest batch of that shape."""
        return self.at_most(self.batcher.limit_of(shape), shape)

    def at_most(self, size: int, shape: Hashable) -> int:
        """`size`, or what is suspected to be the most that memory has room for."""
        return min(size, self._suspected.get(shape, size)) if self._suspected else size

    def ran_out_of_memory(self, shape: Hashable, size: int) -> None:
        """A batch of `size` was too large, or one row of it: until that is known, half of it."""
        half = (size + 1) // 2
        if size == 1 or half >= self.limit_of(shape):  # 1: one request of many rows
            return
        if len(self._suspected) >= _SUSPECTED_SHAPES:
            del self._suspected[next(iter(self._suspected))]
        self._suspected[shape] = half
        self.limited = True
        log.warning(
            "batch ran out of memory",
            extra={"method": self.name, "size": size, "max_batch_size": half, "shape": str(shape)},
        )

    def halves_ran(self, pair: HalvesOfBatch) -> None:
        """A half of what ran out of memory did not; after the other half, the size was at fault."""
        pair.missing -= 1
        half = (pair.size + 1) // 2
        if pair.missing == 0 and pair.size > 1 and half < self.batcher.limit_of(pair.shape):
            self.batcher.limit(pair.shape, half)

    def ran_out_of_memory_alone(self, shape: Hashable) -> None:
        """One row was at fault, and not the size: a client must not shrink everybody's batches."""
        self._suspected.pop(shape, None)

    def least_seconds(self, size: int, patience: float) -> float:
        """How long before its deadline a row must be dispatched to be worth running.

        In an overload the oldest rows, whose turn it is, are those about to expire: run too late
        they would be answered 504, and take the place of rows that could be answered. At most half
        of the shortest timeout, `patience`, so that an estimate that is wrong cannot refuse
        everything for ever.
        """
        seconds = self.batcher.service.at_least(size)
        return seconds if 2 * seconds < patience else patience / 2

    def warmed_up(self, timings: Sequence[Sequence[float]]) -> None:
        """A model process was warmed up with batches of these rows, sizes and seconds."""
        for rows, size, seconds in timings:
            self.batcher.warmed_up(int(size if self.counts_rows else rows), seconds)

    def update_gauges(self, in_flight: int) -> None:
        """Write the state into the metrics memory; so many requests are not yet answered."""
        effective = self.batcher.effective
        self.recorder.gauges(
            lanes=self.group.at_once,
            queue_rows=self.batcher.queued_rows,
            in_flight=in_flight,
            max_batch_size=min(effective.max_batch_size, self.limit_of(None)),
            batch_interval=effective.batch_interval,
        )


def _batcher(spec: MethodSpec, batching: BatchingSettings, lanes: Lanes) -> Batcher[Part]:
    size = (batching.max_batch_size or spec.max_batch_size) if spec.batched else 1
    return Batcher(
        BatchPolicy(
            max_batch_size=size,
            batch_interval=batching.batch_interval,
            strategy=batching.strategy,
            latency_target=batching.max_latency,
            # A method that declares less than others leaves out what it cannot reach.
            preferred_sizes=tuple(n for n in batching.preferred_batch_sizes if n <= size),
            queue_order=batching.queue_order,
        ),
        lanes,
    )


def _alike(shapes: Sequence[Hashable]) -> bool:
    first = shapes[0]
    return all(shape == first for shape in shapes)
