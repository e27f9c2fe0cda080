"""Model processes as they are: started as programs, in front of a dispatcher over real sockets."""

import asyncio
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import orjson
import pytest

from batchedapi_core.batching import (
    Client,
    scheduler,
)
from batchedapi_serving.codecs import Wire
from batchedapi_serving.dispatch.engine_server import EngineServer
from batchedapi_serving.dispatch.lane_connection import LaneConnection
from batchedapi_serving.dispatch.remote import RemoteEngine
from batchedapi_serving.processes import CONTROL_DESCRIPTOR, EXIT_UNFIT, LOADED
from model_process import HEAD, Asked, ModelProcess, Web, settings_in, until, web

PREDICTOR = """
import asyncio
import os
import threading
from pathlib import Path

import numpy as np

from batchedapi_serving import ItemError, Tensor, batched
from batchedapi_serving.predictor import SubmitError

PATIENCE = 10.0  # seconds
PAIR = Tensor("FP32", [2])
MEGABYTE = Tensor("FP32", [256, 1024])


class Composed:
    def __init__(self, config, context):
        self.context = context
        self.folder = Path(config["folder"])
        self.both = threading.Barrier(2)  # raises for who waits in it alone

    async def predict(self, payload, query_params, headers):
        do, submit = payload["do"], self.context.submit
        try:
            return await getattr(self, "do_" + do)(payload, submit)
        except SubmitError as error:
            return {"status": error.status, "error": error.message}

    async def do_double(self, payload, submit):
        rows = await submit("double", payload["rows"])
        return [row.message if isinstance(row, ItemError) else row for row in rows]

    async def do_parallel(self, payload, submit):
        one, two = await asyncio.gather(submit("nap", [1]), submit("rest", [2]))
        return {"rows": [*one, *two]}

    async def do_scale(self, payload, submit):
        array = await submit("scale", np.array(payload["rows"]))
        array += 0  # the caller's own
        return {"type": type(array).__name__, "dtype": array.dtype.str, "rows": array.tolist()}

    async def do_named(self, payload, submit):
        answer = await submit("named", {"a": [[1, 2]], "b": np.ones((1, 2), "float64")})
        return {name: array.tolist() for name, array in answer.items()}

    async def do_call(self, payload, submit):
        return await submit("single", [1, 2])

    async def do_itself(self, payload, submit):
        return await submit("predict", [{"do": "itself"}])

    async def do_circle(self, payload, submit):
        return [str(row) for row in await submit("partner", ["x"])]

    async def do_missing(self, payload, submit):
        return await submit("absent", [1])

    async def do_wrong(self, payload, submit):
        return await submit("scale", [[1, 2, 3]])

    async def do_text(self, payload, submit):
        return await submit("scale", "text")

    async def do_empty(self, payload, submit):
        return await submit("double", [])

    async def do_elsewhere(self, payload, submit):
        def in_a_thread():
            return asyncio.run(submit("double", [1]))

        return await asyncio.to_thread(in_a_thread)

    async def do_raises(self, payload, submit):
        return await submit("raises", [1])

    async def do_wait(self, payload, submit):
        try:
            (self.folder / "begun").touch()
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            (self.folder / "cancelled").touch()
            raise

    async def do_await_hang(self, payload, submit):
        try:
            (self.folder / "begun").touch()
            return await submit("wait", [1])
        except asyncio.CancelledError:
            (self.folder / "cancelled").touch()
            raise

    async def do_score(self, payload, submit):
        return Path("/proc/self/oom_score_adj").read_text()

    @batched(example="warm")
    async def partner(self, items):
        if items[0] == "warm":
            rows = await self.context.submit("double", [21])
            (self.folder / "warmed").write_text(str(rows[0]["value"]))
            return items
        return [str(await self.context.submit("predict", [{"do": "circle"}])) for _ in items]

    @batched(example=1)
    def double(self, items):
        return [
            ItemError(422, "negative") if i < 0 else {"value": 2 * i, "batch": len(items)}
            for i in items
        ]

    @batched
    def nap(self, items):
        self.both.wait(PATIENCE)
        return items

    @batched
    def rest(self, items):
        self.both.wait(PATIENCE)
        return items

    @batched
    async def wait(self, items):
        await asyncio.sleep(60)

    @batched
    def raises(self, items):
        raise ValueError("no")

    @batched(inputs=PAIR, outputs=PAIR)
    def scale(self, rows):
        return rows * 10

    @batched(inputs={"a": PAIR, "b": PAIR}, outputs={"sum": PAIR, "difference": PAIR})
    def named(self, arrays):
        return {"sum": arrays["a"] + arrays["b"], "difference": arrays["a"] - arrays["b"]}

    @batched(inputs=MEGABYTE, outputs=MEGABYTE, max_batch_size=2)
    def large(self, rows):
        return rows + 1

    async def single(self, payload, query_params, headers):
        return payload + 1

    @batched
    def dies(self, items):
        os._exit(7)
"""


@pytest.fixture(scope="module")
def model() -> Iterator[ModelProcess]:
    """One process for many tests: each test is a web process more to which it connects."""
    process = ModelProcess(PREDICTOR)
    yield process
    process.close()


def oom_score() -> int:
    """The OOM score of this process, from which the model process was started."""
    return int(Path("/proc/self/oom_score_adj").read_text())


async def test_a_predictor_with_many_methods_serves_each(model: ModelProcess) -> None:
    """N25: one process, several methods, each of its own kind."""
    async with web(model) as front:
        doubled = front.ask("double", 4)
        scaled = front.ask("scale", {"instances": [[1, 2], [3, 4]]})
        named = front.ask("named", {"a": [5, 6], "b": [1, 2]})

        assert {"value": 8, "batch": 1} == await doubled.value()
        assert {"predictions": [[10, 20], [30, 40]]} == await scaled.value()
        assert {"sum": [6, 8], "difference": [4, 4]} == await named.value()


async def test_submitted_rows_are_batched_with_those_of_others(model: ModelProcess) -> None:
    """N10, N28: a predictor's own rows wait in the queue that its clients' rows wait in."""
    async with web(model) as front:
        asked = [front.ask(None, {"do": "double", "rows": [i]}) for i in range(4)]
        direct = front.ask("double", 9)

        rows = [row for each in asked for row in await each.value()]
        seen = await direct.value()

        assert [0, 2, 4, 6] == [row["value"] for row in rows]
        assert 18 == seen["value"]
        assert max(row["batch"] for row in rows) >= 2


async def test_an_item_error_stays_in_its_row(model: ModelProcess) -> None:
    """One bad row of a submit is one bad row: the caller decides what becomes of it."""
    async with web(model) as front:
        rows = await front.ask(None, {"do": "double", "rows": [1, -1, 2]}).value()

        assert (2, "negative", 4) == (rows[0]["value"], rows[1], rows[2]["value"])


async def test_gathered_submits_run_at_the_same_time(model: ModelProcess) -> None:
    """N28: each of the two methods goes on only when the other one runs as well."""
    async with web(model) as front:
        answer = await front.ask(None, {"do": "parallel"}).value()

        assert [1, 2] == answer["rows"]


async def test_async_calls_run_side_by_side(model: ModelProcess) -> None:
    """N10: parallel at the endpoint: many wait at once, on no thread each."""
    async with web(model) as front:
        waiting = [front.ask(None, {"do": "wait"}) for _ in range(20)]
        answered = front.ask(None, {"do": "double", "rows": [1]})

        assert 2 == (await answered.value())[0]["value"]
        for each in waiting:
            assert each.handle is not None
            front.dispatcher.cancel(each.handle)


async def test_arrays_come_back_as_arrays(model: ModelProcess) -> None:
    """The method's own kind: what NumPy code put in and takes out, of the declared type."""
    async with web(model) as front:
        scaled = await front.ask(None, {"do": "scale", "rows": [[1, 2], [3, 4]]}).value()
        named = await front.ask(None, {"do": "named"}).value()

        assert {"type": "ndarray", "dtype": "<f4", "rows": [[10, 20], [30, 40]]} == scaled
        assert {"sum": [[2, 3]], "difference": [[0, 1]]} == named


@pytest.mark.parametrize(
    ("do", "status", "words"),
    [
        ("itself", 422, "circle: predict -> predict"),
        ("missing", 500, "there is no method 'absent'; served are"),
        ("wrong", 422, "rows"),
        ("text", 422, "expected what 'scale' takes, got str"),
        ("empty", 422, "at least one"),
        ("elsewhere", 500, "expected to be awaited in an async method"),
        ("raises", 500, "ValueError"),
    ],
)
async def test_a_submit_that_cannot_be_answered_says_why(
    model: ModelProcess, do: str, status: int, words: str
) -> None:
    """A SubmitError with the status that a client would get, and the remedy; never a hang."""
    async with web(model) as front:
        answer = await front.ask(None, {"do": do}).value()

        assert status == answer["status"]
        assert words in answer["error"]


async def test_methods_that_would_wait_for_each_other_are_refused(model: ModelProcess) -> None:
    """A circle through two queues would hold both for ever; the error names the whole of it."""
    async with web(model) as front:
        answer = await front.ask(None, {"do": "circle"}).value()

        assert "predict -> partner -> predict" in json.dumps(answer)


async def test_what_its_client_no_longer_waits_for_is_cancelled(model: ModelProcess) -> None:
    """N09: a call that nobody waits for ends, and so does what it submitted."""
    begun, mark = model.folder / "begun", model.folder / "cancelled"
    async with web(model) as front:
        for do in ("wait", "await_hang"):
            begun.unlink(missing_ok=True)
            mark.unlink(missing_ok=True)
            asked = front.ask(None, {"do": do})
            await until(begun.exists)
            assert asked.handle is not None
            front.dispatcher.cancel(asked.handle)

            await until(mark.exists)
            assert [] == asked.answers


async def test_the_model_is_there_for_the_next_web_process(model: ModelProcess) -> None:
    """When the web process is replaced connections are made again; the model stays loaded."""
    async with web(model) as front:
        front.ask(None, {"do": "wait"})
        await asyncio.sleep(0.05)

    async with web(model) as front:
        answer = await front.ask(None, {"do": "double", "rows": [3]}).value()

    assert 6 == answer[0]["value"]
    assert model.process.poll() is None


async def test_methods_are_warmed_up_before_it_connects(model: ModelProcess) -> None:
    """An async method may submit in its warm-up, when there is no queue yet."""
    async with web(model):
        assert "42" == (model.folder / "warmed").read_text()


async def test_large_rows_arrive_as_they_were_sent(model: ModelProcess) -> None:
    """A megabyte a row, so by shared memory; the second batch must not see the first one's."""
    async with web(model) as front:
        for value in (1, 2, 3):
            answer = await front.ask("large", [[value] * 1024] * 256).value()

            assert [value + 1] * 1024 == answer[0] == answer[-1]


async def test_a_model_process_gives_way_when_memory_runs_out(model: ModelProcess) -> None:
    """S6: the kernel ends it, and not the supervisor or a web process."""
    async with web(model) as front:
        score = int(await front.ask(None, {"do": "score"}).value())

        assert min(1000, oom_score() + 500) == score


async def test_rows_of_two_web_processes_share_a_batch(model: ModelProcess) -> None:
    """D18, N15: decoded in two places, queued and run in one; tensors, items and shapes alike."""
    settings = model.settings
    async with web(model) as front:
        served = EngineServer(front.dispatcher, lambda _: None)
        loop = asyncio.get_running_loop()
        settings.engine_path.unlink(missing_ok=True)
        server = await loop.create_unix_server(served.protocol, str(settings.engine_path))
        far = RemoteEngine(settings, lambda: None)
        running = asyncio.create_task(far.run())
        await until(lambda: bool(far.methods))

        def ask_far(method: str, body: Any) -> Asked:
            asked, served = Asked(), far.served(method)
            decoded = served.codec.decode(Wire.PLAIN, HEAD, orjson.dumps(body))
            asked.handle = far.submit(served, decoded, Client(), asked)
            return asked

        here = [front.ask("double", i) for i in range(3)]
        there = [ask_far("double", i) for i in range(3)]
        named = ask_far("named", {"a": [5, 6], "b": [1, 2]})
        single = ask_far("predict", {"do": "double", "rows": [5]})

        near_rows = [await each.value() for each in here]
        far_rows = [await each.value() for each in there]
        assert [0, 2, 4] == [row["value"] for row in near_rows]
        assert [0, 2, 4] == [row["value"] for row in far_rows]
        assert max(row["batch"] for row in far_rows) > 3
        assert {"sum": [6, 8], "difference": [4, 4]} == await named.value()
        assert 10 == (await single.value())[0]["value"]
        running.cancel()
        server.close()
        await asyncio.sleep(0.01)


async def test_after_a_death_every_request_is_answered_once() -> None:
    """S1: rows on a lane and calls on the channel alike; who died of its own row gets a 500."""
    process = ModelProcess(PREDICTOR)
    try:
        async with web(process) as front:
            slow = [front.ask(None, {"do": "parallel"}) for _ in range(3)]
            await asyncio.sleep(0.05)
            process.process.send_signal(signal.SIGKILL)
            process.restart()

            for each in slow:
                assert [1, 2] == (await each.value())["rows"]
            assert all(len(each.answers) == 1 for each in slow)
    finally:
        process.close()


AHEAD = """
    import time
    from pathlib import Path
    from batchedapi_serving import Tensor, batched

    MEGABYTE = Tensor("FP32", [256, 1024])

    class Composed:
        def __init__(self, config, context):
            self.log = Path(config["folder"]) / "log"

        async def predict(self, payload, query_params, headers):
            return payload

        @batched(max_batch_size=4)
        def slow(self, items):
            with self.log.open("a") as log:
                log.write(f"{items}\\n")
            time.sleep(0.3)
            return items

        @batched(inputs=MEGABYTE, outputs=MEGABYTE, max_batch_size=1)
        def large(self, rows):
            time.sleep(0.1)
            return rows + 1
"""
"""Batches that take long enough for the next to be on its way."""


def something_ahead(front: Web) -> bool:
    """Whether a batch waits at a lane."""
    return front.dispatcher._sync.scheduler._ahead is not None


async def test_a_batch_ahead_of_a_death_runs_once_and_all_are_answered(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It lay in a socket that nobody will read, and is first in its queue again."""
    monkeypatch.setattr(scheduler, "LONGEST_AHEAD", 60.0)
    process = ModelProcess(AHEAD, threads=1)
    log = process.folder / "log"
    try:
        async with web(process) as front:
            learned = [front.ask("slow", -n) for n in range(4)]
            await learned[-1].answer()
            asked = [front.ask("slow", n) for n in range(12)]
            await until(lambda: something_ahead(front) and "[0, 1, 2, 3]" in log.read_text())
            process.process.send_signal(signal.SIGKILL)
            process.restart()

            assert list(range(12)) == [await one.value() for one in asked]
            ran = [json.loads(line) for line in log.read_text().splitlines()]
            assert [[0, 1, 2, 3], [4, 5, 6, 7], [0, 1, 2, 3], [8, 9, 10, 11]] == ran[1:]
    finally:
        process.close()


async def test_large_rows_that_are_ahead_lie_beside_those_that_run(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """By shared memory both, and so their answers: none sees the other's."""
    monkeypatch.setattr(scheduler, "LONGEST_AHEAD", 60.0)
    process = ModelProcess(AHEAD, threads=1)
    try:
        async with web(process) as front:
            await front.ask("large", [[0] * 1024] * 256).value()
            asked = [front.ask("large", [[n] * 1024] * 256) for n in range(6)]
            await until(lambda: something_ahead(front))

            for n, one in enumerate(asked):
                assert [[n + 1] * 1024] * 256 == await one.value()
    finally:
        process.close()


async def test_a_sync_predictor_needs_no_channel() -> None:
    """The usual predictor: no event loop in its process, and no thread but the main one."""
    code = """
        import threading
        from batchedapi_serving import batched

        class Composed:
            @batched(example=1)
            def predict(self, items):
                return [sorted(t.name for t in threading.enumerate()) for _ in items]
    """
    process = ModelProcess(code, threads=1)
    try:
        path = process.settings.lanes_path
        front = Web(process.settings)
        server = await asyncio.get_running_loop().create_unix_server(
            lambda: LaneConnection(front.dispatcher), str(path)
        )
        await asyncio.wait_for(front.hello.wait(), 60)

        assert ["MainThread"] == await front.ask(None, 1).value()
        server.close()
    finally:
        process.close()


@pytest.mark.parametrize(
    ("body", "reason", "words"),
    [
        ("raise ValueError('no weights')", "InitFailed", "no weights"),
        ("context.submit('predict', [1]).send(None)", "InitFailed", "event loop"),
        ("raise MemoryError", "OutOfMemory", "ran out of memory"),
    ],
)
def test_a_predictor_that_cannot_start_leaves_the_reason(
    body: str, reason: str, words: str
) -> None:
    """C19, N11: the supervisor reads why from a file, and shows it as the condition's message."""
    code = f"""
        from batchedapi_serving import batched

        class Composed:
            def __init__(self, config, context):
                {body}

            @batched
            def predict(self, items):
                return items
    """
    process = ModelProcess(code)
    try:
        assert 1 == process.process.wait(60)
        failure = json.loads(process.settings.failure_path(0).read_text())

        assert reason == failure["reason"]
        assert words in failure["message"]
    finally:
        process.close()


@pytest.mark.parametrize("error", ["KeyboardInterrupt", "type('Own', (BaseException,), {})"])
async def test_what_would_end_the_channels_thread_is_an_answer(error: str) -> None:
    """Raised in a call, or in a task of its making, which goes on through the event loop."""
    code = f"""
        import asyncio

        class Composed:
            async def fail(self):
                raise {error}

            async def predict(self, payload, query_params, headers):
                match payload:
                    case "call":
                        await self.fail()
                    case "task":
                        await asyncio.create_task(self.fail())
                    case "loop":
                        asyncio.get_running_loop().stop()
                        await asyncio.sleep(0)
                    case "all":
                        for task in asyncio.all_tasks() - {{asyncio.current_task()}}:
                            task.cancel()
                        await asyncio.sleep(0)
                return [payload]
    """
    process = ModelProcess(code, threads=1)
    try:
        async with web(process) as front:
            failed = [await front.ask(None, what).answer() for what in ("call", "task")]
            served = [await front.ask(None, what).value() for what in ("loop", "all", "on")]

            assert [500, 500] == [one.status for one in failed]
            assert [["loop"], ["all"], ["on"]] == served
            assert process.process.poll() is None
    finally:
        process.close()


@pytest.mark.parametrize("method", ["on_a_lane", "on_the_channel"])
async def test_a_process_that_lost_its_device_ends_with_a_code_of_its_own(method: str) -> None:
    """S21: the supervisor tells it from the death of a process that is well."""
    code = """
        from batchedapi_serving import batched

        class Composed:
            @batched
            def on_a_lane(self, items):
                raise RuntimeError("CUDA error: device-side assert triggered")

            @batched
            async def on_the_channel(self, items):
                raise RuntimeError("CUDA error: device-side assert triggered")
    """
    process = ModelProcess(code, threads=1)
    try:
        async with web(process) as front:
            front.ask(method, 1)
            await until(lambda: process.process.poll() is not None)

            assert EXIT_UNFIT == process.process.returncode
    finally:
        process.close()


def test_it_tells_the_supervisor_once_it_is_loaded() -> None:
    """Model processes load one after the other: the next begins when this one is done."""
    ours, theirs = socket.socketpair()
    with tempfile.TemporaryDirectory() as folder, ours:
        settings = settings_in(folder)
        (Path(folder) / "composed.py").write_text(PREDICTOR)
        settings.write()
        process = subprocess.Popen(
            [sys.executable, "-m", "batchedapi_serving.model", folder, "0"],
            pass_fds=[theirs.fileno()],
            env={**os.environ, CONTROL_DESCRIPTOR: str(theirs.fileno())},
        )
        theirs.close()
        try:
            assert LOADED == ours.recv(10)
            assert b"" == ours.recv(10)
            assert process.poll() is None
        finally:
            process.kill()
            process.wait()
