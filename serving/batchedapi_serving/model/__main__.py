"""Program of a model process: load, warm up, then serve on lanes and on the channel.

Started by the supervisor, not by hand. Arguments: the runtime folder and this process's index.

Every connection is one to the dispatcher's Unix socket. When the web process is replaced the
connections end and are made again; the model stays loaded.
"""

import contextlib
import logging
import os
import socket
import sys
import time
from json import dumps
from pathlib import Path

from batchedapi_serving.errors import LoadError
from batchedapi_serving.logs import configure_logging, log_apart, log_as
from batchedapi_serving.model.forking import Fork, serve_forks
from batchedapi_serving.model.loaded import LoadedPredictor, construct
from batchedapi_serving.model.recent import RecentBatches, RecordedRunner
from batchedapi_serving.model.worker import ChannelLoop, FrameRunner
from batchedapi_serving.processes import (
    CONTROL_DESCRIPTOR,
    LOADED,
    freeze_heap,
    give_memory_back,
    give_way_for_memory,
    kill_with_parent,
)
from batchedapi_serving.settings import ReplicaSettings

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
    descriptor, control, first = os.environ.pop(CONTROL_DESCRIPTOR, None), None, True
    if descriptor is not None:
        control = socket.socket(fileno=int(descriptor))
        control.set_inheritable(False)  # what user code starts has nothing of ours
    try:
        loaded = construct(settings, worker_index, ChannelLoop())
        if control is not None and loaded.values is not None:
            worker_index, control, first = share(loaded, control)
        lanes = loaded.begin(first=first)
    except LoadError as error:
        leave_reason(settings.failure_path(worker_index), error)
        return 1
    log.info("model loaded", extra={"seconds": round(time.monotonic() - loaded.began, 3)})
    freeze_heap()
    # the supervisor starts the next model process, and times the start of this one
    if control is not None:
        control.sendall(LOADED)
        control.close()
    hello = {
        "worker_index": worker_index,
        "pid": os.getpid(),
        "methods": [method.to_json() for method in loaded.methods],
        "warm_up": {name: [tuple(one) for one in of] for name, of in loaded.timings.items()},
    }
    runner = recorded(loaded, settings)
    if loaded.any_async:
        loaded.channel.serve(settings.lanes_path, runner, hello)
    lanes.serve(settings.lanes_path, runner, hello)
    return 0


def recorded(loaded: LoadedPredictor, settings: ReplicaSettings) -> FrameRunner:
    """The runner; that of the first process keeps recent batches, if these are asked for."""
    if settings.compare is None or loaded.context.worker_index > 0:
        return loaded.runner
    recent = RecentBatches(loaded.methods, settings.compare.revision, loaded.served)
    recent.serve(settings.recent_path)
    return RecordedRunner(loaded.runner, recent)


def share(loaded: LoadedPredictor, control: socket.socket) -> Fork:
    """Fork this process for each of the replica, if nothing hinders that.

    Returns:
        In each fork; or in this process, which goes on as what it was.

    Raises:
        LoadError: the warm-up failed.
    """
    problem = loaded.problem_of_sharing()
    if problem is not None:
        log.warning("each process has a model of its own", extra={"reason": problem})
        return Fork(loaded.context.worker_index, control)
    give_memory_back()  # what loading has freed would be copied for each fork that writes there
    freeze_heap()
    fork = serve_forks(control)
    loaded.become(fork.worker_index)
    log_as(f"model-{fork.worker_index}", log)
    return fork


def leave_reason(path: Path, error: LoadError) -> None:
    """Tell the supervisor why there is no predictor; with a full disk the log alone says it."""
    try:
        path.write_text(dumps({"reason": error.reason, "message": str(error)}))
    except OSError as full:
        facts = {"error": repr(full), "reason": error.reason, "text": str(error)}
        log.error("the reason cannot be left", extra=facts)  # noqa: TRY400 - one event with facts


if __name__ == "__main__":
    main(*sys.argv[1:])
