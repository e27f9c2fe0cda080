"""One process loads a model that is fork safe, and the others of a replica are forked from it."""

import asyncio
import contextlib
import errno
import os
import signal
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from batchedapi_serving.processes import Child
from batchedapi_serving.supervisor.fork_server import ForkServer
from raw_http import ask
from serving import (
    Replica,
    end_replica,
    is_alive,
    running_replica,
    start_replica,
    write_manifest,
)

CODE = """
    import os
    import threading
    import time
    from pathlib import Path
    import numpy as np
    from batchedapi_serving import Tensor, batched, endpoint, fork_safe

    @fork_safe
    class Model:
        def __init__(self, config, context):
            self.context = context
            with Path(config["loads"]).open("a") as file:
                file.write("x")
            self.loaded = context.metrics.gauge("models_loaded", "Models in memory.")
            self.loaded.inc()
            context.metrics.counter("files", "Files that were read.").inc(3)
            self.rows = context.metrics.counter("rows", "Rows that were answered.")
            exec(config.get("then", ""))

        @batched(inputs=Tensor("FP32", [2]), outputs=Tensor("FP32", [2]), max_batch_size=2)
        def predict(self, x):
            if x[0, 0] == 13:
                os._exit(71)
            self.rows.inc(len(x))
            return 2 * x

        @endpoint
        def where(self, payload):
            index = os.environ["BATCHEDAPI_WORKER_INDEX"]
            return [os.getpid(), os.getppid(), os.getsid(0), self.context.worker_index, index]

        def decode(self, payload):
            return payload["number"]

        @batched(example=1, decode="decode")
        def double(self, items):
            return [2 * item for item in items]
"""


def manifest(folder: Path, then: str = "", **predictor: Any) -> Path:
    """Two processes, whose constructor runs `then` at last."""
    config = {"loads": str(folder / "loads"), "then": then}
    spec = {"predictor": {"processesPerReplica": 2, "config": config, **predictor}}
    return write_manifest(folder, CODE, spec)


def loads(folder: Path) -> int:
    """How often the constructor was called."""
    return len((folder / "loads").read_text())


def whole(replica: Replica) -> None:
    """Wait until every process has its lanes."""
    replica.wait_for(lambda: replica.metrics().get("batchedapi_lanes") == 2, "no two lanes", 60)


async def places(replica: Replica) -> dict[int, list[Any]]:
    """By index: pid, parent, session, index by context and by environment of each process."""
    found: dict[int, list[Any]] = {}
    async with asyncio.timeout(60):
        while len(found) < 2:
            place = (await ask(replica.port, {}, "/api/where")).json()
            found[place[3]] = place
    return found


async def doubled(replica: Replica) -> bool:
    """Whether it answers, in each way."""
    one = await ask(replica.port, [1, 2], "/api")
    other = await ask(replica.port, {"number": 4}, "/api/double")
    return ([2, 4], 8) == (one.json(), other.json())


@pytest.mark.parametrize("threads", [1, 2])
async def test_all_processes_of_a_replica_are_forked_from_one(tmp_path: Path, threads: int) -> None:
    """The constructor runs once; each fork is the supervisor's child and has an index of its own.

    One that is killed is forked again, and nothing is loaded for it.
    """
    file = manifest(tmp_path, threadsPerProcess=threads)
    with running_replica(tmp_path, ["-f", str(file)]) as replica:
        replica.wait_for(
            lambda: replica.metrics().get("batchedapi_lanes") == 2 * threads, "no lanes", 60
        )
        first = await places(replica)
        os.kill(first[1][0], signal.SIGKILL)
        replica.wait_for(lambda: not is_alive(first[1][0]), "it lives")
        second = await places(replica)

        assert await doubled(replica)
        for index, (pid, parent, session, by_context, by_environment) in second.items():
            assert (replica.pid, pid) == (parent, session)
            assert (index, str(index)) == (by_context, by_environment)
        assert (first[0][0], True) == (second[0][0], first[1][0] != second[1][0])
        assert 1 == loads(tmp_path)
        assert 2 == replica.metrics()["models_loaded"]
        assert 3 == replica.metrics()["files_total"]
        assert replica.metrics()["rows_total"] > 0
        left = replica.children("model")
        assert 3 == len(left)
        assert 0 == replica.stop()
    assert not any(map(is_alive, left))
    log = replica.text()
    assert '"model is shared"' in log
    assert '"role": "model-1"' in log


async def test_without_its_fork_server_a_replica_serves_and_the_next_process_is_a_new_one(
    tmp_path: Path,
) -> None:
    """It is killed like any process, and nobody waits for it."""
    with running_replica(tmp_path, ["-f", str(manifest(tmp_path))]) as replica:
        whole(replica)
        server = min(replica.children("model"))
        os.kill(server, signal.SIGKILL)
        replica.wait_for(lambda: not is_alive(server), "it lives")

        assert await doubled(replica)
        assert 1 == loads(tmp_path)

        os.kill((await places(replica))[0][0], signal.SIGKILL)
        replica.wait_for(lambda: replica.text().count('"model is shared"') == 2, "no new one", 60)
        whole(replica)

        assert await doubled(replica)
        assert 2 == loads(tmp_path)


async def test_a_fork_that_says_that_it_is_unfit_takes_its_server_along(tmp_path: Path) -> None:
    """Every fork might be so; a process that loads anew is not."""
    with running_replica(tmp_path, ["-f", str(manifest(tmp_path))]) as replica:
        whole(replica)

        await ask(replica.port, [13, 0], "/api")
        replica.wait_for(lambda: replica.text().count('"model is shared"') == 2, "no new one", 60)
        whole(replica)

        assert await doubled(replica)
        assert loads(tmp_path) > 1  # by one process or, as the row is tried again, by both


@pytest.mark.parametrize(
    ("then", "reason"),
    [
        (
            "threading.Thread(target=time.sleep, args=(999,), daemon=True, name='mine').start()",
            "a fork would not have the threads that the predictor started: ['mine']",
        ),
        (
            "os.posix_spawn('/bin/sleep', ['sleep', '99'], {})",
            "a fork would share the processes that the predictor started: [",
        ),
        (
            "os.register_at_fork(after_in_child=lambda: time.sleep(99))",
            "a fork did not answer within 5",
        ),
        (
            "os.register_at_fork(after_in_child=lambda: os._exit(3))",
            "a fork was ended with exit code 3",
        ),
        (
            "os.register_at_fork(after_in_child=lambda me=self: setattr(me, 'rows', None))",
            "a fork fails where the process before it did not: predict with a warm-up batch of 1",
        ),
        (
            "import _thread; _thread.start_new_thread(time.sleep, (999,))",
            "a fork would miss threads of libraries, of which 1 run in this process; cpuThreads: 1",
        ),
    ],
)
async def test_a_model_of_which_a_fork_would_miss_something_is_loaded_by_each_process(
    tmp_path: Path, then: str, reason: str
) -> None:
    """It is served as if it were not marked, and the log says why."""
    with running_replica(tmp_path, ["-f", str(manifest(tmp_path, then))]) as replica:
        whole(replica)

        assert await doubled(replica)
        assert 2 == loads(tmp_path) == len(replica.children("model"))
        assert '"each process has a model of its own"' in replica.text()
        assert reason in replica.text().replace('\\"', '"')


def test_a_constructor_that_fails_ends_the_start_as_ever(tmp_path: Path) -> None:
    """The reason is that of the first model process."""
    file = manifest(tmp_path, "raise ValueError('no weights')")
    replica = start_replica(tmp_path, ["-f", str(file)])
    code = replica.process.wait(60)
    end_replica(replica)

    assert 1 == code
    assert "InitFailed: Model(config, context) raised ValueError: no weights" in replica.text()


@contextlib.contextmanager
def server_that_answers(answer: bytes) -> Iterator[ForkServer]:
    """A fork server that answers so, once; for its process is a program that does nothing."""
    server, program = ForkServer(), Child("model-0", "x")
    program.become(os.posix_spawn("/bin/sleep", ["sleep", "60"], {}))
    ours, theirs = socket.socketpair()
    with ours, theirs:
        server.take(program, ours)
        theirs.sendall(answer)
        theirs.shutdown(socket.SHUT_WR)
        yield server
        server.end()


def refusal(server: ForkServer) -> OSError:
    """The error of a fork that cannot be made."""
    control, of_fork = socket.socketpair()
    with control, of_fork, pytest.raises(OSError) as raised:  # noqa: PT011 - its number is looked at
        server.fork(Child("model-1", "x"), 1, of_fork)
    return raised.value


def test_a_fork_that_the_machine_has_no_room_for_is_refused_and_tried_again() -> None:
    """The server is there for the next try."""
    with server_that_answers(b"-11") as server:
        pid = server.process.pid

        assert errno.EAGAIN == refusal(server).errno
        assert pid is not None
        assert is_alive(pid)
    assert (pid, signal.SIGKILL) == os.waitpid(pid, 0)


def test_a_server_that_does_not_answer_is_ended() -> None:
    """The next try is one of a process that loads for itself."""
    with server_that_answers(b"") as server:
        pid = server.process.pid

        assert errno.ECHILD == refusal(server).errno
        assert pid is not None
        assert (pid, signal.SIGKILL) == os.waitpid(pid, 0)
