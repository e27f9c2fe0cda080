"""The local cluster: one node on this machine, started as ordinary processes; needs root."""

import os
import shutil
import socket
from functools import partial
from pathlib import Path
from typing import Final

from . import network, node, paths, pki, processes, state, tools
from .engines import Buildah
from .steps import ClusterError, run, step, succeeds, wait_until

START_SECONDS: Final = 120.0
"""Ten times what a start takes on two idle cores: others may be using them."""
SOCKET_PATH_LIMIT: Final = 107
"""Characters the kernel takes for the path of a Unix socket."""
CONTAINERD: Final = "containerd"
NAMES: Final = (CONTAINERD, "etcd", "kube-apiserver", *node.after_api_server())


def kubectl(*arguments: str) -> str:
    """Run kubectl against the local cluster."""
    return run("kubectl", "--kubeconfig", paths.KUBECONFIG, *arguments)


def ready() -> bool:
    """Say whether the API answers, the node is Ready and pods can be made."""
    api = ("kubectl", "--kubeconfig", paths.KUBECONFIG, "--request-timeout=5s", "get")
    node_ready = 'jsonpath={.status.conditions[?(@.type=="Ready")].status}'
    try:
        return (
            run(*api, "--raw", "/readyz") == "ok"
            and run(*api, "node", node.NODE, "-o", node_ready) == "True"
            and succeeds(*api, "serviceaccount", "default")
        )
    except ClusterError:
        return False


def healthy() -> bool:
    """Say whether everything that `up` starts runs and answers."""
    return set(processes.recorded()) == set(NAMES) and ready()


def up() -> None:
    """Bring the cluster up from whatever state it is in.

    Raises:
        ClusterError: A step failed; calling again starts from scratch.
    """
    if os.geteuid():
        raise ClusterError("CLUSTER=local: expected to run as root; or use CLUSTER=kind")
    if len(str(node.SOCKET)) > SOCKET_PATH_LIMIT:
        raise ClusterError(f"{node.SOCKET}: too long for a socket; move the repository")
    if healthy():
        print("local cluster is up")
        return
    tools.debian_packages()
    binary = tools.kubernetes()
    for program in tools.CONTAINERD:
        tools.go_program(program)
    pause = pause_archive()
    down()
    check_ports()
    start(binary, pause)


def start(binary: Path, pause: Path) -> None:
    """Start everything, on a machine where nothing of it runs."""
    state.note_flavour("local")
    with step("certificates and configuration"):
        configure()
    with step(f"network: bridge {network.BRIDGE}"):
        network.set_up()
    with step("containerd, etcd, kube-apiserver"):
        containerd = [str(paths.BIN / CONTAINERD), "-c", str(paths.RUN / "containerd.toml")]
        processes.start(CONTAINERD, containerd)
        for command in (node.etcd(), node.api_server()):
            processes.start(command[0], [str(binary), *command])
        answers = partial(succeeds, "kubectl", "--kubeconfig", paths.KUBECONFIG, "get", "--raw")
        check = partial(processes.check, NAMES[:3])
        wait_until(partial(answers, "/readyz"), "apiserver", seconds=START_SECONDS, check=check)
        load(pause)
    with step("kubelet, controllers, scheduler, proxy: node Ready"):
        for name, command in node.after_api_server().items():
            processes.start(name, [str(binary), *command])
        check = partial(processes.check, NAMES)
        wait_until(ready, "node Ready", seconds=START_SECONDS, check=check)


def configure() -> None:
    """Write certificates, kubeconfig files and configuration."""
    pki.make_authority(node.PKI)
    for identity in (*node.CLIENTS, node.API_SERVER):
        pki.issue(node.PKI, identity)
    secrets = {
        paths.RUN / f"{identity.name}.kubeconfig": pki.kubeconfig(node.PKI, identity, node.SERVER)
        for identity in node.CLIENTS
    }
    for file, content in (secrets | node.files()).items():
        file.parent.mkdir(parents=True, exist_ok=True)
        file.touch(mode=0o600)
        file.write_text(content)
    shutil.copy(paths.RUN / f"{node.ADMIN.name}.kubeconfig", paths.KUBECONFIG)


def pause_archive() -> Path:
    """Make the image that holds a pod's namespaces, as a docker-archive."""
    binary = tools.pause()
    archive = binary.with_suffix(".tar")
    with state.one_at_a_time("images"):
        if archive.exists():
            return archive
        with step("image: pause"):
            dockerfile = f'FROM scratch\nCOPY {binary.name} /pause\nENTRYPOINT ["/pause"]\n'
            Buildah().build_from_text(node.PAUSE_IMAGE, dockerfile, context=binary.parent)
            Buildah().archive(node.PAUSE_IMAGE, archive)
    return archive


def load(archive: Path) -> None:
    """Put the images of a docker-archive where the kubelet finds them."""
    ctr = (paths.BIN / "ctr", "--address", node.SOCKET, "--namespace", "k8s.io")
    run(*ctr, "images", "import", archive)


def check_ports() -> None:
    """Check that no other cluster holds the ports, now that ours is down.

    Raises:
        ClusterError: One does.
    """
    port = taken_port()
    if port is not None:
        raise ClusterError(f"port {port} is taken: another Kubernetes or etcd?")


def taken_port() -> int | None:
    """One of ours that somebody listens on."""
    for port in node.PORTS:
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                return port
    return None


def down() -> None:
    """Stop and remove all that `up` made, however far it got; says nothing where nothing is."""
    shims = processes.shims(node.SOCKET)
    daemons = processes.recorded()
    if daemons or shims:
        with step(f"kill {len(daemons)} daemons and {len(shims)} pods"):
            # Daemons first: the kubelet would start again what is killed under it.
            processes.kill(set(daemons.values()))
            shims = processes.shims(node.SOCKET)
            processes.kill(processes.children(shims) | shims)
    mounts = [line.split()[1] for line in Path("/proc/mounts").read_text().splitlines()]
    ours = [mount for mount in mounts if mount.startswith(f"{paths.RUN}/")]
    if ours:
        with step(f"unmount {len(ours)} file systems"):
            run("umount", *reversed(ours))
    remove_network()
    if state.exists():
        with step("remove state"):
            remove_sockets_and_groups()
            state.forget()


def remove_network() -> None:
    """Remove ours, now that our daemons are gone, or what is left of a dead one.

    Bridge and chains have the same names for each checkout's cluster: where somebody listens all
    the same, they are those of another one, which runs.
    """
    left = network.SAVED.exists() or succeeds("ip", "link", "show", network.BRIDGE)
    if left and taken_port() is None:
        with step("network: bridge, iptables rules, kernel settings"):
            network.tear_down()


def remove_sockets_and_groups() -> None:
    """Remove what killed containers leave outside of our folder."""
    for note in paths.RUN.glob("containerd-state/*/k8s.io/*/address"):
        Path(note.read_text().removeprefix("unix://")).unlink(missing_ok=True)
    control_groups = Path("/sys/fs/cgroup")  # a folder for each controller in version 1
    for root in (*control_groups.glob("kubepods"), *control_groups.glob("*/kubepods")):
        for folder, _, _ in os.walk(root, topdown=False):
            Path(folder).rmdir()
