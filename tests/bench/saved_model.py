"""Seconds from `kubectl apply` of a saved model to its first answer; and a cache that pods share.

    python tests/bench/saved_model.py --image onnx-serving:dev   # wants the local cluster

The manifest has eight lines and no code, and the image is on the node: batchedapi-serving with
onnxruntime. The model is in a claim. Then two replicas of an API that fetches the model from a
store share the claim of `predictor.model.cache`: the second finds what the first has fetched.
"""

import contextlib
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from statistics import median
from typing import Any, Final

import click
from harness.report import Table, environment, help_of, out_option, report
from tests.cluster.devcluster import network

import cluster
from object_store import BUCKET, KEY, REGION, SECRET, ObjectStore, running_store
from onnx_models import iris_model

NAMESPACE: Final = "saved-model"
MANIFEST: Final = """\
apiVersion: batchedapi.dev/v1alpha1
kind: BatchedAPI
metadata: {{name: iris}}
spec:
  predictor:
    image: {image}
    model: {{uri: "pvc://models/iris.onnx"}}
  compute: {{cpu: 100m}}
"""
ROW: Final = [5.0, 3.0, 1.0, 0.5]
ANSWER: Final = [5.0, 3.0, 1.0]
OBJECT: Final = "iris.onnx"
USER: Final = 65532
SECONDS: Final = 180.0


def claim(name: str, folder: Path) -> None:
    """A claim that is bound to a folder of this machine, which is the node."""
    size, modes = {"storage": "1Gi"}, ["ReadWriteMany"]
    full = f"{NAMESPACE}-{name}"
    volume = {"capacity": size, "accessModes": modes, "hostPath": {"path": str(folder)}}
    wanted = {"accessModes": modes, "resources": {"requests": size}, "volumeName": full}
    for kind, called, spec in (
        ("PersistentVolume", full, volume),
        ("PersistentVolumeClaim", name, wanted),
    ):
        body = {"apiVersion": "v1", "kind": kind, "metadata": {"name": called}}
        cluster.apply({**body, "spec": {**spec, "storageClassName": ""}}, NAMESPACE)


@contextlib.contextmanager
def namespace(folder: Path) -> Iterator[None]:
    """A restricted one with both claims, and the operator."""
    cluster.install_chart()
    labels = {"pod-security.kubernetes.io/enforce": "restricted"}
    space = {"name": NAMESPACE, "labels": labels}
    cluster.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": space}, NAMESPACE)
    try:
        for name in ("models", "cache"):
            (folder / name).mkdir()
            shutil.chown(folder / name, USER, USER)
            claim(name, folder / name)
        yield
    finally:
        cluster.kubectl("delete", "namespace", NAMESPACE, "--wait=true")
        cluster.kubectl("delete", "pv", *(f"{NAMESPACE}-{name}" for name in ("models", "cache")))
        cluster.uninstall_chart()


def answered(name: str) -> bool:
    """Whether it gives the right answer through its Service."""
    found = cluster.get_all("service", NAMESPACE, f"batchedapi.dev/api={name}")
    if not found:
        return False
    url = f"http://{found[0]['spec']['clusterIP']}/{name}"
    return cluster.post(url, ROW, timeout=1.0) == (200, ANSWER)


def first_answer(image: str) -> float:
    """Seconds from apply to the first answer; the API is gone afterwards."""
    began = time.monotonic()
    cluster.kubectl("apply", "-n", NAMESPACE, "-f", "-", stdin=MANIFEST.format(image=image))
    end = began + SECONDS
    while not answered("iris"):
        assert time.monotonic() < end, "no answer"
        time.sleep(0.05)
    took = time.monotonic() - began
    cluster.kubectl("delete", "bapi", "iris", "-n", NAMESPACE, "--wait=true")
    selector = "batchedapi.dev/api=iris"
    cluster.wait_for(lambda: not cluster.get_all("pod", NAMESPACE, selector), SECONDS, "its end")
    return took


def shared(image: str, folder: Path, store: ObjectStore) -> dict[str, Any]:
    """One replica, then two, with one cache: models in it, and whether the second left it alone."""
    store.objects[OBJECT] = (folder / "models" / OBJECT).read_bytes()
    keys = {
        "AWS_ACCESS_KEY_ID": KEY,
        "AWS_SECRET_ACCESS_KEY": SECRET,
        "AWS_REGION": REGION,
        "AWS_ENDPOINT_URL": store.url,
    }
    spec = {
        "predictor": {
            "image": image,
            "model": {"uri": f"s3://{BUCKET}/{OBJECT}", "cache": {"pvc": "cache"}},
            "env": [{"name": name, "value": value} for name, value in keys.items()],
        },
        "compute": {"cpu": "100m"},
        "autoscaling": {"mode": "External"},
        "replicas": 1,
    }
    api = {"apiVersion": "batchedapi.dev/v1alpha1", "kind": "BatchedAPI"}
    cluster.apply({**api, "metadata": {"name": "cached"}, "spec": spec}, NAMESPACE)

    def ready(replicas: int) -> bool:
        found = cluster.get("bapi", "cached", NAMESPACE)
        return bool(found.get("status", {}).get("readyReplicas") == replicas)

    def kept() -> dict[str, int]:
        files = (path for path in (folder / "cache").rglob("*.onnx") if path.is_file())
        return {str(path): path.stat().st_mtime_ns for path in files}

    cluster.wait_for(lambda: ready(1), SECONDS, "a replica")
    first = kept()
    cluster.kubectl("scale", "bapi", "cached", "-n", NAMESPACE, "--replicas=2")
    cluster.wait_for(lambda: ready(2), SECONDS, "two replicas")
    cluster.wait_for(lambda: answered("cached"), SECONDS, "its answer")
    return {"models": len(first), "fetched_once": kept() == first}


@click.command(help=help_of(__doc__))
@click.option("--image", required=True, help="With onnxruntime, and on the node.")
@click.option("--rounds", type=click.IntRange(1), default=5, show_default=True)
@out_option
def main(*, image: str, rounds: int, out: Path | None) -> None:
    """See the module's docstring."""
    began = environment()
    with tempfile.TemporaryDirectory(prefix="saved-model-") as name:
        folder = Path(name)
        folder.chmod(0o755)
        with namespace(folder), running_store(host=network.ADDRESS) as store:
            iris_model(folder / "models" / OBJECT)
            times = [first_answer(image) for _ in range(rounds)]
            cache = shared(image, folder, store)
    cells = [f"{min(times):.1f}", f"{median(times):.1f}", f"{max(times):.1f}"]
    head = ["rounds", "least s", "median s", "most s"]
    lines = len(MANIFEST.splitlines())
    tables = [
        Table(f"From apply of {lines} lines to the first answer", head, [[str(rounds), *cells]]),
        Table(
            "Two replicas that share a cache in a claim",
            ["models in it", "fetched once"],
            [[str(cache["models"]), "yes" if cache["fetched_once"] else "no"]],
        ),
    ]
    note = "The node had the image: batchedapi-serving with onnxruntime."
    report("saved_model", began, tables, notes=[note], measured={"s": times, **cache}, out=out)
    if cache != {"models": 1, "fetched_once": True}:
        sys.exit(1)


if __name__ == "__main__":
    main()
