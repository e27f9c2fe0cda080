"""A real kube-apiserver (KUBECONFIG), the CRD in it, and the operator as a process."""

import asyncio
import hashlib
import os
import subprocess
import sys
import urllib.error
import urllib.request
import uuid
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from crds.crd import crd
from tests.contract.operator.world import CUSTOM_RESOURCES, NAMESPACES, World, until

from batchedapi_operator.kube import Kube
from ports import free_port

OPERATOR_LABEL = "app.kubernetes.io/name=batchedapi-operator"
SERVING_IMAGE = "batchedapi-serving:dev"


@pytest.fixture(scope="session")
def cluster() -> None:
    """A cluster to talk to."""
    if not os.environ.get("KUBECONFIG"):
        pytest.skip("KUBECONFIG names no cluster; make cluster-up brings one up")
    found = subprocess.run(
        ["kubectl", "get", "deployments", "-A", "-o", "name", "-l", OPERATOR_LABEL],
        capture_output=True, text=True, check=True,
    ).stdout  # fmt: skip
    if found.strip():
        pytest.fail("an operator runs in this cluster and would act too; helm uninstall it first")


@pytest.fixture(scope="session")
def installed_crd(cluster: None) -> None:  # noqa: ARG001 - needed, not used
    """The CRD as generated; what the apiserver refuses fails here."""
    asyncio.run(_install())


async def _install() -> None:
    definition = crd()
    name = definition["metadata"]["name"]
    async with Kube.connected() as kube:
        path = f"{CUSTOM_RESOURCES}/{name}"
        query = {"fieldManager": "contract-tests", "force": "true"}
        await kube._request(
            "PATCH", path, query, definition, content_type="application/apply-patch+yaml"
        )

        async def established() -> bool:
            found = await kube._request("GET", path)
            conditions = found.get("status", {}).get("conditions") or ()
            return any(c["type"] == "Established" and c["status"] == "True" for c in conditions)

        await until(established, "the CRD to be established")
        await asyncio.sleep(0.5)  # the apiserver serves it a moment after it says so


@pytest.fixture(scope="session")
def watched(installed_crd: None) -> Iterator[str]:  # noqa: ARG001 - needed, not used
    """The namespace in which the operator acts, deleted at the end of a run."""
    yield from _made_namespace()


@pytest.fixture(scope="session")
def unwatched(installed_crd: None) -> Iterator[str]:  # noqa: ARG001 - needed, not used
    """One in which nobody acts but the test, whichever tests have run before it."""
    yield from _made_namespace()


def _made_namespace() -> Iterator[str]:
    name = f"operator-contract-{uuid.uuid4().hex[:8]}"
    asyncio.run(_namespace(name, create=True))
    yield name
    asyncio.run(_namespace(name, create=False))


async def _namespace(name: str, *, create: bool) -> None:
    async with Kube.connected() as kube:
        if create:
            body = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}}
            await kube._request("POST", NAMESPACES, {}, body)
        else:
            await kube._request("DELETE", f"{NAMESPACES}/{name}", {})


@pytest.fixture
def namespace(request: pytest.FixtureRequest) -> str:
    """Where the test acts, and the operator too if the test asks for it."""
    wanted = "watched" if "operator" in request.fixturenames else "unwatched"
    return str(request.getfixturevalue(wanted))


@pytest.fixture
async def world(namespace: str) -> AsyncIterator[World]:
    """The namespace, through the operator's own client."""
    async with Kube.connected() as kube:
        yield World(kube, namespace)


@dataclass(frozen=True)
class OperatorProcess:
    """The operator as it runs for users."""

    process: subprocess.Popen[bytes]
    admin_port: int
    decisions_port: int
    log: Path

    def admin(self, path: str) -> tuple[int, str]:
        """Status and text of an answer of the admin port; 0 while nobody listens."""
        return self._asked(self.admin_port, path)

    def decisions(self, path: str) -> tuple[int, str]:
        """The same of the decisions port."""
        return self._asked(self.decisions_port, path)

    def _asked(self, port: int, path: str) -> tuple[int, str]:
        try:
            url = f"http://127.0.0.1:{port}{path}"
            with urllib.request.urlopen(url, timeout=2) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as error:
            return error.code, error.read().decode()
        except OSError:
            return 0, ""


def start_operator(
    namespaces: str, log: Path, release: str = "", kubeconfig: Path | None = None, **more: str
) -> OperatorProcess:
    """`python -m batchedapi_operator`, for some namespaces.

    All of one release share a Lease. Through another kubeconfig than ours, if one is given; `more`
    is of its environment.
    """
    port, decisions = free_port(), free_port()
    environment = {
        **os.environ,
        "BATCHEDAPI_WATCH_NAMESPACE": namespaces,
        "BATCHEDAPI_LEASE_NAME": release
        or f"operator-of-{hashlib.sha256(namespaces.encode()).hexdigest()[:12]}",
        "BATCHEDAPI_SERVING_IMAGE": SERVING_IMAGE,
        "BATCHEDAPI_ADMIN_PEERS": '[{"podSelector": {}}]',
        "BATCHEDAPI_ADMIN_PORT": str(port),
        "BATCHEDAPI_ADMIN_HOST": "127.0.0.1",
        "BATCHEDAPI_DECISIONS_PORT": str(decisions),
        **more,
    }
    if kubeconfig is not None:
        environment["KUBECONFIG"] = str(kubeconfig)
    with log.open("ab") as stream:
        process = subprocess.Popen(
            [sys.executable, "-m", "batchedapi_operator"], env=environment, stderr=stream
        )
    return OperatorProcess(process, port, decisions, log)


@pytest.fixture(scope="session")
def operator(watched: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[OperatorProcess]:
    """One operator for all tests of a run that ask for it."""
    running = start_operator(watched, tmp_path_factory.mktemp("operator") / "operator.log")
    try:
        asyncio.run(until_ready(running))
        yield running
    finally:
        running.process.terminate()
        running.process.wait(timeout=30)


async def until_ready(running: OperatorProcess) -> None:
    """Wait for /readyz."""

    async def ready() -> bool:
        return running.admin("/readyz")[0] == 200

    await until(ready, f"the operator to be ready; log: {running.log.read_text()[-2000:]}")
