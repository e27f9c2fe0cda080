"""No request reaches pickle, exec, a subprocess, a foreign file or another host.

Python's audit hooks see every such event in the web process and in the model process; they are
installed by a sitecustomize of the test, from the moment at which the replica is ready.
"""

import ast
import asyncio
import contextlib
import itertools
import json
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np
import pytest

from batchedapi_serving.model import batch
from raw_http import connected, request_bytes
from request_corpus import (
    CALL_CASES,
    HEADERS_CASES,
    ITEM_CASES,
    NPY,
    PROTOCOL_CASES,
    TENSOR_CASES,
    Case,
    post,
    saved,
)
from serving import Replica, running_replica, write_manifest

CODE: Final = """
    from batchedapi_serving import Tensor, batched, endpoint

    class Model:
        @batched(inputs=Tensor("FP32", [2]), outputs=Tensor("FP32", [1]))
        def predict(self, x):
            if (x == 666).any():
                raise ValueError("secret")
            return x.sum(axis=1, keepdims=True)

        @batched(example=1)
        def items(self, items):
            return items

        @endpoint
        def call(self, payload, query_params, headers):
            if payload == "compile":
                compile("1 + 1", "<watched>", "eval")
            return "answered"
"""
HOOK: Final = """
    import os, sys

    armed, folder = os.environ["AUDIT_ARMED"], os.environ["AUDIT_FOLDER"]
    out = os.open(os.path.join(folder, str(os.getpid())), os.O_CREAT | os.O_WRONLY | os.O_APPEND)
    busy = False

    def hook(event, args):
        global busy
        if busy or not event.startswith(WATCHED):
            return
        busy = True
        try:
            os.stat(armed)
            shown = repr((event, tuple(str(arg)[:200] for arg in args[:2])))
            os.write(out, shown.encode("utf-8", "backslashreplace") + b"\\n")
        except FileNotFoundError:
            pass
        finally:
            busy = False

    WATCHED = (
        "pickle.find_class", "marshal.", "exec", "compile", "code.__new__", "subprocess.Popen",
        "os.", "open", "import", "socket.connect", "socket.getaddrinfo", "ctypes.dlopen",
        "ftplib.", "urllib.", "shutil.", "tempfile.",
    )
    sys.addaudithook(hook)
"""


class Event(NamedTuple):
    """An audit event of one process."""

    name: str
    arguments: tuple[str, ...]


class Watched(NamedTuple):
    """A replica whose events are written down once `armed` exists."""

    replica: Replica
    armed: Path
    events: Path

    def seen(self) -> list[Event]:
        """The events of processes that requests reach, so not of the supervisor's own work."""
        files = [self.events / str(pid) for pid in self.replica.children()]
        lines = itertools.chain.from_iterable(file.read_text().splitlines() for file in files)
        return [Event(*ast.literal_eval(line)) for line in lines]


@pytest.fixture(scope="module")
def watched(folder: Path) -> Iterator[Watched]:
    """Requests of every kind have been answered once: what is imported late is there."""
    hooks, events = folder / "hooks", folder / "events"
    hooks.mkdir()
    events.mkdir()
    armed = folder / "armed"
    (hooks / "sitecustomize.py").write_text(textwrap.dedent(HOOK))
    environment = {
        "PYTHONPATH": str(hooks), "AUDIT_ARMED": str(armed), "AUDIT_FOLDER": str(events),
    }  # fmt: skip
    manifest = write_manifest(folder, CODE, {"overload": {"maxBodySize": "100000"}})
    with running_replica(folder, ["-f", str(manifest)], environment) as replica:
        yield Watched(replica, armed, events)


def hostile_npy(header: bytes) -> bytes:
    """An npy file whose header is this text."""
    return b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header


OWNED: Final = Path("/tmp/owned")  # noqa: S108 - what the hostile bodies ask for
SOURCES: Final = CODE + Path(batch.__file__).with_name("batch.py").read_text()
CALLS: Final = (
    b"__import__('os').system('touch /tmp/owned')",
    b"{'descr': __import__('os').system('id'), 'fortran_order': False, 'shape': (1, 2)}",
    b"{'descr': '<f4', 'fortran_order': False, 'shape': (1, 2)} if open('/etc/passwd') else 0",
    b"{'descr': '|O', 'fortran_order': False, 'shape': (1, 2)}",
    b"{'descr': [('a', '|O')], 'fortran_order': False, 'shape': (1, 2)}",
)
PICKLE: Final = b"cos\nsystem\n(S'touch /tmp/owned'\ntR."
HOSTILE: Final = [
    *(post(f"npy {i}", 400, hostile_npy(text), content_type=NPY) for i, text in enumerate(CALLS)),
    post("pickled array", 400, saved(np.array([{"a": 1}], dtype=object)), content_type=NPY),
    post("pickle as npy", 400, PICKLE, content_type=NPY),
    post("pickle as msgpack", 400, PICKLE, content_type="application/msgpack"),
    post("pickle as bytes", 415, PICKLE, content_type="application/python-pickle"),
    post("extension types", 422, b"\xc7\x04\x01" + PICKLE[:4], content_type="application/msgpack"),
    post("timestamp", 422, b"\xd6\xff\x00\x00\x00\x00", content_type="application/msgpack"),
    post("shared memory of v2", 422, json.dumps({"inputs": [{
        "name": "input", "datatype": "FP32", "shape": [1, 2],
        "parameters": {"shared_memory_region": "/etc/passwd", "shared_memory_byte_size": 8},
    }]}).encode(), "/v2/models/api/infer"),
    post("file as path", 404, b"[1, 2]", "/../../etc/passwd"),
    post("escaped file as path", 404, b"[1, 2]", "/%2e%2e/%2e%2e/etc/passwd"),
    post("file in an item", 200, b'{"$ref": "file:///etc/passwd"}', "/api/items"),
    post("url in a call", 200, b'{"url": "http://127.0.0.1:1/"}', "/api/call"),
    post("proxy", 400, b"[1, 2]", "http://127.0.0.1:1/predict"),
]  # fmt: skip
ALL: Final = [*TENSOR_CASES, *PROTOCOL_CASES, *HEADERS_CASES, *ITEM_CASES, *CALL_CASES, *HOSTILE]


async def send(replica: Replica, case: Case) -> int:
    """Its status; 0 if the server closed the connection."""
    async with connected(replica.port) as connection:
        await connection.send(case.data)
        with contextlib.suppress(ConnectionError):
            return (await connection.receive(has_body=case.has_body)).status
    return 0


async def send_all(watched: Watched) -> dict[str, int]:
    """Everything there is, one after the other; and the pages that FastAPI answers."""
    pages = [
        Case(path, 200, request_bytes(path, b"", method="GET"))
        for path in ("/docs", "/openapi.json")
    ]
    return {case.name: await send(watched.replica, case) for case in [*ALL, *pages]}


async def test_no_request_reaches_anything_but_its_method(watched: Watched) -> None:
    """K5: not one event of pickle, exec, a subprocess, a foreign file or another host."""
    first = await send_all(watched)  # lazy imports and caches are not a request's doing
    watched.armed.touch()
    second = await send_all(watched)

    assert first == second
    assert {404, 415, 422, 400, 200} <= set(second.values())
    assert "" == "\n".join(str(event) for event in watched.seen() if not harmless(event))
    assert not await asyncio.to_thread(OWNED.exists)


def harmless(event: Event) -> bool:
    """Nothing a request could choose: a line of the log, or a source line of a traceback in it.

    A predictor that raises is logged with its traceback, for which Python reads source files, and
    looks for them in the folders of modules.
    """
    name, arguments = event
    if name == "compile":  # what to underline in the traceback: a piece of the line that raised
        return ast.literal_eval(arguments[0]).decode() in SOURCES
    if name == "open":
        return arguments[0].endswith(".py") or arguments[0].isdigit()
    return name in {"os.listdir", "os.scandir"} and "/proc/" in arguments[0]


async def test_the_watch_sees(watched: Watched) -> None:
    """A test without events proves nothing unless there are some that it would see."""
    watched.armed.touch()
    await send(watched.replica, post("compile", 200, b'"compile"', "/api/call"))

    names = {file.name for file in watched.events.iterdir()}
    assert {str(pid) for pid in watched.replica.children()} <= names
    compiled = [event.arguments[0] for event in watched.seen() if event.name == "compile"]
    assert "b'1 + 1'" in compiled


def test_no_serving_module_imports_what_runs_data() -> None:
    """K5: pickle, marshal, shelve and the likes do not occur in what a request can reach."""
    import batchedapi_serving  # noqa: PLC0415 - the folder is all that is wanted

    forbidden = {"pickle", "cPickle", "dill", "cloudpickle", "marshal", "shelve", "joblib"}
    found: list[Any] = []
    for file in Path(batchedapi_serving.__path__[0]).rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text())):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            called = node.func.id if _calls_a_name(node) else ""  # type: ignore[attr-defined]  # checked there
            if forbidden & {name.split(".")[0] for name in names} or called in {"eval", "exec"}:
                found.append((file.name, names, called))

    assert [] == found


def _calls_a_name(node: ast.AST) -> bool:
    return isinstance(node, ast.Call) and isinstance(node.func, ast.Name)
