"""How long it takes from `kubectl apply` to the first answer, with the image on the node.

    tests/cluster/up && tests/cluster/images
    export KUBECONFIG=...                      # as `up` prints it
    python tests/bench/first_answer.py --runs 10

Installs the chart of this checkout, and applies the seven lines of the README again and again. The
clock runs from before kubectl is started to the first 200 through the Service; on the way it is
noted when the pod was seen to exist, to have a node, to run, and to be ready.
"""

import re
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, TypeVar

import click
import httpx
import yaml
from harness.report import ROOT, Table, environment, help_of, out_option, report
from harness.rounds import Spread
from kubernetes import client, config, watch

import cluster

T = TypeVar("T")
NAMESPACE: Final = "first-answer"
ITEM: Final = [5.1, 3.5, 1.4, 0.2]
LIMIT_SECONDS: Final = 5.0
"""Of the median."""
_PATIENCE_SECONDS: Final = 60.0
_POLL_SECONDS: Final = 0.02
SEEN: Final[dict[str, Callable[[dict[str, Any]], bool]]] = {
    "pod exists": lambda _: True,
    "pod has a node": lambda pod: "nodeName" in pod["spec"],
    "container runs": lambda pod: any(
        "running" in status["state"] for status in pod["status"].get("containerStatuses", ())
    ),
    "pod is ready": cluster.is_ready,
}
ANSWER: Final = "first answer"


def manifest() -> str:
    """The README's, which names the ConfigMap of examples/01-iris."""
    blocks = re.findall(r"```yaml\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    (found,) = (block for block in blocks if "name: iris}" in block)
    return str(found)


def config_map() -> dict[str, Any]:
    """The model of that manifest."""
    documents = yaml.safe_load_all((ROOT / "examples/01-iris/batchedapi.yaml").read_text())
    (found,) = (document for document in documents if document["kind"] == "ConfigMap")
    return dict(found)


def first_answer(core: Any, text: str) -> dict[str, float]:
    """Seconds since the apply, by what was seen; the API is gone again afterwards."""
    began = time.perf_counter()
    seen: dict[str, float] = {}
    watching = threading.Thread(target=_watch_pods, args=(core, began, seen))
    watching.start()
    cluster.kubectl("apply", "-n", NAMESPACE, "-f", "-", stdin=text)
    seen["kubectl is back"] = time.perf_counter() - began
    url = f"http://{_until(began, lambda: _address(core))}/iris"
    with httpx.Client(timeout=1.0) as http:
        _until(began, lambda: _answered(http, url))
    seen[ANSWER] = time.perf_counter() - began
    watching.join(_PATIENCE_SECONDS)
    cluster.kubectl("delete", "-n", NAMESPACE, "-f", "-", stdin=text)
    _until(began, lambda: not core.list_namespaced_pod(NAMESPACE).items)
    return seen


def _watch_pods(core: Any, began: float, seen: dict[str, float]) -> None:
    events: Any = watch.Watch()  # type: ignore[no-untyped-call]
    stream = events.stream(
        core.list_namespaced_pod, NAMESPACE, timeout_seconds=int(_PATIENCE_SECONDS)
    )
    for event in stream:
        now = time.perf_counter() - began
        for what, happened in SEEN.items():
            if what not in seen and happened(event["raw_object"]):
                seen[what] = now
        if seen.keys() >= SEEN.keys():
            return


def _address(core: Any) -> str | None:
    for service in core.list_namespaced_service(NAMESPACE).items:
        return str(service.spec.cluster_ip)
    return None


def _answered(http: httpx.Client, url: str) -> bool:
    try:
        return http.post(url, json=ITEM).is_success
    except httpx.TransportError:
        return False


def _until(began: float, happened: Callable[[], T | None]) -> T:
    """The first true value.

    Raises:
        RuntimeError: none within a minute of `began`.
    """
    while not (value := happened()):
        if time.perf_counter() - began > _PATIENCE_SECONDS:
            raise RuntimeError(f"nothing within {_PATIENCE_SECONDS:g} s")
        time.sleep(_POLL_SECONDS)
    return value


@click.command(help=help_of(__doc__))
@click.option("--runs", type=click.IntRange(1, 200), default=10, show_default=True)
@out_option
def main(runs: int, out: Path | None) -> None:
    """See the module's docstring."""
    began = environment()
    core = client.CoreV1Api(config.new_client_from_config())  # type: ignore[no-untyped-call]
    text = manifest()
    cluster.install_chart()
    cluster.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}}, "")
    try:
        cluster.apply(config_map(), NAMESPACE)
        found = [first_answer(core, text) for _ in range(runs)]
    finally:
        cluster.kubectl("delete", "namespace", NAMESPACE, "--wait=true")
        cluster.uninstall_chart()
    steps = sorted(found[0], key=lambda what: found[0][what])
    spreads = {what: Spread.of([run[what] for run in found]) for what in steps}
    rows = [[what, *(f"{value:.2f}" for value in spread)] for what, spread in spreads.items()]
    table = Table("seconds since kubectl apply", ["until", "median", "min", "max"], rows)
    notes = [f"{runs} times, one after the other; the image is on the node."]
    report("first_answer", began, [table], notes=notes, measured={"runs": found}, out=out)
    if spreads[ANSWER].median > LIMIT_SECONDS:
        raise SystemExit(f"the first answer: expected within {LIMIT_SECONDS:g} s in the median")


if __name__ == "__main__":
    main()
