"""Stand-ins for docker, kind, kubectl and go: they record calls, and fail as the real ones do.

Their words are those of Docker 27 and kind 0.33. What they have is a folder: `calls`, what was
asked; `faults`, which of FAULTS is on; `images` and `cluster`, what the engine holds.
"""

import sys
from pathlib import Path
from typing import Final

NO_DAEMON: Final = (
    "Cannot connect to the Docker daemon at unix:///var/run/docker.sock."
    " Is the docker daemon running?"
)
NODE: Final = "kindest/node:v1.37.0@sha256:7416a61b42b1"
NO_REGISTRY: Final = 'Get "https://registry-1.docker.io/v2/": dial tcp: lookup registry-1.docker.io'


def of_docker(words: str, failure: str) -> str:
    """Kind's message about a docker command that failed."""
    return f'command "docker {words}" failed with error: exit status 1\n\nCommand Output: {failure}'


FAULTS: Final = {
    # name: (program, beginning of its arguments, what it says)
    "docker is too old": (
        "docker", "build",
        ("ERROR: BuildKit is enabled but the buildx component is missing or broken.\n"
        "       Install the buildx component to build images with BuildKit:\n"
        "       https://docs.docker.com/go/buildx/"),
    ),
    "docker has no secrets": ("docker", "build -t", "unknown flag: --secret"),
    "no room to build": (
        "docker", "build",
        ("ERROR: failed to build: failed to solve: write /var/lib/docker/tmp/x: no space left on"
        " device"),
    ),
    "no base image": (
        "docker", "build",
        ("ERROR: failed to build: failed to solve: python:3.12-slim: failed to resolve source"
        f" metadata for docker.io/library/python:3.12-slim: {NO_REGISTRY}"),
    ),
    "no node image": (
        "kind", "create cluster",
        f'ERROR: failed to create cluster: failed to pull image "{NODE}": '
        + of_docker(f"pull {NODE}", f"Error response from daemon: {NO_REGISTRY}"),
    ),
    "port taken": (
        "kind", "create cluster",
        "ERROR: failed to create cluster: "
        + of_docker(
            "run --name batchedapi-control-plane",
            "docker: Error response from daemon: driver failed programming external connectivity"
            " on endpoint batchedapi-control-plane: Bind for 127.0.0.1:42211 failed: port is"
            " already allocated.",
        ),
    ),
    "no room for a node": (
        "kind", "create cluster",
        "ERROR: failed to create cluster: "
        + of_docker("run --name batchedapi-control-plane", "mkdir /x: no space left on device"),
    ),
    "kubeconfig locked": (
        "kind", "create cluster",
        ("ERROR: failed to create cluster: failed to lock config file:"
        " open .run/cluster/kubeconfig.lock: file exists"),
    ),
    "not to be deleted": (
        "kind", "delete cluster",
        'ERROR: failed to delete cluster "batchedapi": error deleting nodes: '
        + of_docker("rm -f -v batchedapi-control-plane", "Error response from daemon: busy"),
    ),
    "image lost": (
        "kind", "load docker-image",
        'ERROR: image: "batchedapi-serving:dev" not present locally',
    ),
    "node stopped": (
        "kind", "load docker-image",
        "ERROR: failed to load image: "
        + of_docker(
            "exec --privileged -i batchedapi-control-plane ctr images import -",
            "Error response from daemon: container 5f is not running",
        ),
    ),
}  # fmt: skip
MADE_FIRST: Final = {"kubeconfig locked"}
"""Faults after which the cluster is there all the same: kind removes no node any more then."""


def main(folder: Path, program: str, arguments: list[str]) -> int:
    """Be one of the programs; returns its exit status."""
    words = " ".join(arguments)
    with (folder / "calls").open("a") as calls:
        calls.write(f"{program} {words}\n")
    faults = (folder / "faults").read_text().splitlines()
    if "no daemon" in faults and (program == "docker" or words == "get clusters"):
        return fail(NO_DAEMON if program == "docker" else f"ERROR: failed to list: {NO_DAEMON}")
    for name in faults:
        of, begin, says = FAULTS.get(name, ("", "", ""))
        if program == of and words.startswith(begin):
            if name in MADE_FIRST:
                (folder / "cluster").touch()
            return fail(says)
    match program:
        case "kind":
            kind(folder, arguments, words, never_ready="never ready" in faults)
        case "kubectl":
            return kubectl(folder, words)
        case "docker" if words == "build --help" and "docker tells of no secrets" not in faults:
            print("      --secret stringArray")
    return 0


def fail(says: str) -> int:
    """As a program does."""
    print(says, file=sys.stderr)
    return 1


def kind(folder: Path, arguments: list[str], words: str, *, never_ready: bool) -> None:
    """Carry out a kind command that succeeds."""
    cluster = folder / "cluster"
    match arguments[:2]:
        case ["create", "cluster"]:
            (folder / "configuration").write_text(sys.stdin.read())
            cluster.write_text("" if never_ready else "ready")
            kubeconfig = Path(arguments[arguments.index("--kubeconfig") + 1])
            kubeconfig.write_text("of kind")
        case ["delete", "cluster"]:
            cluster.unlink()
        case ["get", "clusters"]:
            if cluster.exists():
                print("batchedapi")
            else:
                print("No kind clusters found.", file=sys.stderr)
        case ["load", "docker-image"] | ["export", "logs"]:
            pass
        case _:
            raise NotImplementedError(words)


def kubectl(folder: Path, words: str) -> int:
    """Asks a cluster: one whose container was stopped does not answer."""
    cluster = folder / "cluster"
    if not cluster.exists() or (folder / "stopped").exists():
        return fail("The connection to the server 127.0.0.1:42211 was refused")
    if "nodes" in words:
        print("True" if cluster.read_text() == "ready" else "False")
    return 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), sys.argv[2], sys.argv[3:]))
