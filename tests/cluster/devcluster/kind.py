"""A kind cluster: Kubernetes in a container, where a Docker engine runs."""

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from . import network, paths, state, tools
from .steps import ClusterError, run, step, succeeds

NAME: Final = "batchedapi"
WAIT: Final = "180s"
"""For the node to be ready; kind ends with status 0 when it is over, too."""
NODE_IMAGE: Final = "KIND_NODE_IMAGE"
"""Environment: another node image than kind's own, of a mirror or made here."""
DOCKER: Final = "Docker with BuildKit is needed: https://docs.docker.com/go/buildx/"
NODE_PORTS: Final = range(30000, 30032)
"""The node ports. Each is a port of this machine as well: not every Docker's nodes have a route."""
PORT_RANGE: Final = f"{NODE_PORTS[0]}-{NODE_PORTS[-1]}"
TAKEN: Final = f"end what has that port (node ports are {PORT_RANGE}), or call again"
REMEDIES: Final = (
    ("Cannot connect to the Docker daemon", "start Docker, or use CLUSTER=local as root"),
    ("permission denied while trying to connect", "add this user to the group docker"),
    ("no space left on device", "free some disk: docker system prune"),
    (
        "failed to pull image",
        f"let this machine reach docker.io once, or name an image it has in {NODE_IMAGE}",
    ),
    ("failed to resolve source metadata", "let this machine reach docker.io for the base image"),
    ("port is already allocated", TAKEN),
    ("address already in use", TAKEN),
    ("buildx component is missing", DOCKER),
    ("unknown flag: --secret", DOCKER),
    ("requires BuildKit", DOCKER),
    ("not present locally", "build it anew: tests/cluster/images --force"),
    ("no nodes found for cluster", "tests/cluster/up makes one"),
    ("is not running", "it was stopped: tests/cluster/up makes it anew"),
    ("failed to lock config file", "remove the file .lock beside it, if no other kind runs"),
)
"""What docker and kind say, and what to do about it."""


def configuration() -> dict[str, object]:
    """Give kind's own configuration: one node, with the addresses that the local one has."""
    name = "service-node-port-range"
    # kind writes the second for Kubernetes before 1.36.
    arguments: dict[str, dict[str, object]] = {
        "v1beta4": {"path": "/apiServer/extraArgs/-", "value": {"name": name, "value": PORT_RANGE}},
        "v1beta3": {"path": f"/apiServer/extraArgs/{name}", "value": PORT_RANGE},
    }
    return {
        "apiVersion": "kind.x-k8s.io/v1alpha4",
        "kind": "Cluster",
        "name": NAME,
        "nodes": [
            {
                "role": "control-plane",
                "extraPortMappings": [
                    {"containerPort": port, "hostPort": port, "listenAddress": "127.0.0.1"}
                    for port in NODE_PORTS
                ],
            }
        ],
        "kubeadmConfigPatchesJSON6902": [
            {
                "group": "kubeadm.k8s.io",
                "version": version,
                "kind": "ClusterConfiguration",
                "patch": json.dumps([{"op": "add", **argument}]),
            }
            for version, argument in arguments.items()
        ],
        "networking": {
            "podSubnet": network.POD_CIDR,
            "serviceSubnet": network.SERVICE_CIDR,
        },
    }


@contextmanager
def remedied() -> Iterator[None]:
    """Add what to do to an error of docker's or kind's."""
    try:
        yield
    except ClusterError as error:
        told = str(error)
        remedy = next((what for words, what in REMEDIES if words in told), None)
        raise ClusterError(f"{told}\n{remedy}" if remedy else told) from error


def healthy() -> bool:
    """Say whether the cluster answers and its node is Ready."""
    api = ("kubectl", "--kubeconfig", paths.KUBECONFIG, "--request-timeout=5s", "get")
    ready = 'jsonpath={.items[*].status.conditions[?(@.type=="Ready")].status}'
    if not paths.KUBECONFIG.exists() or not succeeds(*api, "--raw", "/readyz"):
        return False
    try:
        return set(run(*api, "nodes", "-o", ready).split()) == {"True"}
    except ClusterError:
        return False


def up() -> None:
    """Create the cluster, unless it answers; one that exists and does not is made anew.

    Raises:
        ClusterError: A step failed; nothing is left of what was begun.
    """
    if healthy():
        print("kind cluster is up")
        return
    down()
    state.note_flavour("kind")
    try:
        create()
    except (ClusterError, KeyboardInterrupt) as error:
        try:
            down()
        except ClusterError as left:
            told = f"{error}\nwhat was begun could not be removed: {left}"
            raise ClusterError(told) from error
        raise


def create() -> None:
    """Create it, and see that it answers; its logs are kept where it does not."""
    require_buildkit()
    kind = tools.go_program("kind")
    with step(f"kind create cluster --name {NAME}"), remedied():
        words = [str(kind), "create", "cluster", "--config", "-", "--wait", WAIT]
        if node_image := os.environ.get(NODE_IMAGE):
            words += ["--image", node_image]
        run(*words, "--kubeconfig", paths.KUBECONFIG, stdin=json.dumps(configuration()))
    if not healthy():
        logs = paths.LOGS / "kind"
        succeeds(kind, "export", "logs", logs, "--name", NAME)
        raise ClusterError(f"kind cluster: not ready within {WAIT}; its logs are in {logs}")


def require_buildkit() -> None:
    """Check that images can be built, before a cluster is made for them.

    Raises:
        ClusterError: There is no Docker, or its builds know no secrets.
    """
    with remedied():
        if "--secret" not in run("docker", "build", "--help", env={"DOCKER_BUILDKIT": "1"}):
            raise ClusterError(DOCKER)


def down() -> None:
    """Delete the cluster; nothing happens where there is none."""
    kind = tools.go_program("kind")
    with remedied():
        if NAME in run(kind, "get", "clusters").split():
            with step(f"kind delete cluster --name {NAME}"):
                run(kind, "delete", "cluster", "--name", NAME, "--kubeconfig", paths.KUBECONFIG)
    state.forget()


def load(tag: str) -> None:
    """Copy an image of the Docker engine into the cluster."""
    with remedied():
        run(tools.go_program("kind"), "load", "docker-image", tag, "--name", NAME)
