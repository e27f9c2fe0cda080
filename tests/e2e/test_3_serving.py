"""Features of the serving half on real pods: methods, processes, protocols, models, advice."""

import json
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from hashlib import sha256
from threading import Event
from typing import Any, Final

import httpx
import numpy as np
import pytest
from tritonclient.grpc import InferenceServerClient, InferInput

import cluster

pytestmark = pytest.mark.cluster

FACTOR: Final = "3.0\n"
"""The model of `deep`: a file in a claim."""
NODE_FOLDER: Final = "/var/tmp"  # noqa: S108 - the node's, not this machine's
WEIGHTS: Final = "batchedapi-e2e"
"""Folder in it that the claim is of."""
CODE: Final = """
from pathlib import Path

from batchedapi_serving import Tensor, batched, endpoint


class Deep:
    def __init__(self, config, context):
        self.factor = float(Path(context.model_path).read_text())
        self.context = context

    @batched(inputs=Tensor("FP32", [4]), outputs=Tensor("FP32", [4]))
    def predict(self, x):
        return x * self.factor

    @batched(example="a")
    def shout(self, items):
        return [item.upper() for item in items]

    @endpoint
    async def where(self, payload, query_params, headers):
        return {"worker": self.context.worker_index, "of": self.context.processes}
"""
COUNTING: Final = """
import time


class Counting:
    def predict(self, payload):
        for item in range(payload["items"]):
            time.sleep(payload["seconds"])
            yield {"item": item}
"""
ITEMS: Final[dict[str, Any]] = {"items": 40, "seconds": 0.1}
"""A stream outlasts `drainDelay`, and ends within `timeout`."""
COMMANDS: Final = """
from pathlib import Path
for file in Path("/proc").glob("[0-9]*/cmdline"):
    print(file.read_bytes().replace(b"\\0", b" ").decode())
"""


def api(name: str, **spec: Any) -> dict[str, Any]:
    """A BatchedAPI of the class above."""
    predictor = {
        "path": "model:Deep",
        "source": {"configMap": "deep-model"},
        **spec.pop("predictor"),
    }
    return {
        "apiVersion": "batchedapi.dev/v1alpha1",
        "kind": "BatchedAPI",
        "metadata": {"name": name},
        "spec": {"predictor": predictor, **spec},
    }


DEEP: Final = api(
    "deep",
    predictor={
        "processesPerReplica": "cpu_count",
        "webProcesses": 2,
        "model": {
            "uri": "pvc://deep-weights/factor.txt",
            "sha256": sha256(FACTOR.encode()).hexdigest(),
        },
        "methods": [{"name": "predict", "serverSideBatching": {"batchInterval": "200ms"}}],
    },
    serverSideBatching={"strategy": "Fixed", "maxBatchSize": 64, "receipt": "All"},
    compute={"cpu": "700m"},
    networking={"grpc": True},
)
TAMPERED: Final = api(
    "tampered",
    predictor={"model": {"uri": "file:///etc/passwd", "sha256": "0" * 64}},
    compute={"cpu": "50m"},
)
CROWDED: Final = api(
    "crowded",
    predictor={"processesPerReplica": 4},
    autoscaling={"mode": "Off"},
    replicas=0,
)
CPUS: Final = 1.7
"""Requests of the APIs above, of the two examples and of what earlier tests leave."""
EXAMPLES: Final = ("05-json-items", "06-two-models")


def on_node(script: str) -> None:
    """Run Python as root on the node, with NODE_FOLDER at /node: a claim must be filled."""
    name = f"on-node-{time.monotonic_ns()}"
    container = {
        "name": "python",
        "image": "batchedapi-serving:dev",
        "command": ["python", "-c", script],
        "securityContext": {"runAsUser": 0},
        "volumeMounts": [{"name": "node", "mountPath": "/node"}],
    }
    spec = {
        "restartPolicy": "Never",
        "containers": [container],
        "volumes": [{"name": "node", "hostPath": {"path": NODE_FOLDER}}],
    }
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": spec}
    cluster.apply(pod, "default")
    done = "--for=jsonpath={.status.phase}=Succeeded"
    cluster.kubectl("wait", "-n", "default", done, f"pod/{name}", "--timeout=180s")
    cluster.kubectl("delete", "pod", name, "-n", "default", "--wait=false")


@pytest.fixture(scope="module")
def claim(namespace: str) -> Iterator[None]:
    """A claim with the model in it, bound to a folder of the node."""
    cluster.skip_without_cpu(CPUS, namespace)
    folder = f"/node/{WEIGHTS}"
    on_node(
        f"import pathlib; p = pathlib.Path({folder!r}); p.mkdir(exist_ok=True);"
        f" (p / 'factor.txt').write_text({FACTOR!r})"
    )
    common = {"storageClassName": "", "accessModes": ["ReadOnlyMany"]}
    volume = {
        **common,
        "capacity": {"storage": "1Mi"},
        "hostPath": {"path": f"{NODE_FOLDER}/{WEIGHTS}"},
        "claimRef": {"namespace": namespace, "name": "deep-weights"},
    }
    wish = {
        **common,
        "volumeName": WEIGHTS,
        "resources": {"requests": {"storage": "1Mi"}},
    }
    for kind, name, spec in (
        ("PersistentVolume", WEIGHTS, volume),
        ("PersistentVolumeClaim", "deep-weights", wish),
    ):
        manifest = {"apiVersion": "v1", "kind": kind, "metadata": {"name": name}, "spec": spec}
        cluster.apply(manifest, namespace)
    yield
    cluster.kubectl("delete", "pvc", "deep-weights", "-n", namespace, "--wait=false")
    cluster.kubectl("delete", "pv", WEIGHTS, "--wait=false")
    on_node(f"import shutil; shutil.rmtree({folder!r})")


@pytest.fixture(scope="module")
def applied(namespace: str, claim: None) -> Iterator[str]:  # noqa: ARG001 - needed, not used
    """The namespace with every API of this file, and containers limited to two CPUs."""
    limits = {"type": "Container", "default": {"cpu": "2"}, "defaultRequest": {"cpu": "50m"}}
    for kind, name, body in (
        ("LimitRange", "two-cpus", {"spec": {"limits": [limits]}}),
        ("ConfigMap", "deep-model", {"data": {"model.py": CODE}}),
    ):
        manifest = {"apiVersion": "v1", "kind": kind, "metadata": {"name": name}, **body}
        cluster.apply(manifest, namespace)
    for manifest in (DEEP, TAMPERED, CROWDED):
        cluster.apply(manifest, namespace)
    for example in EXAMPLES:
        cluster.apply(cluster.ROOT / "examples" / example / "batchedapi.yaml", namespace)
    yield namespace
    names = ("deep", "tampered", "crowded", "items", "two-models")
    cluster.kubectl("delete", "bapi", *names, "-n", namespace)
    cluster.kubectl("delete", "limitrange", "two-cpus", "-n", namespace)


@pytest.fixture(scope="module")
def http(applied: str) -> Iterator[httpx.Client]:
    """A client for the Services, once all are ready."""
    ready = ("bapi/deep", "bapi/items", "bapi/two-models")
    cluster.kubectl("wait", "-n", applied, "--for=condition=Ready", *ready, "--timeout=180s")
    with httpx.Client(trust_env=False, timeout=10) as client:
        for name in ("deep", "items", "two-models"):
            docs = cluster.service_url(name, applied, "/openapi.json")
            cluster.wait_for(partial(answers, client, docs), 90, f"an answer from {name}")
        yield client


def answers(client: httpx.Client, url: str) -> bool:
    """Whether there is anybody: a Service's rules come a moment after its pods are ready."""
    try:
        return client.get(url).status_code == httpx.codes.OK
    except httpx.TransportError:
        return False


def test_methods_have_routes_of_their_own(applied: str, http: httpx.Client) -> None:
    """N25: arrays, JSON items and one request at a time, in one API; the model is in a claim."""
    url = cluster.service_url("deep", applied)

    predicted = http.post(url, json=[1, 2, 3, 4])
    shouted = http.post(f"{url}/shout", json={"instances": ["a", "bc"]})
    where = http.post(f"{url}/where", json={})

    assert [3, 6, 9, 12] == predicted.json()
    assert {"predictions": ["A", "BC"]} == shouted.json()
    assert 2 == where.json()["of"]


def test_rows_of_two_web_processes_ride_in_one_batch(applied: str, http: httpx.Client) -> None:
    """N13, F8: every answer is its own, and its receipt says with how many others it rode."""
    url = cluster.service_url("deep", applied)
    (pod,) = cluster.get_all("pod", applied, "batchedapi.dev/api=deep")
    name = pod["metadata"]["name"]
    running = cluster.kubectl("exec", name, "-n", applied, "--", "python", "-c", COMMANDS)

    def ask(number: int) -> httpx.Response:
        alone = {"connection": "close"}  # connections are what is spread over web processes
        return http.post(url, json=[number, 0, 0, 0], headers=alone)

    with ThreadPoolExecutor(24) as pool:
        found = list(pool.map(ask, range(48)))

    webs = [line for line in running.splitlines() if "batchedapi_serving.web" in line]
    assert 2 == len(webs), running
    assert [[3.0 * number, 0, 0, 0] for number in range(48)] == [one.json() for one in found]
    assert {name} == {one.headers["x-batchedapi-replica"] for one in found}
    assert max(int(one.headers["x-batchedapi-batch-requests"]) for one in found) > 8


def test_grpc_is_answered_through_the_service(applied: str, http: httpx.Client) -> None:
    """The Open Inference Protocol, by a client that others wrote."""
    assert http
    direct = [("grpc.enable_http_proxy", 0)]
    address = cluster.address_of("deep", applied, 9000)
    client = InferenceServerClient(address, channel_args=direct)
    rows = np.arange(8, dtype=np.float32).reshape(2, 4)
    tensor = InferInput("input", [2, 4], "FP32")
    tensor.set_data_from_numpy(rows)

    ready = client.is_model_ready("deep.shout")
    answer = client.infer("deep", [tensor], request_id="7", client_timeout=10)
    client.close()

    assert ready
    assert np.array_equal(3 * rows, answer.as_numpy("output"))
    assert ("7", 2) == (
        answer.get_response().id,
        answer.get_response().parameters["my_rows"].int64_param,
    )


def test_cpu_count_is_the_limit_of_the_container(applied: str, http: httpx.Client) -> None:
    """W08: the namespace limits containers to two CPUs; the manifest says nothing of a number."""
    assert http

    def told() -> dict[str, Any] | None:
        status = cluster.get("bapi", "deep", applied)["status"]
        effective: dict[str, Any] | None = status.get("effective")
        return effective

    effective = cluster.wait_for(told, 120, "status.effective")

    assert (2, 2, 64, "200ms") == (
        effective["processesPerReplica"],
        effective["lanes"],
        effective["maxBatchSize"],
        effective["batchInterval"],
    )


def test_the_example_of_two_models_works_as_it_is(applied: str, http: httpx.Client) -> None:
    """N28: a method that asks two others, and one of them asked directly."""
    url = cluster.service_url("two-models", applied)
    features = [5.1, 3.5, 1.4, 0.2]

    both = http.post(url, json={"features": features})
    one = http.post(f"{url}/classify", json=features)

    assert both.json()["class"] == int(np.argmax(one.json()))
    assert 1 == pytest.approx(sum(one.json()), abs=1e-5)


def test_the_example_of_json_items_works_as_it_is(applied: str, http: httpx.Client) -> None:
    """A path of its own, and a receipt that says that Fixed waited two seconds."""
    url = cluster.service_url("items", applied, "/items/test")
    item = {"content": "string", "nested": {"key": "string", "values": [1, 5, 2]}}

    answer = http.post(url, json=item)

    assert [2, 6, 3] == answer.json()["data"]["nested"]["values_add1"]
    assert 1900 <= float(answer.headers["x-batchedapi-queue-ms"]) <= 3000


def test_a_model_with_another_digest_is_not_loaded_and_says_so(applied: str) -> None:
    """The reason is in the condition and in an event: where `kubectl describe` shows it."""

    def failed() -> dict[str, str] | None:
        condition = cluster.condition_of(cluster.get("bapi", "tampered", applied), "ModelLoaded")
        return condition if condition.get("reason") == "DigestMismatch" else None

    condition = cluster.wait_for(failed, 180, "ModelLoaded DigestMismatch")

    assert "False" == condition["status"]
    assert "spec.predictor.model.sha256" in condition["message"]
    cluster.wait_for(
        lambda: "ModelFailed" in described("tampered", applied), 60, "the event ModelFailed"
    )


def test_advice_is_a_condition_and_an_event(applied: str) -> None:
    """C04: four processes on a fifth of a CPU; what is in order has nothing said of it."""

    def advised(name: str) -> dict[str, Any]:
        return cluster.condition_of(cluster.get("bapi", name, applied), "SpecAdvice")

    crowded = cluster.wait_for(lambda: advised("crowded"), 120, "SpecAdvice of crowded")
    deep = cluster.wait_for(lambda: advised("deep"), 120, "SpecAdvice of deep")

    assert ("True", "TooManyProcesses") == (crowded["status"], crowded["reason"])
    assert "spec.predictor.processesPerReplica is 4 on 0.2 CPUs" in crowded["message"]
    assert ("False", "NothingToSay") == (deep["status"], deep["reason"])
    events = json.loads(
        cluster.kubectl(
            "get", "events", "-n", applied, "-o", "json",
            "--field-selector=involvedObject.name=crowded,reason=TooManyProcesses",
        )
    )["items"]  # fmt: skip
    assert ["Warning"] == [event["type"] for event in events]


def test_streams_under_way_end_whole_while_their_replicas_are_rolled(namespace: str) -> None:
    """Streams of pods that end are whole too: events have their end, lines all items."""
    source = {"kind": "ConfigMap", "metadata": {"name": "counting-model"}}
    cluster.apply({"apiVersion": "v1", **source, "data": {"model.py": COUNTING}}, namespace)
    predictor = {"path": "model:Counting", "source": {"configMap": "counting-model"}}
    spec = {"autoscaling": {"mode": "External"}, "replicas": 2, "compute": {"cpu": "50m"}}
    rolled = api("counting", predictor=predictor, **spec)
    cluster.apply(rolled, namespace)
    cluster.wait_for(lambda: len(counting_pods(namespace)) == 2, 180, "two replicas")
    url, over, before = (
        cluster.service_url("counting", namespace),
        Event(),
        counting_pods(namespace),
    )

    def read(accept: str) -> list[str]:
        """Stream after stream, until the replicas are others and the last one has ended."""
        found, head = [], {"accept": accept, "connection": "close"}  # each finds a replica anew
        with httpx.Client(trust_env=False, timeout=30) as client:
            while not over.is_set():
                with client.stream("POST", url, json=ITEMS, headers=head) as stream:
                    found.append("".join(stream.iter_text()))
        return found

    with ThreadPoolExecutor(16) as pool:
        kinds = ("text/event-stream", "application/x-ndjson")
        readers = [(kind, pool.submit(read, kind)) for kind in kinds * 8]
        try:
            rolled["spec"]["predictor"]["env"] = [{"name": "ROUND", "value": "2"}]
            cluster.apply(rolled, namespace)
            cluster.wait_for(
                lambda: (
                    len(counting_pods(namespace)) == 2 and not counting_pods(namespace) & before
                ),
                180,
                "two other replicas, and no more of those before",
            )
        finally:
            over.set()
        streams = [(kind, text) for kind, reader in readers for text in reader.result()]
    cluster.kubectl("delete", "bapi", "counting", "-n", namespace, "--wait=true")

    print(f"\n{len(streams)} streams of {ITEMS['items'] * ITEMS['seconds']:.0f} s")
    assert len(streams) >= len(readers)
    events = "".join(f'data: {{"item":{n}}}\n\n' for n in range(ITEMS["items"]))
    lines = "".join(f'{{"item":{n}}}\n' for n in range(ITEMS["items"]))
    whole = {kinds[0]: f"{events}event: end\ndata: [DONE]\n\n", kinds[1]: lines}
    assert [] == [text for kind, text in streams if text != whole[kind]]


def counting_pods(namespace: str) -> set[str]:
    """Pods of `counting` that are there, those that end included; empty unless all are ready."""
    pods = cluster.get_all("pod", namespace, "batchedapi.dev/api=counting")
    return {one["metadata"]["name"] for one in pods} if all(map(cluster.is_ready, pods)) else set()


def described(name: str, namespace: str) -> str:
    """The output of `kubectl describe`."""
    return cluster.kubectl("describe", "bapi", name, "-n", namespace)
