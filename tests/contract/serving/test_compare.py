"""A new revision asks a replica of the old one for recent rows, and runs them before it is ready.

Two real replicas on sockets: what a cluster's DNS would find is told by the environment here.
"""

import asyncio
import http.client
import io
import json
import os
import signal
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest

from batchedapi_core import contract
from ports import HOST
from raw_http import ask
from serving import Replica, end_replica, running_replica, start_replica, write_manifest

TOKEN = "of-this-api"  # noqa: S105 - of tests
SPEC = {"serverSideBatching": {"maxBatchSize": 16, "batchInterval": "5ms"}}


def code(
    *,
    answer: str = "x * 2",
    seconds: str = "0.004 + 0.001 * len(x)",
    outputs: str = "FP32",
    shape: int = 2,
) -> str:
    """A model of which each batch takes a known time."""
    return f"""
        import time
        import numpy as np
        from batchedapi_serving import Tensor, batched

        class Model:
            @batched(inputs=Tensor("FP32", [{shape}]), outputs=Tensor("{outputs}", [{shape}]))
            def predict(self, x):
                time.sleep({seconds})
                y = ({answer}).astype(np.dtype("{outputs.replace("FP", "float")}"))
                x[:] = -1  # arrays are the method's own: what is kept must not be what it leaves
                return y
    """


def told(revision: str, port: int = 1, **more: Any) -> dict[str, str]:
    """The environment in which the operator would start a pod."""
    value = {
        "peers": HOST, "port": port, "token": TOKEN, "revision": revision,
        "slower": 0.3, "differ": 0.0, **more,
    }  # fmt: skip
    return {contract.ENV_COMPARE: json.dumps(value)}


async def load(replica: Replica, batches: int = 60, *, rows: int = 10) -> None:
    """So many batches at least, one after the other; more than a second, since few are kept."""
    until = time.monotonic() + 1.2
    while batches > 0 or time.monotonic() < until:
        answers = await asyncio.gather(*(ask(replica.port, [i, i + 0.5]) for i in range(rows)))
        assert {200} == {answer.status for answer in answers}
        batches -= 1


@pytest.fixture(scope="module")
def old(folder: Path) -> Iterator[Replica]:
    """A replica of the old revision that has answered rows."""
    manifest = write_manifest(folder, code(), SPEC)
    with running_replica(folder, ["-f", str(manifest)], told("old")) as replica:
        asyncio.run(load(replica))
        yield replica


def start(tmp_path: Path, source: str, environment: dict[str, str], **spec: Any) -> Replica:
    """A replica of a new revision."""
    manifest = write_manifest(tmp_path, source, {**SPEC, **spec})
    return start_replica(tmp_path, ["-f", str(manifest)], environment)


def said(replica: Replica, message: str) -> list[dict[str, Any]]:
    """Log lines with that message."""
    lines = (line for line in replica.text().splitlines() if line.startswith("{"))
    return [line for line in map(json.loads, lines) if line["message"] == message]


def failure(replica: Replica) -> list[str]:
    """Lines that say why it did not start."""
    return [line for line in replica.text().splitlines() if line.startswith("batchedapi: ")]


@pytest.mark.parametrize(
    ("source", "reason", "words"),
    [
        (code(seconds="0.004 + 0.0016 * len(x) + 0.002"), "Slower", "compare.slower allows 30 %"),
        (code(answer="np.where(x == 3.5, np.nan, x * 2)"), "MoreErrors", "recent rows failed"),
        (code(answer="-x"), "AnswersDiffer", "compare.differ allows 0 %"),
    ],
)
def test_a_worse_revision_never_gets_ready_and_says_why(
    old: Replica, tmp_path: Path, source: str, reason: str, words: str
) -> None:
    """F12: it ends as every start that fails, so its pod is not ready and the rollout waits."""
    replica = start(tmp_path, source, told("new", old.admin_port))
    try:
        assert 1 == replica.process.wait(60), replica.text()
        (line,) = failure(replica)
    finally:
        end_replica(replica)

    assert line.startswith(f"batchedapi: {reason}: predict: ")
    assert words in line
    assert 200 == old.admin(contract.PATH_READY)[0]


@pytest.mark.parametrize(
    ("source", "words"),
    [
        (code(), "no worse in"),
        (code(seconds="0.004 + 0.0011 * len(x)"), "no worse in"),
        (code(answer="-x", outputs="FP64"), "outputs are declared otherwise"),
        (code(shape=3), "takes other rows than before"),
    ],
)
def test_a_revision_that_is_no_worse_serves_and_says_with_what_it_was_compared(
    old: Replica, tmp_path: Path, source: str, words: str
) -> None:
    """F12: a changed signature is said, and compared by errors and times as far as rows fit."""
    replica = start(tmp_path, source, told("new", old.admin_port))
    try:
        replica.wait_ready()
        (line,) = said(replica, "compared")
    finally:
        end_replica(replica)

    assert ("old", True) == (line["before"], words in line["text"]), line


@pytest.mark.parametrize(
    ("revision", "path", "words"),
    [
        ("old", None, "every ready pod is of this revision"),
        ("new", "unheard.invalid", "no ready pod"),
    ],
)
def test_without_anything_to_compare_with_a_revision_serves_as_ever(
    old: Replica, tmp_path: Path, revision: str, path: str | None, words: str
) -> None:
    """It is said in the log: nobody should believe that it was compared."""
    environment = told(revision, old.admin_port, peers=path or HOST)
    replica = start(tmp_path, code(answer="-x"), environment)
    try:
        replica.wait_ready()
        (line,) = said(replica, "not compared")
    finally:
        end_replica(replica)

    assert words in line["reason"]


def test_a_process_that_is_replaced_is_not_held(old: Replica, tmp_path: Path) -> None:
    """Its replica serves: that it cannot come back would be an outage, and no rollout."""
    differs = told("new", old.admin_port, differ=1.0)
    with running_replica(
        tmp_path, ["-f", str(write_manifest(tmp_path, code(answer="-x"), SPEC))], differs
    ) as replica:
        (pid,) = replica.children("model")
        os.kill(pid, signal.SIGKILL)
        replica.wait_for(lambda: replica.children("model") not in ([], [pid]), "not replaced")
        replica.wait_for(lambda: asyncio.run(ask(replica.port, [1, 2])).status == 200, "lost")
        assert 1 == len(said(replica, "compared"))


def test_a_revision_that_served_before_comes_back(old: Replica, tmp_path: Path) -> None:
    """A rollback must not wait for what the revision that is left does otherwise.

    Whoever is asked knows it: a pod that was compared, one that found only its like, and a process
    that was replaced.
    """
    differs, port = {"differ": 1.0}, old.admin_port
    newer: list[Replica] = []
    try:
        for name in ("first", "second"):
            (tmp_path / name).mkdir()
            newer.append(start(tmp_path / name, code(answer="-x"), told("new", port, **differs)))
            newer[-1].wait_ready()
            port = newer[-1].admin_port
        first, second = newer
        assert "every ready pod is of this" in said(second, "not compared")[0]["reason"]
        (pid,) = second.children("model")
        os.kill(pid, signal.SIGKILL)
        second.wait_for(lambda: second.children("model") not in ([], [pid]), "not replaced")
        for i, one in enumerate((first, second)):
            one.wait_for(lambda one=one: asyncio.run(ask(one.port, [1, 2])).status == 200, "lost")
            asyncio.run(load(one, 5))
            folder = tmp_path / f"back-{i}"
            folder.mkdir()
            back = start(folder, code(), told("old", one.admin_port))
            newer.append(back)
            back.wait_ready()
            (line,) = said(back, "not compared")
            assert "this revision served before new" == line["reason"]
    finally:
        for one in newer:
            end_replica(one)


def test_a_batch_larger_than_batches_may_be_now_is_not_run(tmp_path: Path) -> None:
    """In the unit of `size_of`: there may be no memory for it any more."""
    source = """
        from batchedapi_serving import SizeOf, batched

        class Model:
            @batched(size_of=SizeOf.length())
            def predict(self, items):
                return items
    """
    with running_replica(
        tmp_path, ["-f", str(write_manifest(tmp_path, source, SPEC))], told("old")
    ) as before:
        assert 200 == asyncio.run(ask(before.port, [1, 2, 3, 4])).status
        (tmp_path / "new").mkdir()
        smaller = {"serverSideBatching": {"maxBatchSize": 3}}
        environment = told("new", before.admin_port)
        replica = start(tmp_path / "new", source, environment, **smaller)
        try:
            replica.wait_ready()
            (line,) = said(replica, "compared")
        finally:
            end_replica(replica)

    assert "no recent batch is as small" in line["text"]


def fetched(replica: Replica, headers: dict[str, str]) -> tuple[int, bytes]:
    """Status and body of the page with recent rows."""
    connection = http.client.HTTPConnection(HOST, replica.admin_port, timeout=10)
    try:
        connection.request("GET", contract.PATH_RECENT, headers=headers)
        response = connection.getresponse()
        return response.status, response.read()
    finally:
        connection.close()


def test_rows_are_for_whoever_has_the_token_and_are_never_written(
    old: Replica, folder: Path
) -> None:
    """They are data of clients: in memory alone, and in no log."""
    right = {"authorization": f"Bearer {TOKEN}"}
    status, body = fetched(old, right)

    assert (200, True) == (status, 0 < len(body) < 16 * 1024 * 1024)
    for headers in ({}, {"authorization": "Bearer of-another-api"}, {"authorization": TOKEN}):
        assert 401 == fetched(old, headers)[0]
    row = b"\x00\x00\x80@\x00\x00\x90@"  # 4.0, 4.5
    assert row in body
    files = [one for one in (*old.scratch.rglob("*"), *folder.rglob("*")) if one.is_file()]
    assert [] == [one for one in files if row in one.read_bytes()]


def test_many_askers_cost_no_memory_each(tmp_path: Path) -> None:
    """A rollout may start many pods at once, and the supervisor answers the probes beside them."""
    length = 200_000
    manifest = write_manifest(tmp_path, code(shape=length, seconds="0"), SPEC)
    row = io.BytesIO()
    np.save(row, np.ones((1, length), np.float32))
    with running_replica(tmp_path, ["-f", str(manifest)], told("old")) as replica:
        url = f"http://{HOST}:{replica.port}/predict"
        for _ in range(10):
            sent = {"content-type": "application/x-npy"}
            assert 200 == httpx.post(url, content=row.getvalue(), headers=sent).status_code
            time.sleep(0.15)  # so that each is kept
        before = most_memory(replica)
        right = {"authorization": f"Bearer {TOKEN}"}
        with ThreadPoolExecutor(4) as pool:
            answers = set(pool.map(lambda _: fetched(replica, right), range(4)))
        grown = most_memory(replica) - before

    ((status, body),) = answers
    assert (200, True) == (status, len(body) > 12 * 2**20)
    assert grown < 8 * 2**20


def most_memory(replica: Replica) -> int:
    """Bytes that its supervisor has used at most."""
    status = Path(f"/proc/{replica.process.pid}/status").read_text()
    (kib,) = (line.split()[1] for line in status.splitlines() if line.startswith("VmHWM"))
    return 1024 * int(kib)


def test_where_nothing_is_asked_for_there_is_no_such_page(tmp_path: Path) -> None:
    """Off costs nothing and keeps nothing: so it is like a release from before."""
    with running_replica(tmp_path, ["-f", str(write_manifest(tmp_path, code(), SPEC))]) as before:
        asyncio.run(load(before, 2))
        assert 404 == fetched(before, {"authorization": f"Bearer {TOKEN}"})[0]
        (tmp_path / "new").mkdir()
        replica = start(tmp_path / "new", code(answer="-x"), told("new", before.admin_port))
        try:
            replica.wait_ready()
            (line,) = said(replica, "not compared")
        finally:
            end_replica(replica)

    assert "its compare is Off" in line["reason"]


def test_items_of_async_methods_are_compared_too(tmp_path: Path) -> None:
    """A row that is refused was refused before; one that was not is an error more."""
    source = """
        from batchedapi_serving import ItemError, batched

        class Model:
            @batched
            async def predict(self, items):
                return [ItemError(422, "no") if one {refuses} else one for one in items]
    """
    with running_replica(
        tmp_path,
        ["-f", str(write_manifest(tmp_path, source.format(refuses="== 1"), SPEC))],
        told("old"),
    ) as before:
        for i, status in [*enumerate([200, 422, 200, 200])] * 3:
            assert status == asyncio.run(ask(before.port, i)).status
            time.sleep(0.06)  # so that each is kept
        (tmp_path / "new").mkdir()
        replica = start(
            tmp_path / "new", source.format(refuses="> 0"), told("new", before.admin_port)
        )
        try:
            assert 1 == replica.process.wait(60), replica.text()
            (line,) = failure(replica)
        finally:
            end_replica(replica)

    assert line.startswith("batchedapi: MoreErrors: predict: ")
