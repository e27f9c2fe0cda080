"""A node image for kind, of Go modules, Debian packages and kind's files: no registry is asked."""

import json
import shutil
from pathlib import Path
from typing import Final

from . import images, network, paths, tools
from .steps import run, step

TAG: Final = "kindest/node:batchedapi"
SOURCES: Final = paths.SOURCES / "kindnode"
PACKAGES: Final = (
    "bash,ca-certificates,conntrack,containernetworking-plugins,curl,dbus,ethtool,iproute2,iptables,"
    "jq,kmod,mount,nftables,procps,runc,systemd,systemd-sysv,util-linux"
)
"""What kind's images/base/Dockerfile installs, without storage; runc and CNI plugins."""
MODULES: Final = (
    "github.com/coredns/coredns@v1.14.6",
    "k8s.io/kubectl@{kubernetes}",
    "sigs.k8s.io/cri-tools@v1.37.0",
)
PROGRAMS: Final = {
    "coredns": "./coredns",
    "crictl": "sigs.k8s.io/cri-tools/cmd/crictl",
    "kubeadm": "k8s.io/kubernetes/cmd/kubeadm",
    "kubectl": "k8s.io/kubernetes/cmd/kubectl",
}
SANDBOX: Final = "registry.k8s.io/pause:3.10"
"""The name that kind's containerd asks for."""
NETWORK: Final = {
    "cniVersion": "0.4.0",
    "name": "pods",
    "plugins": [
        {
            "type": "bridge",
            "bridge": "cni0",
            "isGateway": True,
            "ipMasq": True,
            "hairpinMode": True,  # a pod reaches itself through its own Service
            "ipam": {
                "type": "host-local",
                "ranges": [[{"subnet": network.POD_CIDR}]],
                "routes": [{"dst": "0.0.0.0/0"}],
            },
        },
        {"type": "portmap", "capabilities": {"portMappings": True}},
    ],
}
NO_DRIVER: Final = {
    "apiVersion": "v1",
    "kind": "ConfigMap",
    "metadata": {"name": "bridge", "namespace": "kube-system"},
}
"""In the place of kindnetd, which is no Go module: the bridge needs nothing in the cluster."""
STORAGE_CLASS: Final = {
    "apiVersion": "storage.k8s.io/v1",
    "kind": "StorageClass",
    "metadata": {"name": "standard"},
    "provisioner": "kubernetes.io/no-provisioner",
}
"""It is there, as on kind, and binds nothing."""


def build() -> str:
    """Build the image with the Docker engine, and give its name.

    What is copied into it stays, so that a second build takes seconds.
    """
    sources = (Path(__file__), tools.KUBE_SOURCES / "go.mod", SOURCES / "coredns" / "main.go")
    context = paths.CACHE / f"kindnode-{tools.content_hash(*sources)}"
    context.mkdir(parents=True, exist_ok=True)
    debian = context / "debian.tar"
    if not debian.exists():
        tools.debian_packages()
        with step(f"node: mmdebstrap {images.SUITE}"):
            images.bootstrap(debian, PACKAGES)
    programs(context)
    files(context / "files")
    with step("node: images of the control plane"):
        version = f"--kubernetes-version={tools.kubernetes_version()}"
        names = run(context / "bin" / "kubeadm", "config", "images", "list", version).split()
        dns = [name for name in names if "/coredns" in name]
        control_plane = [name for name in names if "/coredns" not in name and "/pause" not in name]
        stage(context, "programs", *control_plane)
        stage(context, "coredns", *dns)
        stage(context, "pause", SANDBOX)
        run("docker", "save", "-o", context / "images.tar", *control_plane, *dns, SANDBOX)
    with step(f"node: {TAG}"):
        stage(context, "node", TAG)
    return TAG


def stage(context: Path, name: str, *tags: str) -> None:
    """Build a stage of the Dockerfile."""
    arguments = [f"--target={name}", f"--file={SOURCES / 'Dockerfile'}"]
    arguments += [f"--tag={tag}" for tag in tags]
    run("docker", "build", *arguments, context, env={"DOCKER_BUILDKIT": "1"})


def programs(context: Path) -> None:
    """Put all programs of the node into the context.

    What the local node does not have is built in a copy of its Go module, at the versions that are
    there: Go's build cache then has most of it.
    """
    made = context / "bin"
    made.mkdir(exist_ok=True)
    shutil.copy(tools.kubernetes(), made / "kube")
    shutil.copy(tools.pause(), context / "pause")
    for name in tools.CONTAINERD:
        shutil.copy(tools.go_program(name), made / name)
    module = context / "module"
    if not module.exists():
        with step("node: versions of Go modules"):
            resolve(module)
    for name, package in PROGRAMS.items():
        flags = tools.kubernetes_flags()
        tools.go_build(made / name, package, flags, what=name, module=module)


def resolve(module: Path) -> None:
    """Make the Go module, at the versions of `kube/go.mod`; it appears when it is whole."""
    partial = module.with_suffix(".partial")
    shutil.rmtree(partial, ignore_errors=True)
    shutil.copytree(SOURCES / "coredns", partial / "coredns")
    for name in ("go.mod", "go.sum"):
        shutil.copy(tools.KUBE_SOURCES / name, partial)
    required = json.loads(run("go", "mod", "edit", "-json", cwd=partial))["Require"]
    pinned = [(one["Path"], one["Version"]) for one in required if "k8s.io/" not in one["Path"]]
    run("go", "mod", "edit", *(f"-replace={path}={path}@{v}" for path, v in pinned), cwd=partial)
    kubernetes = tools.kubernetes_version()
    run("go", "get", *(one.format(kubernetes=kubernetes) for one in MODULES), cwd=partial)
    run("go", "get", *PROGRAMS.values(), cwd=partial)  # the checksums of what these import
    partial.rename(module)


def files(made: Path) -> None:
    """Make a folder of kind's own files, the network's configuration and the manifests."""
    shutil.rmtree(made, ignore_errors=True)
    module = tools.GO_PROGRAMS["kind"]
    kind = json.loads(run("go", "mod", "download", "-json", module))["Dir"]
    shutil.copytree(Path(kind) / "images" / "base" / "files", made, copy_function=shutil.copyfile)
    for path in (made, *made.rglob("*")):  # Go's are read-only
        path.chmod(0o755 if path.is_dir() or path.parent.name == "bin" else 0o644)
    texts = {
        "kind/version": tools.kubernetes_version(),
        "etc/cni/net.d/10-pods.conflist": json.dumps(NETWORK),
        "kind/manifests/default-cni.yaml": json.dumps(NO_DRIVER),
        "kind/manifests/default-storage.yaml": json.dumps(STORAGE_CLASS),
    }
    for name, text in texts.items():
        (made / name).parent.mkdir(parents=True, exist_ok=True)
        (made / name).write_text(text)
