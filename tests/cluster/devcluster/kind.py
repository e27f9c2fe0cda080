"""A kind cluster: Kubernetes in a container, where a Docker engine runs."""

from typing import Final

from . import paths, state, tools
from .steps import run, step, succeeds

NAME: Final = "batchedapi"


def healthy() -> bool:
    """Say whether the cluster answers."""
    api = ("kubectl", "--kubeconfig", paths.KUBECONFIG, "--request-timeout=5s")
    return paths.KUBECONFIG.exists() and succeeds(*api, "get", "--raw", "/readyz")


def up() -> None:
    """Create the cluster, unless it answers; one that exists and does not is made anew."""
    if healthy():
        print("kind cluster is up")
        return
    down()
    state.note_flavour("kind")
    kind = tools.go_program("kind")
    with step(f"kind create cluster --name {NAME}"):
        create = (kind, "create", "cluster", "--name", NAME, "--wait", "180s")
        run(*create, "--kubeconfig", paths.KUBECONFIG)


def down() -> None:
    """Delete the cluster; nothing happens where there is none."""
    kind = tools.go_program("kind")
    if NAME in run(kind, "get", "clusters").split():
        with step(f"kind delete cluster --name {NAME}"):
            run(kind, "delete", "cluster", "--name", NAME, "--kubeconfig", paths.KUBECONFIG)
    state.forget()


def load(tag: str) -> None:
    """Copy an image of the Docker engine into the cluster."""
    run(tools.go_program("kind"), "load", "docker-image", tag, "--name", NAME)
