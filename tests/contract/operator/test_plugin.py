"""`kubectl batchedapi` through a real kubectl and apiserver, with the rights that users have."""

import asyncio
import json
import os
import subprocess
import uuid
from dataclasses import dataclass
from pathlib import Path

import pytest
import yaml
from tests.contract.operator.world import Body, World, until

from batchedapi_core import contract
from batchedapi_operator.cluster import BATCHED_APIS, CONFIG_MAPS, PODS, Resource
from chart import only, render

pytestmark = [pytest.mark.cluster, pytest.mark.usefixtures("operator")]

ROLE_BINDINGS = Resource("rbac.authorization.k8s.io/v1", "RoleBinding", "rolebindings")
ROLES = Resource("rbac.authorization.k8s.io/v1", "Role", "roles")
SERVICE_ACCOUNTS = Resource("v1", "ServiceAccount", "serviceaccounts")
NOWHERE = "nowhere"
"""A node that there is not: whoever is let through to its kubelet is told so."""


@dataclass(frozen=True)
class User:
    """Somebody with a kubeconfig."""

    kubeconfig: Path

    def run(self, *words: str) -> "subprocess.CompletedProcess[str]":
        """A kubectl command."""
        return subprocess.run(
            ["kubectl", *words],
            env={**os.environ, "KUBECONFIG": str(self.kubeconfig)},
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )


async def user_with(world: World, role: str, folder: Path) -> User:
    """Somebody bound to a ClusterRole of Kubernetes', and to what the chart adds to it."""
    name = f"user-{role}-{uuid.uuid4().hex[:6]}"  # tests share a namespace
    await world.create(SERVICE_ACCOUNTS, {"metadata": {"name": name}})
    chart = render()
    added = [
        rule for end in {"view", role} for rule in only(chart, "ClusterRole", f"-{end}")["rules"]
    ]
    await world.create(ROLES, {"metadata": {"name": name}, "rules": added})
    for kind, bound in (("ClusterRole", role), ("Role", name)):
        subject = {"kind": "ServiceAccount", "name": name, "namespace": world.namespace}
        reference = {"apiGroup": "rbac.authorization.k8s.io", "kind": kind, "name": bound}
        metadata = {"name": f"{name}-{kind.lower()}"}
        binding = {"metadata": metadata, "subjects": [subject], "roleRef": reference}
        await world.create(ROLE_BINDINGS, binding)
    own = Path(os.environ["KUBECONFIG"])
    token = User(own).run("create", "token", name, "-n", world.namespace)
    assert 0 == token.returncode, token.stderr
    config = yaml.safe_load(own.read_text())  # noqa: ASYNC240 - a small file
    config["users"] = [{"name": name, "user": {"token": token.stdout.strip()}}]
    config["contexts"] = [
        {
            "name": "as",
            "context": {
                "cluster": config["clusters"][0]["name"],
                "user": name,
                "namespace": world.namespace,
            },
        }
    ]
    config["current-context"] = "as"
    path = folder / f"{name}.kubeconfig"
    path.write_text(yaml.safe_dump(config))
    return User(path)


async def running_pod(world: World, api: str) -> None:
    """A pod of an API that says that it runs, where no kubelet can be asked."""
    metadata = {
        "name": f"{api}-0",
        "labels": {"batchedapi.dev/api": api, "batchedapi.dev/revision": "0a1b2c3d"},
    }
    container = {"name": "serving", "image": "serving:none"}
    spec = {
        "nodeName": NOWHERE,
        "containers": [container],
        "automountServiceAccountToken": False,
        "tolerations": [{"operator": "Exists"}],
    }
    await world.create(PODS, {"metadata": metadata, "spec": spec})
    ready = {"type": "Ready", "status": "True", "lastTransitionTime": "2026-01-02T03:04:05Z"}
    state = {"running": {"startedAt": "2026-01-02T03:04:05Z"}}
    statuses = [
        {
            "name": "serving",
            "image": "serving:none",
            "imageID": "",
            "containerID": "containerd://1",
            "ready": True,
            "restartCount": 1,
            "state": state,
        }
    ]
    status: Body = {"phase": "Running", "conditions": [ready], "containerStatuses": statuses}
    await world.patch(PODS, f"{api}-0", {"status": status}, "status")


async def test_who_may_view_sees_the_screen_and_which_right_the_rest_takes(
    world: World, tmp_path: Path
) -> None:
    """Forwarding is what the ClusterRole view has not, and edit has."""
    await world.create_api("shown", {"predictor": {"path": "model:Iris"}})
    await world.until_condition("shown", "SpecValid", "Accepted")
    await running_pod(world, "shown")
    viewer = await user_with(world, "view", tmp_path)
    editor = await user_with(world, "edit", tmp_path)

    seen, edited = await asyncio.gather(
        asyncio.to_thread(viewer.run, "batchedapi", "status", "shown"),
        asyncio.to_thread(editor.run, "batchedapi", "status", "shown", "-o", "json"),
    )

    assert 0 == seen.returncode, seen.stderr
    assert f"{world.namespace}/shown: " in seen.stdout
    assert "1 restart" in seen.stdout
    text = " ".join(seen.stdout.split())
    assert "1 wanted" in text
    assert "(shown-0): you may not forward to pods in namespace" in text
    missing = " ".join(json.loads(edited.stdout)["missing"])
    assert "(shown-0): " in missing
    assert "you may not" not in missing


async def test_a_rollback_gives_the_spec_of_the_revision_before(
    world: World, tmp_path: Path
) -> None:
    """The operator goes by the spec, and ReplicaSets remember those that were; whoever may edit."""
    await world.create(CONFIG_MAPS, {"metadata": {"name": "model"}, "data": {"model.py": "one"}})
    predictor = {"path": "model:Iris", "image": "none:1", "source": {"configMap": "model"}}
    await world.create_api("back", {"predictor": predictor})
    viewer = await user_with(world, "view", tmp_path)
    editor = await user_with(world, "edit", tmp_path)

    async def run(user: User, *words: str) -> "subprocess.CompletedProcess[str]":
        return await asyncio.to_thread(user.run, "batchedapi", *words)

    async def history() -> list[Body]:
        told = await run(viewer, "history", "back", "-o", "json")
        assert 0 == told.returncode, told.stderr
        found: list[Body] = json.loads(told.stdout)
        return found

    async def rolled_out(number: int) -> bool:
        return number in {one["revision"] for one in await history()}

    await until(lambda: rolled_out(1), "the first revision")
    changed = {"predictor": {"image": "none:2"}, "autoscaling": {"maxReplicas": 7}}
    await world.patch(BATCHED_APIS, "back", {"spec": changed})
    await until(lambda: rolled_out(2), "the second revision")
    await world.patch(CONFIG_MAPS, "model", {"data": {"model.py": "two"}})
    await until(lambda: rolled_out(3), "the third revision")
    third, second, first = await history()
    assert (["files of predictor.source"], ["predictor.image"], None) == (
        third["changed"], second["changed"], first["changed"],
    )  # fmt: skip

    refused = await run(viewer, "rollback", "back")
    told = await run(editor, "rollback", "back", "--to", "1")

    assert (1, True) == (refused.returncode, "that takes `patch` on batchedapis" in refused.stderr)
    assert 0 == told.returncode, told.stderr
    digest = first["digest"]
    assert told.stdout.startswith(f"back has the spec of revision 1 ({digest}): predictor.image")
    assert f"in back-{digest}\n" in told.stdout
    await until(lambda: rolled_out(4), "the first revision to come back")
    newest = (await history())[0]
    template = (await world.deployment("back"))["spec"]["template"]
    spec = (await world.api("back"))["spec"]
    assert (digest, digest) == (
        newest["digest"], template["metadata"]["labels"][contract.LABEL_REVISION],
    )  # fmt: skip
    assert ("none:1", f"back-{digest}", 7) == (
        spec["predictor"]["image"],
        spec["predictor"]["source"]["configMap"],
        spec["autoscaling"]["maxReplicas"],
    )
    assert "Accepted" == (await world.condition("back", "SpecValid"))["reason"]


async def test_kubectl_completes_what_comes_next(world: World) -> None:
    """By the program that it looks for on the PATH."""
    await world.create_api("completed", {"predictor": {"path": "model:Iris"}})
    admin = User(Path(os.environ["KUBECONFIG"]))

    commands = admin.run("__complete", "batchedapi", "")
    names = admin.run("__complete", "batchedapi", "status", "-n", world.namespace, "compl")

    assert {"status", "why"} <= {line.split("\t")[0] for line in commands.stdout.split("\n")}
    assert ["completed", ":4"] == names.stdout.splitlines()
