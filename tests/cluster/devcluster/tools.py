"""Gets what the commands need: Debian packages, Go programs, the Kubernetes binary."""

import hashlib
import os
import shutil
from pathlib import Path
from typing import Final

from . import paths, state
from .steps import ClusterError, run, step

PACKAGES: Final = (
    "buildah",
    "ca-certificates",
    "containernetworking-plugins",
    "iproute2",
    "iptables",
    "mmdebstrap",
    "openssl",
    "runc",
)
CONTAINERD: Final = ("containerd", "containerd-shim-runc-v2", "ctr")
"""Debian's is 1.6, and Kubernetes since 1.36 wants 2.0."""
GO_PROGRAMS: Final = {
    **{one: f"github.com/containerd/containerd/v2/cmd/{one}@v2.4.2" for one in CONTAINERD},
    "grpc-health-probe": "github.com/grpc-ecosystem/grpc-health-probe@v0.4.42",
    "grpcurl": "github.com/fullstorydev/grpcurl/cmd/grpcurl@v1.9.3",
    "helm": "helm.sh/helm/v3/cmd/helm@v3.22.0",
    "kind": "sigs.k8s.io/kind@v0.33.0",  # its node image is Kubernetes 1.37
    "kubeconform": "github.com/yannh/kubeconform/cmd/kubeconform@v0.8.0",
}
HELM_KUBERNETES: Final = ("1", "37")
"""Major and minor of the Kubernetes whose client-go helm's go.mod names. Its Makefile tells helm;
untold, it takes every cluster that it does not ask for 1.20, and the chart's kubeVersion fails."""
KUBE_SOURCES: Final = paths.SOURCES / "kube"
GO: Final = {"CGO_ENABLED": "0", "GOGC": "400"}
"""With fewer collections the compiler takes a sixth less time, and 1 GiB more of memory."""


def require(*programs: str) -> None:
    """Check that programs are on PATH.

    Raises:
        ClusterError: Naming all that are missing.
    """
    missing = [program for program in programs if shutil.which(program) is None]
    if missing:
        raise ClusterError(f"missing on PATH: {', '.join(missing)}; install and try again")


def debian_packages() -> None:
    """Install what is missing of ``PACKAGES``; nothing is fetched when nothing is.

    Raises:
        ClusterError: This is not a Debian, or apt failed.
    """
    if shutil.which("dpkg-query") is None:
        names = ", ".join(PACKAGES)
        raise ClusterError(f"no dpkg here: install what Debian calls {names}, or use CLUSTER=kind")
    with state.one_at_a_time("packages"):
        listed = run("dpkg-query", "-W", "-f", "${Package} ${db:Status-Status}\n").splitlines()
        missing = [name for name in PACKAGES if f"{name} installed" not in listed]
        if not missing:
            return
        with step(f"apt-get install {' '.join(missing)}"):
            run("apt-get", "update", "-q")
            apt = ("apt-get", "install", "-y", "-q", "--no-install-recommends")
            run(*apt, *missing, env={"DEBIAN_FRONTEND": "noninteractive"})


def go_program(name: str) -> Path:
    """Install a pinned Go program under .cache and link it into .cache/bin, unless it is there."""
    package = GO_PROGRAMS[name]
    version = package.rpartition("@")[2]
    flags = linker_flags(name, version)
    stamp = f"-{hashlib.sha256(flags.encode()).hexdigest()[:8]}" if flags else ""
    program = paths.CACHE / "go" / f"{name}-{version}{stamp}" / name
    link = paths.BIN / name
    with state.one_at_a_time(name):
        if not program.exists():
            require("go")
            with step(f"go install {package}"):
                build = ("go", "install", "-trimpath", "-ldflags", flags, package)
                run(*build, env={**GO, "GOBIN": str(program.parent)})
        if not link.exists() or link.resolve() != program:
            paths.BIN.mkdir(parents=True, exist_ok=True)
            link.unlink(missing_ok=True)
            link.symlink_to(os.path.relpath(program, link.parent))
    return link


def linker_flags(name: str, version: str) -> str:
    """Linker flags that a program's own Makefile sets and `go install` alone does not."""
    if name != "helm":
        return ""
    major, minor = HELM_KUBERNETES
    told = {"internal/version.version": version}
    for package in ("pkg/chartutil", "pkg/lint/rules"):
        told |= {f"{package}.k8sVersionMajor": major, f"{package}.k8sVersionMinor": minor}
    return " ".join(f"-X helm.sh/helm/v3/{name}={value}" for name, value in told.items())


def content_hash(*files: Path) -> str:
    """Hash names and contents of files, 12 hexadecimal digits."""
    digest = hashlib.sha256()
    for file in files:
        content = file.read_bytes()
        digest.update(f"{file.name} {len(content)}\n".encode() + content)
    return digest.hexdigest()[:12]


def kubernetes_version() -> str:
    """Read the version of Kubernetes, such as v1.37.2, out of go.mod."""
    for line in (KUBE_SOURCES / "go.mod").read_text().splitlines():
        words = line.removeprefix("require").split()
        if words[:1] == ["k8s.io/kubernetes"]:
            return words[1]
    raise ClusterError(f"{KUBE_SOURCES / 'go.mod'}: expected a line 'k8s.io/kubernetes vX.Y.Z'")


def kubernetes() -> Path:
    """Build the binary that holds etcd and all of Kubernetes, unless these sources were built.

    Takes four to nine minutes with an empty Go build cache on two cores.
    """
    sources = [KUBE_SOURCES / name for name in ("go.mod", "go.sum", "main.go")]
    binary = paths.CACHE / f"kube-{content_hash(*sources)}"
    what = f"Kubernetes {kubernetes_version()} and etcd"
    go_build(binary, ".", kubernetes_flags(), what=what)
    return binary


def kubernetes_flags() -> str:
    """Linker flags that tell Kubernetes' programs their version."""
    version = kubernetes_version()
    major, minor, _ = version.removeprefix("v").split(".")
    stamp = "-X k8s.io/component-base/version.git"
    return f"-s -w {stamp}Version={version} {stamp}Major={major} {stamp}Minor={minor}"


def pause() -> Path:
    """Build the program that holds a pod's namespaces."""
    binary = paths.CACHE / f"pause-{content_hash(KUBE_SOURCES / 'pause' / 'main.go')}"
    go_build(binary, "./pause", "-s -w", what="pause")
    return binary


def go_build(
    binary: Path, package: str, flags: str, *, what: str, module: Path = KUBE_SOURCES
) -> None:
    """Build a static binary, unless it is there; it appears when it is whole."""
    with state.one_at_a_time(binary.name):
        if binary.exists():
            return
        binary.parent.mkdir(parents=True, exist_ok=True)
        partial = binary.with_suffix(".partial")
        build = ("go", "build", "-trimpath", "-buildvcs=false", "-ldflags", flags, "-o", partial)
        with step(f"go build: {what}"):
            run(*build, package, cwd=module, env=GO)
        partial.rename(binary)
