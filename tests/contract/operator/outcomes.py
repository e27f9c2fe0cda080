"""Outcomes of a spec: refused, pods, or a condition; and whether they are reported well."""

import asyncio
import re
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, Final

from tests.contract.operator.generated import Place, words
from tests.contract.operator.world import Body, World

from batchedapi_core import contract
from batchedapi_operator.cluster import BATCHED_APIS, CONFIG_MAPS, DEPLOYMENTS, PODS, SERVICES
from batchedapi_operator.errors import ApplyError

ADMITTED, TOLD, REFUSED, WRONG = "admitted", "told", "refused", "wrong"
PATIENCE: Final = 90.0
"""Seconds until every child of an API is there, or its condition is, on a busy machine."""
_PACE: Final = 0.25
_REMEDY: Final = re.compile(
    r"must|should|expected|supported values|need|cannot|required|at most|create it|lower|raise|"
    r"unknown field|may not be|maximum|minimum|change|not found|was found|set |names? another|"
    r"leave it out",
    re.IGNORECASE,
)
"""Words of a message that says what to do."""
RESTRICTED: Final = {"pod-security.kubernetes.io/enforce": "restricted"}
"""Labels of a namespace in which pods are admitted under Pod Security `restricted` alone."""


@dataclass
class Seen:
    """A namespace as it was listed a moment ago."""

    apis: Mapping[str, Body] = field(default_factory=dict)
    deployments: Mapping[str, Body] = field(default_factory=dict)
    services: Mapping[str, Body] = field(default_factory=dict)
    revisions: Mapping[str, Body] = field(default_factory=dict)
    pods: Mapping[str, Body] = field(default_factory=dict)
    """By API and revision, one each: `iris/0123456789`; of web pods `iris/0123456789/web`."""
    rounds: int = 0

    async def look(self, world: World) -> None:
        """List all kinds once."""
        kinds = (BATCHED_APIS, DEPLOYMENTS, SERVICES, CONFIG_MAPS, PODS)
        found = await asyncio.gather(*(world.kube.find(kind, world.namespace) for kind in kinds))
        named = [{one["metadata"]["name"]: one for one in bodies} for bodies in found]
        self.apis, self.deployments, self.services, self.revisions, pods = named
        self.pods = {key: pod for pod in pods.values() if (key := _of_revision(pod)) is not None}
        self.rounds += 1


def _of_revision(pod: Body) -> str | None:
    labels = pod["metadata"].get("labels") or {}
    name, revision = labels.get(contract.LABEL_API), labels.get(contract.LABEL_REVISION)
    web = f"/{contract.ROLE_WEB}" if labels.get(contract.LABEL_ROLE) == contract.ROLE_WEB else ""
    gone = not name or "deletionTimestamp" in pod["metadata"]
    return None if gone else f"{name}/{revision}{web}"


@asynccontextmanager
async def watching(world: World) -> AsyncIterator[Seen]:
    """Look at the namespace all the time, for everybody who waits for something in it."""
    seen = Seen()

    async def look() -> None:
        while True:
            await seen.look(world)
            await asyncio.sleep(_PACE)

    async with asyncio.TaskGroup() as tasks:  # who waits for a look that failed would wait long
        looking = tasks.create_task(look())
        yield seen
        looking.cancel()


@dataclass(frozen=True)
class Outcome:
    """The outcome of a spec."""

    kind: str
    """ADMITTED, TOLD, REFUSED or WRONG."""
    said: str
    """By the apiserver or a condition; for WRONG what is missing."""


def conditions(api: Body) -> dict[str, Body]:
    """By type."""
    return {one["type"]: one for one in (api.get("status") or {}).get("conditions", ())}


def settled(seen: Seen, name: str) -> Outcome | None:
    """The outcome of an API that was stored; None while that cannot be told yet."""
    api = seen.apis.get(name)
    if api is None:
        return None
    valid = conditions(api).get("SpecValid")
    if valid is None or valid["observedGeneration"] != api["metadata"]["generation"]:
        return None
    if valid["status"] == "False":
        return Outcome(TOLD, valid["message"])
    if api["spec"].get("paused"):
        return Outcome(ADMITTED, "paused") if api["status"]["phase"] == "Paused" else None
    return Outcome(ADMITTED, "") if _all_there(seen, name, api) else None


def _all_there(seen: Seen, name: str, api: Body) -> bool:
    """Whether every child is that of the revision in the status, and pods of it were admitted."""
    deployment, service = seen.deployments.get(name), seen.services.get(name)
    if deployment is None or service is None:
        return False
    revision = deployment["spec"]["template"]["metadata"]["labels"][contract.LABEL_REVISION]
    named = api["status"]["revision"]["current"] == f"{name}-{revision}"
    pods = deployment["spec"]["replicas"] == 0 or f"{name}/{revision}" in seen.pods
    queue = (api["spec"].get("serverSideBatching") or {}).get("queue")
    web = queue is None or f"{name}/{revision}/{contract.ROLE_WEB}" in seen.pods
    return named and pods and web and f"{name}-{revision}" in seen.revisions


async def until_settled(seen: Seen, name: str, seconds: float = PATIENCE) -> Outcome:
    """Wait for pods or for a condition."""
    deadline, rounds = asyncio.get_running_loop().time() + seconds, seen.rounds + 2
    while True:
        found = settled(seen, name)
        if found is not None and seen.rounds >= rounds:
            return found
        if asyncio.get_running_loop().time() > deadline:
            api = seen.apis.get(name, {})
            there = [key for key in seen.pods if key.startswith(f"{name}/")]
            return Outcome(WRONG, f"after {seconds} s: status {api.get('status')}, pods {there}")
        await asyncio.sleep(_PACE / 2)


def well_told(place: Place, message: str) -> bool:
    """Whether a refusal names the field, or what it is a member of, and a remedy."""
    paths = [re.sub(r"\[\d+\]", "", words(place[:end])) for end in range(1, len(place) + 1)]
    near = list(dict.fromkeys(paths))[-2:]  # a member of a list has the path of the list
    plain = re.sub(r"\[[\w\"={}:]*\]", "", message)
    return any(path in plain for path in near) and _REMEDY.search(message) is not None


async def outcome_of(world: World, seen: Seen, name: str, place: Place, spec: Body) -> Outcome:
    """Create an API with that spec, see what becomes of it, and delete it."""
    try:
        body = {"metadata": {"name": name}, "spec": spec}
        query = {"fieldValidation": "Strict"}
        full = {"apiVersion": BATCHED_APIS.api_version, "kind": BATCHED_APIS.kind, **body}
        await world.kube._request("POST", BATCHED_APIS.path(world.namespace), query, full)
    except ApplyError as error:
        kind = REFUSED if well_told(place, error.message) else WRONG
        return Outcome(kind, error.message)
    found = await until_settled(seen, name)
    if found.kind == TOLD and not well_told(place, found.said):
        found = Outcome(WRONG, f"told without field or remedy: {found.said}")
    if found.kind != WRONG and (missing := _untold(seen.apis[name])):
        found = Outcome(WRONG, missing)
    await world.delete(BATCHED_APIS, name)
    return found


def _untold(api: Body) -> str:
    """The part that a status lacks; empty if it is complete."""
    status, generation = api["status"], api["metadata"]["generation"]
    needed = {"Ready", "Progressing", "SpecValid", "ModelLoaded", "Scheduled"}
    late = {
        one["type"] for one in status["conditions"] if one.get("observedGeneration") != generation
    }
    if missing := needed - set(conditions(api)) or needed & late:
        return f"no condition {sorted(missing)} of this generation"
    return "" if status.get("message") else "a status without a message"


def state_of(seen: Seen, name: str) -> Any:
    """The state of an API, in words that are alike for APIs of another name and history."""
    api, deployment = seen.apis[name], seen.deployments[name]
    labels = deployment["spec"]["template"]["metadata"]["labels"]
    revision = seen.revisions[f"{name}-{labels[contract.LABEL_REVISION]}"]
    valid = conditions(api)["SpecValid"]
    scaled = api["spec"]["autoscaling"]["mode"] == "Native"
    found = {
        "deployment": {k: v for k, v in deployment["spec"].items() if k != "replicas"},
        "service": {
            k: v for k, v in seen.services[name]["spec"].items() if not k.startswith("clusterIP")
        },
        "data": revision.get("data"),
        "binaryData": revision.get("binaryData"),
        "valid": [valid["status"], valid["reason"], valid["message"]],
        "replicas": None if scaled else deployment["spec"]["replicas"],
        "url": api["status"]["url"],
    }
    return _renamed(found, name, labels[contract.LABEL_REVISION])


def _renamed(value: Any, name: str, digest: str) -> Any:
    if isinstance(value, dict):
        return {key: _renamed(one, name, digest) for key, one in value.items()}
    if isinstance(value, list):
        # a server-side apply keeps no order of what has names, such as variables
        renamed = [_renamed(one, name, digest) for one in value]
        return sorted(renamed, key=repr) if renamed and isinstance(renamed[0], dict) else renamed
    if isinstance(value, str):
        return value.replace(digest, "REVISION").replace(name, "NAME")
    return value
