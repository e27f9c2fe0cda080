"""Eight faults and two deaths of the operator at each of its calls: the end is the same.

The cluster is in memory and the time virtual. `tests/contract/operator/test_crashes.py`
does a sample of them on a real apiserver.
"""

import asyncio
import copy
import json
from collections.abc import Awaitable, Callable
from typing import Any, Final

import pytest
from tests.unit.operator.worlds import IMAGE, KEY, WALL, MemoryCluster, api_body

from batchedapi_operator.cluster import BATCHED_APIS, CONFIG_MAPS, JsonObject
from batchedapi_operator.errors import ApplyError
from batchedapi_operator.kube import REQUEST_SECONDS, Kube, _raise_for
from batchedapi_operator.outbox import Outbox
from batchedapi_operator.queue import WorkQueue
from batchedapi_operator.reconcile.reconciler import Reconciler
from batchedapi_operator.store import Store

pytestmark = pytest.mark.looptime

FAULTS: Final = ("401", "409", "429", "500", "503", "hang", "reset", "lost")
DEATHS: Final = ("dies before", "dies after")
SECONDS: Final = 30.0
RESTART_SECONDS: Final = 3.0
COLLECTED_SECONDS: Final = 2.0
WATCH_SECONDS: Final = 0.05
_CALLS: Final = frozenset(name for name in vars(MemoryCluster) if name in vars(Kube))


class Faulty:
    """A cluster of which one call fails, once."""

    def __init__(self, memory: MemoryCluster, at: int, how: str) -> None:
        self._memory = memory
        self._at = at
        self._how = how
        self.calls = 0
        self.died = asyncio.Event()

    def __getattr__(self, name: str) -> Callable[..., Awaitable[Any]]:
        """Every call of a cluster."""
        assert name in _CALLS
        call = getattr(self._memory, name)

        async def asked(*arguments: Any, **options: Any) -> Any:
            number, self.calls = self.calls, self.calls + 1
            if number == self._at:
                await self._fail(call, arguments, options)
            return await call(*arguments, **options)

        return asked

    async def _fail(
        self, call: Callable[..., Awaitable[Any]], arguments: Any, options: Any
    ) -> None:
        if self._how in {"lost", "dies after"}:
            await call(*arguments, **options)
        if self._how in DEATHS:
            self.died.set()
            await asyncio.Event().wait()
        if self._how == "hang":
            await asyncio.sleep(REQUEST_SECONDS)
        if self._how in {"hang", "reset", "lost"}:
            raise ApplyError("no answer", 0)
        _raise_for(int(self._how), b'{"message": "a fault"}', "the call")


class Process:
    """The operator; each write of a child enqueues its API, as a watch would."""

    def __init__(self, cluster: Any, memory: MemoryCluster) -> None:
        loop = asyncio.get_running_loop()
        self._outbox = Outbox(monotonic=loop.time)
        reconciler = Reconciler(cluster, Store(), self._outbox, IMAGE, wall=lambda: WALL)
        self.queue = WorkQueue(reconciler.reconcile)
        self._sends = asyncio.create_task(self._outbox.run())
        self.queue.enqueue(KEY)

        def told(verb: str, _what: str) -> None:
            if verb != "status":
                loop.call_later(WATCH_SECONDS, self.queue.enqueue, KEY)

        memory.fail = told

    async def end(self) -> None:
        """Dead."""
        self.queue.enqueue = lambda _key: None  # type: ignore[method-assign]
        await self.queue.close()
        self._sends.cancel()
        await asyncio.gather(self._sends, return_exceptions=True)


def source(text: str) -> JsonObject:
    """The user's files."""
    return {
        "metadata": {"name": "files", "namespace": KEY.namespace, "uid": "f"},
        "data": {"model.py": text},
    }


SPEC: Final[JsonObject] = {"predictor": {"path": "m:C", "source": {"configMap": "files"}}}


def create(memory: MemoryCluster) -> None:
    """An API with files."""
    memory.put(CONFIG_MAPS, source("class C: ..."))
    memory.put(BATCHED_APIS, api_body(**SPEC))


def change(memory: MemoryCluster) -> None:
    """Other files, another interval, and replicas by hand."""
    api = memory.objects[BATCHED_APIS, KEY]
    spec = {
        **SPEC,
        "serverSideBatching": {"batchInterval": "3ms"},
        "autoscaling": {"mode": "External"},
        "replicas": 5,
    }
    memory.put(CONFIG_MAPS, source("class C: pass"))
    memory.put(BATCHED_APIS, {**api, "spec": spec})


def recreate(memory: MemoryCluster) -> None:
    """Another API of the name; the children of the first are still there."""
    successor = api_body(predictor={"path": "other:C"})
    successor["metadata"]["uid"] = "successor"
    del memory.objects[BATCHED_APIS, KEY]
    memory.put(BATCHED_APIS, successor)


def collect(memory: MemoryCluster) -> None:
    """Delete the children of an API that is gone, as the garbage collector does."""
    uid = memory.objects[BATCHED_APIS, KEY]["metadata"]["uid"]
    for place, body in list(memory.objects.items()):
        owners = body["metadata"].get("ownerReferences")
        if owners and owners[0]["uid"] != uid:
            del memory.objects[place]


def lasting(memory: MemoryCluster) -> str:
    """Objects without what counts their writes, words, which follow later, and an order of such."""
    found = copy.deepcopy(memory.objects)
    for body in found.values():
        for counted in ("resourceVersion", "generation"):
            body["metadata"].pop(counted, None)
        status = body.get("status") or {}
        if "conditions" in status:
            status["conditions"].sort(key=lambda one: one["type"])
        for one in (status, *(status.get("conditions") or ())):
            one.pop("message", None)
    told = {f"{resource.kind} {key}": body for (resource, key), body in found.items()}
    return json.dumps(told, sort_keys=True)


Act = Callable[[MemoryCluster], None]


async def ended(before: Act | None, act: Act, at: int, how: str) -> tuple[str, int]:
    """The state some time after the workload, and how many calls that took."""
    memory = MemoryCluster()
    if before is not None:
        before(memory)
        process = Process(memory, memory)
        await asyncio.sleep(SECONDS)
        await process.end()
    cluster = Faulty(memory, at, how)
    act(memory)
    process = Process(cluster, memory)
    loop = asyncio.get_running_loop()
    until, dies = loop.time() + SECONDS, asyncio.create_task(cluster.died.wait())
    loop.call_later(COLLECTED_SECONDS, collect, memory)
    await asyncio.wait({dies}, timeout=SECONDS)
    dies.cancel()
    if cluster.died.is_set():
        await process.end()
        until = loop.time() + SECONDS
        await asyncio.sleep(RESTART_SECONDS)
        process = Process(cluster, memory)
    await asyncio.sleep(until - loop.time())
    await process.end()
    return lasting(memory), cluster.calls


@pytest.mark.parametrize("how", [*FAULTS, *DEATHS])
@pytest.mark.parametrize(
    ("before", "act"),
    [(None, create), (create, change), (create, recreate)],
    ids=["create", "change", "recreate"],
)
async def test_whatever_happens_to_one_call_the_end_is_the_same(
    before: Act | None, act: Act, how: str
) -> None:
    """Level-triggered: what was not done is seen and done, within half a minute."""
    golden, calls = await ended(before, act, -1, "")
    assert calls > 8

    for at in range(calls):
        state, _ = await ended(before, act, at, how)
        assert golden == state, f"call {at}"
