"""The result of one kubectl apply: it is complete, and it stands still."""

import json
import time

import pytest

import cluster
from watched_replicas import sleepy

pytestmark = pytest.mark.cluster

Api = tuple[str, str]


def test_the_first_answer_comes_within_ten_seconds_of_apply(first_answer_seconds: float) -> None:
    """Images are on the node: what is left is ours, from the watch to the warm model."""
    print(f"\napply -> first answer: {first_answer_seconds:.1f} s")

    assert first_answer_seconds <= 10


def test_helm_asks_the_operator_whether_it_is_ready(namespace: str) -> None:
    """What a platform team runs after each installation."""
    assert namespace
    told = cluster.run("helm", "test", "batchedapi", "-n", cluster.SYSTEM_NAMESPACE)

    assert "Phase:          Succeeded" in told


def test_predictions_come_through_the_service(iris: Api) -> None:
    """One item, many items in both forms, and an error that names the place; `/predict` too."""
    url = cluster.service_url("iris", iris[0])

    status, one = cluster.post(url, [5.1, 3.5, 1.4, 0.2])
    many_status, many = cluster.post(url, {"instances": [[5.1, 3.5, 1.4, 0.2], [6.7, 3, 5.2, 2.3]]})
    alias = url.removesuffix("/iris") + "/predict"
    listed = [cluster.post(path, [[5.1, 3.5, 1.4, 0.2]]) for path in (url, alias)]
    bad_status, bad = cluster.post(url, {"instances": [[5.1, 3.5, 1.4, 0.2], [6.7, "x", 5.2, 2]]})

    assert (200, 3) == (status, len(one))
    assert (200, 2) == (many_status, len(many["predictions"]))
    assert [(200, [one])] * 2 == listed
    assert 422 == bad_status
    assert "instances[1][1]" in bad["error"]["message"]


def test_the_example_to_watch_scaling_on_is_taken_as_it_is(namespace: str) -> None:
    """By the API server; the tests of load run it at a quarter of its speed."""
    file = cluster.ROOT / "examples/02-sleepy/batchedapi.yaml"

    told = cluster.kubectl("apply", "--dry-run=server", "-n", namespace, "-f", file)

    assert "batchedapi.dev/sleepy " in told


def test_children_are_owned_and_labelled(iris: Api) -> None:
    """So that deletion needs no finalizer, and nothing of kopf is on the object."""
    namespace, name = iris
    api = cluster.get("bapi", name, namespace)

    for kind in ("deployment", "service", "configmap", "poddisruptionbudget"):
        (child,) = cluster.get_all(kind, namespace, f"batchedapi.dev/api={name}")
        (owner,) = child["metadata"]["ownerReferences"]
        assert (api["metadata"]["uid"], True) == (owner["uid"], owner["controller"])
    assert "finalizers" not in api["metadata"]
    assert not [key for key in api["metadata"].get("annotations", {}) if "kopf" in key]


def test_status_and_columns_say_how_it_is(iris: Api) -> None:
    """The one line a user reads first."""
    namespace, name = iris

    api = cluster.wait_for(
        lambda: (
            (found := cluster.get("bapi", name, namespace))["status"]["phase"] == "Live" and found
        ),
        90,
        "phase Live",
    )
    table = cluster.kubectl("get", "bapi", "-n", namespace)

    print("\n" + table)
    assert "True" == cluster.condition_of(api, "Ready")["status"]
    assert "True" == cluster.condition_of(api, "SpecValid")["status"]
    assert {"STATUS", "READY", "DESIRED", "BATCH", "FILL%"} <= set(table.split("\n")[0].split())
    assert "Live" in table


def test_a_model_that_cannot_be_imported_is_named_in_a_condition(namespace: str) -> None:
    """The reason of a failed start reaches `kubectl get`, not only a pod's log."""
    manifest = {
        "apiVersion": "batchedapi.dev/v1alpha1",
        "kind": "BatchedAPI",
        "metadata": {"name": "broken"},
        "spec": {"predictor": {"path": "no_such_module:Model"}},
    }
    cluster.apply(manifest, namespace)

    def failed() -> dict[str, str] | None:
        condition = cluster.condition_of(cluster.get("bapi", "broken", namespace), "ModelLoaded")
        return condition if condition.get("reason") == "ImportFailed" else None

    condition = cluster.wait_for(failed, 180, "ModelLoaded ImportFailed")

    assert "no_such_module" in condition["message"]
    shown = cluster.kubectl("get", "bapi", "broken", "-n", namespace, "-o", "wide")
    assert "MESSAGE" in shown
    assert "no_such_module" in shown
    cluster.kubectl("delete", "bapi", "broken", "-n", namespace)


def test_deletion_leaves_nothing(namespace: str) -> None:
    """Owner references do it, with the operator alive or dead."""
    cluster.kubectl("apply", "-n", namespace, "-f", "-", stdin=sleepy("gone"))
    selector = "batchedapi.dev/api=gone"
    cluster.wait_for(lambda: cluster.get_all("pod", namespace, selector), 90, "a pod of the API")

    cluster.kubectl("delete", "bapi", "gone", "-n", namespace)

    cluster.wait_for(
        lambda: (
            not any(
                cluster.get_all(kind, namespace, selector)
                for kind in ("deployment", "service", "configmap", "pod")
            )
        ),
        180,
        "no children",
    )


def test_external_mode_follows_kubectl_scale(namespace: str) -> None:
    """HPA, KEDA and people write /scale of the BatchedAPI; the operator copies it."""
    manual = sleepy("manual", autoscaling={"mode": "External"}, replicas=1)
    cluster.kubectl("apply", "-n", namespace, "-f", "-", stdin=manual)

    cluster.kubectl("scale", "bapi", "manual", "-n", namespace, "--replicas=2")

    def replicas() -> list[int]:
        found = cluster.get_all("deployment", namespace, "batchedapi.dev/api=manual")
        return [one["spec"]["replicas"] for one in found]

    cluster.wait_for(lambda: [2] == replicas(), 90, "two replicas")
    cluster.kubectl("delete", "bapi", "manual", "-n", namespace)
    cluster.wait_for(
        lambda: not cluster.get_all("pod", namespace, "batchedapi.dev/api=manual"), 180, "no pods"
    )


@pytest.mark.usefixtures("writes_to_iris")  # its minutes go by while later tests run
def test_a_restarted_operator_changes_nothing(iris: Api, deployed_sleepy: Api) -> None:
    """It reads what is there, finds it right, and leaves it alone."""
    namespace = iris[0]
    cluster.wait_for(  # what an earlier load asked for goes away meanwhile
        lambda: len(cluster.get_all("pod", namespace, "batchedapi.dev/api=sleepy")) == 1,
        240,
        "one replica of sleepy again",
    )
    time.sleep(3)  # and the Deployment's own status settles
    before = versions(namespace)
    old = cluster.operator_pod()["metadata"]["name"]

    cluster.kubectl(
        "delete", "pod", old, "-n", cluster.SYSTEM_NAMESPACE, "--grace-period=0", "--force"
    )
    cluster.wait_for(
        lambda: cluster.operator_pod()["metadata"]["name"] != old, 180, "a new operator pod"
    )
    time.sleep(20)

    assert before == versions(namespace)
    assert deployed_sleepy


def versions(namespace: str) -> dict[str, str]:
    """The things that must not change: every child's resourceVersion, and the APIs' specs."""
    found = {}
    for kind in ("deployment", "service", "configmap", "poddisruptionbudget"):
        for child in cluster.get_all(kind, namespace, "batchedapi.dev/api"):
            found[f"{kind}/{child['metadata']['name']}"] = child["metadata"]["resourceVersion"]
    for pod in cluster.get_all("pod", namespace, "batchedapi.dev/api"):
        found[f"pod/{pod['metadata']['name']}"] = pod["metadata"]["uid"]
    for api in cluster.get_all("bapi", namespace):
        found[f"bapi/{api['metadata']['name']}"] = json.dumps(api["spec"], sort_keys=True)
    return found
