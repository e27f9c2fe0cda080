"""A predictor from its import to the threads that run its batches.

What needs no thread of ours comes first: import, constructor, and the warm-up of sync methods where
processes share the model. A fork goes on from there, with lanes and a channel of its own.
"""

import asyncio
import contextlib
import os
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Final

from batchedapi_serving.codecs import codec_of
from batchedapi_serving.errors import LoadError
from batchedapi_serving.hardware import visible_gpus
from batchedapi_serving.ipc import Meta, Payload
from batchedapi_serving.metrics import slots
from batchedapi_serving.model.batch import BatchRunner
from batchedapi_serving.model.compared import compare
from batchedapi_serving.model.forking import MovableValues, hindrance, problem_of_fork
from batchedapi_serving.model.loading import (
    MAX_METHODS,
    load_class,
    program_of,
    served_methods,
    start_predictor,
)
from batchedapi_serving.model.submit import Beside, ChannelSubmitter, LocalAnswers, with_calls
from batchedapi_serving.model.warmup import WarmUpTime, warm_up, warm_up_async
from batchedapi_serving.model.worker import ChannelLoop, LaneThreads
from batchedapi_serving.orphans import WORKER_INDEX
from batchedapi_serving.predictor import Context, MethodSpec
from batchedapi_serving.predictor.api import is_fork_safe
from batchedapi_serving.predictor.metrics import Metrics, Values
from batchedapi_serving.settings import ReplicaSettings
from batchedapi_serving.standard_descriptors import open_standard_descriptors

PATIENCE: Final = 5.0
"""Seconds, and three times the warm-up, that a fork has for the same."""


@dataclass(slots=True)
class LoadedPredictor:
    """A predictor that is constructed."""

    settings: ReplicaSettings
    context: Context
    channel: ChannelLoop
    methods: list[MethodSpec]
    runner: BatchRunner
    submitter: ChannelSubmitter
    values: MovableValues | None
    """Of its metrics; None: its class is not fork safe, and its metrics are in files already."""
    began: float
    """When it began to load, or this process was forked: monotonic, in seconds."""
    timings: dict[str, list[WarmUpTime]] = field(default_factory=dict)
    """By method with a latency target, times of warm-up batches."""
    served: list[str] = field(default_factory=list)
    """Other revisions that have served, where revisions are compared."""
    _warm: bool = False
    """Sync methods are warm in the main thread."""

    @property
    def any_async(self) -> bool:
        """Whether there is need of the channel."""
        return any(method.is_async for method in self.methods)

    def problem_of_sharing(self) -> str | None:
        """Warm up, and do it again in a fork: why processes cannot share the model; None: they can.

        Raises:
            LoadError: the warm-up failed.
        """
        sync = [method for method in self.methods if not method.is_async]
        began = time.monotonic()
        self._warm_up(sync, LaneThreads(1))
        self._warm = True

        def again() -> str | None:
            try:
                self._warm_up(sync, LaneThreads(1))
            except LoadError as error:
                return f"fails where the process before it did not: {error}"
            return None

        patience = PATIENCE + 3 * (time.monotonic() - began)
        return hindrance(self.context.devices) or problem_of_fork(again, patience)

    def become(self, worker_index: int) -> None:
        """Be process `worker_index`: this is a fork of the process in which it was loaded."""
        self.began = time.monotonic()
        object.__setattr__(self.context, "worker_index", worker_index)
        os.environ[WORKER_INDEX] = str(worker_index)
        self.channel.loop = asyncio.new_event_loop()  # the other's descriptors are shared

    def begin(self, *, first: bool = True) -> LaneThreads:
        """Start the threads of lanes and channel, and warm up what is not warm.

        Args:
            first: Of the processes that share what was loaded.

        Raises:
            LoadError: the warm-up failed, or this revision is worse than the one before.
        """
        if self.values is not None:
            opened = partial(_files, self.settings, self.context.worker_index)
            self.values.move(opened, first=first)
        if self.any_async:
            self.channel.start()
        lanes = LaneThreads(self.settings.threads)
        self.submitter.local = LocalAnswers(self.runner, self.methods, self.settings, lanes)
        warm = self._warm and self.settings.threads == 1
        self._warm_up([one for one in self.methods if one.is_async or not warm], lanes)
        self._compare(lanes)
        if self.any_async:
            lanes.wait(self.channel.call(self.submitter.begin()))
        return lanes

    def _compare(self, lanes: LaneThreads) -> None:
        """Compare the revision, once a replica: one that was ready is not held any more."""
        settings, file = self.settings.compare, self.settings.served_path
        if settings is None or self.context.worker_index > 0:
            return
        was_ready = slots.map_memory(self.settings.metrics_path)[slots.READY]
        if not was_ready:
            self.served = compare(settings, self.methods, partial(self._timed, lanes))
        with contextlib.suppress(OSError):  # a full disk
            if was_ready:
                self.served = file.read_text().split()
            else:
                file.write_text(" ".join(self.served))

    def _timed(
        self, lanes: LaneThreads, method: MethodSpec, meta: Meta, payload: bytes
    ) -> tuple[Meta, Sequence[Payload], float]:
        """The answer to a batch, where its method runs, and in how many seconds."""

        def run() -> tuple[Meta, Sequence[Payload], float]:
            began = time.perf_counter()
            return *self.runner.run(meta, payload), time.perf_counter() - began

        async def run_async() -> tuple[Meta, Sequence[Payload], float]:
            began = time.perf_counter()
            return *await self.runner.run_async(meta, payload), time.perf_counter() - began

        return lanes.wait(self.channel.call(run_async())) if method.is_async else lanes.call(run)

    def _warm_up(self, methods: Sequence[MethodSpec], lanes: LaneThreads) -> None:
        """Of sync methods in every lane, of async ones on the loop of the channel."""
        for method in methods:
            size, sizes = method.max_batch_size, self.settings.warm_up_sizes
            target = self.settings.of_method(method.name).batching.max_latency
            clock = time.monotonic if target or codec_of(method).pads_to else None
            if method.is_async:
                warming = warm_up_async(self.runner, method, size, sizes, clock)
                found = lanes.wait(self.channel.call(warming))
            else:
                found = lanes.each(partial(warm_up, self.runner, method, size, sizes, clock))
            if found.smallest is not None:
                self.runner.probes[method.name] = found.smallest
            if found.timings:
                self.timings[method.name] = found.timings


def construct(
    settings: ReplicaSettings, worker_index: int, channel: ChannelLoop
) -> LoadedPredictor:
    """Import the predictor's class and call it, in this thread, the main one.

    Raises:
        LoadError: any of it failed; the message says why, and what to do.
    """
    began = time.monotonic()
    predictor_class = _class_of(settings)
    open_standard_descriptors()  # which user code may have closed, here and below
    methods = _methods_of(predictor_class, settings)
    submitter = ChannelSubmitter(channel, methods)
    values = MovableValues() if is_fork_safe(predictor_class) else None
    context = _context(settings, worker_index, submitter, values)
    predictor = start_predictor(predictor_class, settings.config, context)
    open_standard_descriptors()
    runner = BatchRunner(Beside(predictor, methods, context.submit), methods)
    return LoadedPredictor(settings, context, channel, methods, runner, submitter, values, began)


def _class_of(settings: ReplicaSettings) -> type:
    """The user's class, or the one that is made of a model that is served as it is."""
    search = [Path(folder) for folder in settings.search]
    path, model = settings.predictor_path, settings.model
    if path is None and model is not None and model.format is not None and model.path is not None:
        from batchedapi_serving import formats  # noqa: PLC0415 - most replicas have a class

        file = formats.ModelFile(
            Path(model.path), model.format, model.trusted, _device(_devices()), settings.config
        )
        return formats.class_of(file)
    path = path or ""  # a manifest has one of the two
    sys.argv = [program_of(path, search)]  # ours are nothing to user code
    return load_class(path, search)


def _devices() -> tuple[str, ...]:
    return tuple(f"cuda:{i}" for i in range(len(visible_gpus())))


def _device(devices: Sequence[str]) -> str:
    return devices[0] if devices else "cpu"


def _methods_of(predictor_class: type, settings: ReplicaSettings) -> list[MethodSpec]:
    methods = with_calls(predictor_class, served_methods(predictor_class, settings))
    if len(methods) > MAX_METHODS:
        raise LoadError(
            "ImportFailed",
            f"{predictor_class.__name__}: expected at most {MAX_METHODS} methods, of which one with"
            f" decode or encode counts twice, got {len(methods)}",
        )
    streams = [method.name for method in methods if method.streams]
    if settings.queue is not None and streams:
        raise LoadError(
            "ImportFailed",
            f"{', '.join(streams)}: expected no method that streams beside"
            " spec.serverSideBatching.queue, through which answers come whole; leave the queue out,"
            " or serve what streams by an API of its own",
        )
    return methods


def _context(
    settings: ReplicaSettings,
    worker_index: int,
    submitter: ChannelSubmitter,
    values: MovableValues | None,
) -> Context:
    devices = _devices()

    def opened() -> Values:
        if values is None or values.moved:
            return _files(settings, context.worker_index)
        return values

    context = Context(
        name=settings.name,
        worker_index=worker_index,
        processes=settings.processes,
        threads=settings.threads,
        device=_device(devices),
        devices=devices,
        model_path=None if settings.model is None else settings.model.path,
        submitter=submitter,
        metrics=Metrics(opened),
    )
    return context


def _files(settings: ReplicaSettings, worker_index: int) -> Values:
    from batchedapi_serving.predictor.files import PredictorFiles  # noqa: PLC0415 - few measure

    return PredictorFiles(settings.predictor_metrics_path, worker_index)
