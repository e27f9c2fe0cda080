"""Program of a model process: load, warm up, then serve on lanes and on the channel.

Started by the supervisor, not by hand. Arguments: the runtime folder and this process's index.

Every connection is one to the dispatcher's Unix socket. When the web process is replaced the
connections end and are made again; the model stays loaded.
"""

import contextlib
import logging
import os
import sys
import time
from collections.abc import Sequence
from functools import partial
from json import dumps
from pathlib import Path

from batchedapi_serving.errors import LoadError
from batchedapi_serving.hardware import visible_gpus
from batchedapi_serving.logs import configure_logging, log_apart
from batchedapi_serving.model.batch import BatchRunner
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
from batchedapi_serving.predictor import Context, MethodSpec
from batchedapi_serving.predictor.metrics import Metrics, Values
from batchedapi_serving.processes import (
    LOADED_DESCRIPTOR,
    freeze_heap,
    give_way_for_memory,
    kill_with_parent,
)
from batchedapi_serving.settings import ReplicaSettings
from batchedapi_serving.standard_descriptors import open_standard_descriptors

log = logging.getLogger(__package__)


def main(runtime: str, index: str) -> None:
    """Serve until ended."""
    kill_with_parent()
    give_way_for_memory()
    settings = ReplicaSettings.read(runtime)
    configure_logging(settings.log_level, f"model-{index}")
    log_apart()
    code = run_model(settings, int(index))
    with contextlib.suppress(Exception):  # user code may have closed it, or put anything there
        sys.stdout.flush()
    os._exit(code)  # user code may have left threads that never end


def run_model(settings: ReplicaSettings, worker_index: int) -> int:
    """Serve batches until the supervisor ends this process.

    Returns:
        1: the predictor could not be started; the reason is in the failure file.
    """
    started = time.monotonic()
    loaded = os.environ.pop(LOADED_DESCRIPTOR, None)
    if loaded is not None:
        os.set_inheritable(int(loaded), False)  # what user code starts has nothing of ours
    channel = ChannelLoop()
    try:
        runner, methods, timings, lanes = load(settings, worker_index, channel)
    except LoadError as error:
        leave_reason(settings.failure_path(worker_index), error)
        return 1
    log.info("model loaded", extra={"seconds": round(time.monotonic() - started, 3)})
    freeze_heap()
    # the supervisor starts the next model process, and times the start of this one
    if loaded is not None:
        os.write(int(loaded), b"\n")
        os.close(int(loaded))
    hello = {
        "worker_index": worker_index,
        "pid": os.getpid(),
        "methods": [method.to_json() for method in methods],
        "warm_up": {name: [tuple(one) for one in found] for name, found in timings.items()},
    }
    if any(method.is_async for method in methods):
        channel.serve(settings.lanes_path, runner, hello)
    lanes.serve(settings.lanes_path, runner, hello)
    return 0


def leave_reason(path: Path, error: LoadError) -> None:
    """Tell the supervisor why there is no predictor; with a full disk the log alone says it."""
    try:
        path.write_text(dumps({"reason": error.reason, "message": str(error)}))
    except OSError as full:
        facts = {"error": repr(full), "reason": error.reason, "text": str(error)}
        log.error("the reason cannot be left", extra=facts)  # noqa: TRY400 - one event with facts


def load(
    settings: ReplicaSettings, worker_index: int, channel: ChannelLoop
) -> tuple[BatchRunner, list[MethodSpec], dict[str, list[WarmUpTime]], LaneThreads]:
    """Import, construct and warm up the predictor.

    Import and constructor run in this thread, the main one; the warm-up where batches will: of
    sync methods in every lane, of async ones on the loop of `channel`, which is started for them.

    Returns:
        What runs batches, its methods, what the warm-up took of those with a latency target, and
        the lanes.

    Raises:
        LoadError: any of it failed; the message says why, and what to do.
    """
    predictor_class = _class_of(settings)
    open_standard_descriptors()  # which user code may have closed, here and below
    methods = _methods_of(predictor_class, settings)
    submitter = ChannelSubmitter(channel, methods)
    context = _context(settings, worker_index, submitter)
    predictor = start_predictor(predictor_class, settings.config, context)
    open_standard_descriptors()
    runner = BatchRunner(Beside(predictor, methods, context.submit), methods)
    any_async = any(method.is_async for method in methods)
    if any_async:
        channel.start()
    lanes = LaneThreads(settings.threads)
    submitter.local = LocalAnswers(runner, methods, settings, lanes)
    timings = {}
    for method in methods:
        size, sizes = method.max_batch_size, settings.warm_up_sizes
        target = settings.of_method(method.name).batching.max_latency
        clock = time.monotonic if target else None
        if method.is_async:
            warming = warm_up_async(runner, method, size, sizes, clock)
            found = lanes.wait(channel.call(warming))
        else:
            found = lanes.each(partial(warm_up, runner, method, size, sizes, clock))
        if found.smallest is not None:
            runner.probes[method.name] = found.smallest
        if found.timings:
            timings[method.name] = found.timings
    if any_async:
        lanes.wait(channel.call(submitter.begin()))
    return runner, methods, timings, lanes


def _class_of(settings: ReplicaSettings) -> type:
    """The user's class, or the one that is made of a model that is served as it is."""
    search = [Path(folder) for folder in settings.search]
    path, format_, model = settings.predictor_path, settings.model_format, settings.model_path
    if path is None and format_ is not None and model is not None:
        from batchedapi_serving import formats  # noqa: PLC0415 - most replicas have a class

        file = formats.ModelFile(
            Path(model), format_, settings.model_trusted, _device(_devices()), settings.config
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


def _context(settings: ReplicaSettings, worker_index: int, submitter: ChannelSubmitter) -> Context:
    devices = _devices()

    def files() -> Values:
        from batchedapi_serving.predictor.files import PredictorFiles  # noqa: PLC0415 - few measure

        return PredictorFiles(settings.predictor_metrics_path, worker_index)

    return Context(
        name=settings.name,
        worker_index=worker_index,
        processes=settings.processes,
        threads=settings.threads,
        device=_device(devices),
        devices=devices,
        model_path=settings.model_path,
        submitter=submitter,
        metrics=Metrics(files),
    )


if __name__ == "__main__":
    main(*sys.argv[1:])
