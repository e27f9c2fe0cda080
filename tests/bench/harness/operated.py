"""The operator in a control plane without nodes, beside pods that only have pages."""

import asyncio
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import aiohttp

from batchedapi_core import contract
from batchedapi_operator.cluster import JsonObject
from batchedapi_operator.kube import Kube
from ports import free_port

from .control_plane import OPERATOR, ControlPlane

CRD: Final = Path(__file__).resolve().parents[3] / "crds/batchedapis.yaml"
NAMESPACE: Final = "bench"
_MERGE: Final = "application/merge-patch+json"


def operate(pods_port: str, admin_port: str, decisions_port: str, namespace: str) -> None:
    """The operator, with pods that answer on a port of ours."""
    contract.ADMIN_PORT = int(pods_port)  # type: ignore[misc] # 8081 may be somebody's here
    from batchedapi_operator import cluster, logs, process  # noqa: PLC0415 - they read the port

    settings = process.Settings(
        "serving:bench",
        cluster.Namespaces((namespace,)),
        log_format=logs.LogFormat.JSON,
        admin_host="127.0.0.1",
        admin_port=int(admin_port),
        decisions_port=int(decisions_port),
        lease_name=f"operator-of-{namespace}",
    )
    logs.set_up(settings.log_level, settings.log_format)
    asyncio.run(process.run(settings))


@dataclass
class Rig:
    """The control plane, and the operator's process, which sees one namespace."""

    plane: ControlPlane
    kube: Kube
    pods_port: int
    log: Path
    namespace: str = NAMESPACE
    operator: "subprocess.Popen[bytes] | None" = None
    admin_port: int = 0

    def start_operator(self) -> None:
        """As a process of its own; liveness is asked by us."""
        self.admin_port = free_port()
        environment = {**os.environ, "KUBECONFIG": str(self.plane.kubeconfig(OPERATOR))}
        ports = map(str, (self.pods_port, self.admin_port, free_port()))
        command = [sys.executable, "-m", "harness.operated", *ports, self.namespace]
        with self.log.open("ab") as stream:
            self.operator = subprocess.Popen(
                command, env=environment, stderr=stream, cwd=Path(__file__).parents[1]
            )

    def stop_operator(self) -> None:
        """As a rollout would."""
        if self.operator is not None:
            self.operator.terminate()
            self.operator.wait(30)
            self.operator = None

    async def leads(self) -> bool:
        """Whether this operator's gauge says so."""
        url = f"http://127.0.0.1:{self.admin_port}{contract.PATH_METRICS}"
        try:
            timeout = aiohttp.ClientTimeout(total=1)
            async with aiohttp.ClientSession(timeout=timeout) as session, session.get(url) as found:
                return f"\n{contract.OPERATOR_LEADER} 1.0" in await found.text()
        except (aiohttp.ClientError, TimeoutError):
            return False

    async def post(self, resource: Any, body: JsonObject) -> JsonObject:
        """As a user's tool would."""
        full = {"apiVersion": resource.api_version, "kind": resource.kind, **body}
        return await self.kube._request("POST", resource.path(self.namespace), {}, full)

    async def merge(self, resource: Any, name: str, body: JsonObject, sub: str = "") -> None:
        """A merge patch."""
        path = resource.path(self.namespace, name, sub)
        await self.kube._request("PATCH", path, {}, body, content_type=_MERGE)


def address(name: str, replica: int) -> str:
    """Address of a pod of an API, on this machine."""
    number = int(name.rpartition("-")[2])
    return f"127.{60 + number // 250}.{1 + number % 250}.{1 + replica}"


if __name__ == "__main__":
    operate(*sys.argv[1:])
