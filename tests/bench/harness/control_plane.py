"""etcd and kube-apiserver of one's own, which is audited; no node.

Controllers are started where a measurement needs them: pods are objects that nobody runs.
"""

import json
import os
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from tests.cluster.devcluster import pki, tools

from ports import free_port

from .servers import ending_on_sigterm

OPERATOR: Final = pki.Identity("operator", "/O=system:masters/CN=operator")
ADMIN: Final = pki.Identity("admin", "/O=system:masters/CN=admin")
NOBODY_ASKED: Final = "192.0.2.1"
"""Behind the Service `kubernetes`, which may not be a loopback address (of RFC 5737)."""
SERVER: Final = pki.Identity("kube-apiserver", "/CN=kube-apiserver", "DNS:localhost,IP:127.0.0.1")
CONTROLLERS: Final = (
    "deployment-controller", "replicaset-controller", "garbage-collector-controller",
    "disruption-controller", "resourcequota-controller", "namespace-controller",
    "serviceaccount-controller",
)  # fmt: skip
START_SECONDS: Final = 240.0
AUDIT: Final = {
    "apiVersion": "audit.k8s.io/v1",
    "kind": "Policy",
    "omitStages": ["RequestReceived"],
    "rules": [{"level": "Metadata", "users": ["operator"]}, {"level": "None"}],
}


@dataclass
class ControlPlane:
    """A running one."""

    folder: Path
    apiserver: "subprocess.Popen[bytes]"

    def kubeconfig(self, identity: pki.Identity) -> Path:
        """The file of that identity."""
        return self.folder / f"{identity.name}.kubeconfig"

    def audited(self) -> list[dict[str, Any]]:
        """Every request of the operator, in order of their ends."""
        lines = (self.folder / "audit.log").read_text().splitlines()
        return [json.loads(line) for line in lines if line.endswith("}")]


@contextmanager
def control_plane(folder: Path, *more: str) -> Iterator[ControlPlane]:
    """For as long as the block lasts; `more` are flags of kube-apiserver."""
    binary = tools.kubernetes()
    keys, port, etcd = folder / "pki", free_port(), f"http://127.0.0.1:{free_port()}"
    pki.make_authority(keys)
    for identity in (SERVER, ADMIN, OPERATOR):
        pki.issue(keys, identity)
    for identity in (ADMIN, OPERATOR):
        config = pki.kubeconfig(keys, identity, f"https://127.0.0.1:{port}")
        (folder / f"{identity.name}.kubeconfig").write_text(config)
    (folder / "audit.json").write_text(json.dumps(AUDIT))
    commands = (
        ["etcd", f"--data-dir={folder / 'etcd'}", f"--listen-client-urls={etcd}",
         f"--advertise-client-urls={etcd}", "--listen-peer-urls=http://127.0.0.1:0",
         "--unsafe-no-fsync", "--log-level=error"],
        ["kube-apiserver", f"--etcd-servers={etcd}", "--bind-address=127.0.0.1",
         f"--advertise-address={NOBODY_ASKED}", f"--secure-port={port}",
         "--service-cluster-ip-range=10.99.0.0/16", f"--tls-cert-file={keys / SERVER.name}.crt",
         f"--tls-private-key-file={keys / SERVER.name}.key",
         f"--client-ca-file={keys / 'ca.crt'}", "--service-account-issuer=https://localhost",
         f"--service-account-key-file={keys / 'sa.pub'}",
         f"--service-account-signing-key-file={keys / 'sa.key'}", "--authorization-mode=RBAC",
         "--disable-admission-plugins=ServiceAccount", "--shutdown-delay-duration=0s",
         f"--audit-policy-file={folder / 'audit.json'}",
         f"--audit-log-path={folder / 'audit.log'}", "--audit-log-maxsize=1000", *more],
    )  # fmt: skip
    running = []
    try:
        for command in commands:
            with (folder / f"{command[0]}.log").open("wb") as log:
                running.append(subprocess.Popen([binary, *command], stdout=log, stderr=log))
        plane = ControlPlane(folder, running[-1])
        until_ready(plane)
        with ending_on_sigterm():
            yield plane
    finally:
        for process in reversed(running):
            process.kill()
            process.wait()


@contextmanager
def controllers(plane: ControlPlane, names: str = ",".join(CONTROLLERS)) -> Iterator[None]:
    """kube-controller-manager with these controllers, for as long as the block lasts.

    The garbage collector learns of kinds that are there when it starts, of others half a minute
    later: install the CRD first.
    """
    keys, log = plane.folder / "pki", plane.folder / "kube-controller-manager.log"
    command: list[str | Path] = [
        tools.kubernetes(), "kube-controller-manager", f"--kubeconfig={plane.kubeconfig(ADMIN)}",
        "--secure-port=0", "--leader-elect=false", "--kube-api-qps=500", "--kube-api-burst=1000",
        f"--service-account-private-key-file={keys / 'sa.key'}",
        f"--root-ca-file={keys / 'ca.crt'}", f"--controllers={names}",
        "--concurrent-deployment-syncs=10", "--concurrent-replicaset-syncs=10",
        "--concurrent-gc-syncs=40", "--concurrent-namespace-syncs=40",
        "--horizontal-pod-autoscaler-sync-period=5s",
    ]  # fmt: skip
    with log.open("wb") as stream:
        process = subprocess.Popen(command, stdout=stream, stderr=stream)
    try:
        yield
    finally:
        process.kill()
        process.wait()


def until_ready(plane: ControlPlane) -> None:
    """Wait for /readyz."""
    environment = {**os.environ, "KUBECONFIG": str(plane.kubeconfig(ADMIN))}
    deadline = time.monotonic() + START_SECONDS
    while True:
        command = ["kubectl", "get", "--raw", "/readyz"]
        done = subprocess.run(command, env=environment, capture_output=True, check=False)
        if done.returncode == 0:
            return
        if time.monotonic() > deadline or plane.apiserver.poll() is not None:
            log = (plane.folder / "kube-apiserver.log").read_text()[-2000:]
            raise TimeoutError(f"no apiserver after {START_SECONDS} s: {log}")
        time.sleep(0.5)
