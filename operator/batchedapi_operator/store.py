"""The newest version of watched objects, to be read without asking the apiserver.

The autoscaler looks at every API every two seconds and reads from here. The reconciler reads
the apiserver itself: a deletion or a first write must not be decided on what may be stale.
"""

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Final

from batchedapi_core import contract
from batchedapi_operator.cluster import (
    CONFIG_MAPS,
    DEPLOYMENTS,
    DISRUPTION_BUDGETS,
    SERVICES,
    JsonObject,
    ObjectKey,
    Resource,
    section,
)
from batchedapi_operator.resources import canary_name, deployment_names, web_name
from batchedapi_operator.views import ChildView, DeploymentView, Observed, PodView, controller_uid

_IDENTITY: Final = ("name", "namespace", "uid", "generation")
"""Members of an API's metadata that are kept."""


def version_of(body: JsonObject) -> tuple[str, int]:
    """Uid and generation of an API: another pair after each change of the spec."""
    return body["metadata"]["uid"], body["metadata"].get("generation", 0)


@dataclass(frozen=True, slots=True)
class ApiView:
    """A BatchedAPI as the watch brought it last. Nobody changes the two objects."""

    uid: str
    generation: int
    source: str | None
    """The ConfigMap that its code is from."""
    document: JsonObject
    """Its identity and spec."""
    status: JsonObject
    promote: str = ""
    """REVISION@canarySince of the canary that its user promotes."""

    @classmethod
    def of(cls, body: JsonObject) -> "ApiView":
        """From its whole body."""
        metadata, (uid, generation) = body["metadata"], version_of(body)
        identity = {name: metadata[name] for name in _IDENTITY if name in metadata}
        document = {**body, "metadata": identity}
        status = document.pop("status", None) or {}
        source: object = body  # it may be invalid: whatever stands where the name should
        for part in ("spec", "predictor", "source", "configMap"):
            source = source.get(part) if isinstance(source, dict) else None
        name = source if isinstance(source, str) else None
        promote = section(metadata, "annotations").get(contract.ANNOTATION_PROMOTE, "")
        return cls(uid, generation, name, document, status, promote)

    @property
    def spec_version(self) -> tuple[str, int]:
        """Another after each change of the spec: the apiserver numbers them."""
        return self.uid, self.generation


class Store:
    """The latest version of each watched object. One writer: the watches' handlers."""

    def __init__(self) -> None:
        self._apis: dict[ObjectKey, ApiView] = {}
        self._deployments: dict[ObjectKey, DeploymentView] = {}
        self._webs: dict[ObjectKey, DeploymentView] = {}
        """Deployments of web pods, by the API."""
        self._canaries: dict[ObjectKey, DeploymentView] = {}
        self._pods: defaultdict[ObjectKey, dict[str, PodView]] = defaultdict(dict)
        self._replica_sets: defaultdict[ObjectKey, dict[str, ChildView]] = defaultdict(dict)
        self._others: defaultdict[ObjectKey, dict[tuple[Resource, str], str]] = defaultdict(dict)
        """Fingerprints of children that nobody asks for here, by kind and name."""

    def put_api(self, body: JsonObject) -> bool:
        """Remember an API; True if its user has changed it, or promotes its canary."""
        key, found = ObjectKey.of(body), ApiView.of(body)
        before, self._apis[key] = self._apis.get(key), found
        if before is None or before.spec_version != found.spec_version:
            return True
        return before.promote != found.promote

    def remove_api(self, key: ObjectKey) -> None:
        """Forget an API and its children."""
        self._apis.pop(key, None)
        self._deployments.pop(key, None)
        self._webs.pop(key, None)
        self._canaries.pop(key, None)
        self._pods.pop(key, None)
        self._replica_sets.pop(key, None)
        self._others.pop(key, None)

    def put_deployment(self, key: ObjectKey, body: JsonObject) -> bool:
        """Remember a Deployment of the API `key`; True if it is news."""
        if not self._is_child(DEPLOYMENTS, key, body):
            return False
        known = self._of_name(key, body["metadata"]["name"])
        before, found = known.get(key), DeploymentView.of(body)
        known[key] = found
        return before != found

    def _of_name(self, key: ObjectKey, name: str) -> dict[ObjectKey, DeploymentView]:
        """Where the Deployment of that name, which is one of the API's, is remembered."""
        if name == canary_name(key.name):
            return self._canaries
        return self._deployments if name == key.name else self._webs

    def put_pod(self, key: ObjectKey, body: JsonObject) -> bool:
        """Remember a pod that carries the label of the API `key`; True if it is news."""
        pod = PodView.of(body)
        before = self._pods[key].get(pod.name)
        found = self._pods[key][pod.name] = _starting_as_before(pod, before)
        return before != found

    def put_replica_set(self, key: ObjectKey, body: JsonObject) -> bool:
        """Remember a ReplicaSet that carries the label of the API `key`; its end alone is news."""
        child = ChildView.of(body)
        self._replica_sets[key][child.name] = child
        return False

    def put_named(self, resource: Resource, key: ObjectKey, body: JsonObject) -> bool:
        """Remember a child that has the name of the API `key`, by its kind; True if it is news."""
        return self._put(key, resource, body)

    def put_revision(self, key: ObjectKey, body: JsonObject) -> bool:
        """Remember that there is a revision of the API `key`; True if it is news."""
        return self._put(key, CONFIG_MAPS, body)

    def concerned(self, resource: Resource, body: JsonObject) -> set[ObjectKey]:
        """APIs that an object may be a child of: by its label, its controller, or its name.

        Of a child that is known the name tells, whatever has become of its labels and owners.
        """
        labelled, child = ObjectKey.of_api(body), ObjectKey.of(body)
        name, found = child.name, set[ObjectKey]()
        # a revision's ends in its digest
        for key in (ObjectKey(child.namespace, one) for one in (name, name.rpartition("-")[0])):
            if resource is DEPLOYMENTS:
                known = name in deployment_names(key.name) and key in self._of_name(key, name)
            else:
                known = key in self._others and (resource, name) in self._others[key]
            if known:
                found.add(key)
        owner = ObjectKey(child.namespace, ChildView.of(body).owner_api)
        return found | {key for key in (labelled, owner) if key is not None and key.name}

    def revisions(self, key: ObjectKey) -> tuple[str, ...]:
        """Names of the revisions of an API that are known."""
        known = self._others.get(key) or {}
        return tuple(name for kind, name in known if kind is CONFIG_MAPS)

    def put_observed(
        self, document: JsonObject, seen: Observed, since: ApiView | None = None
    ) -> None:
        """Take over what was just read, so that a watch that brings the same brings no news.

        Whoever reads is to act on it. A watch that was cut off never tells of what was deleted
        meanwhile: this does.

        Args:
            document: The API, read first.
            seen: Its children, read after it. Whatever a watch has brought of them meanwhile has
                queued the API, so that they are read anew.
            since: The API as it was here before it was read. What has come since is newer.
        """
        key = ObjectKey.of(document)
        known = self._apis.get(key)
        if known is None and since is not None:
            return  # deleted meanwhile
        if known is since:
            self.put_api(document)
        for held, deployment in (
            (self._deployments, seen.deployment),
            (self._webs, seen.web.deployment),
            (self._canaries, seen.canary.deployment),
        ):
            held.pop(key, None)
            if deployment is not None:
                held[key] = deployment
        self.replace_pods(key, (*seen.pods, *seen.web.pods, *seen.canary.pods))
        found = {(CONFIG_MAPS, one.name): one.fingerprint for one in seen.revisions}
        if seen.service is not None:
            found[SERVICES, seen.service.name] = seen.service.fingerprint
        if seen.peers is not None:
            found[SERVICES, seen.peers.name] = seen.peers.fingerprint
        found |= {(kind, one.name): one.fingerprint for kind, one in seen.policies.items()}
        if seen.web.budget is not None:
            found[DISRUPTION_BUDGETS, seen.web.budget.name] = seen.web.budget.fingerprint
        self._others[key] = found

    def differing(
        self, resource: Resource, listed: Iterable[JsonObject], namespace: str | None = None
    ) -> set[ObjectKey]:
        """APIs of which the children of one kind are not those of a fresh list of metadata.

        They differ until they have been read anew, whatever becomes of this answer.
        """
        listed_of: defaultdict[ObjectKey, dict[str, str]] = defaultdict(dict)
        for body in listed:
            key = ObjectKey.of_api(body)
            if key is not None and self._is_child(resource, key, body):
                child = ChildView.of(body)
                listed_of[key][child.name] = child.fingerprint
        if resource is DEPLOYMENTS:
            known: dict[ObjectKey, dict[str, str]] = {}
            for deployments in (self._deployments, self._webs, self._canaries):
                for key, one in deployments.items():
                    known.setdefault(key, {})[one.child.name] = one.child.fingerprint
        else:
            known = {
                key: {name: print_ for (kind, name), print_ in others.items() if kind is resource}
                for key, others in self._others.items()
            }
        here = self.apis(namespace)
        return {key for key in here if known.get(key, {}) != listed_of.get(key, {})}

    def changed(self, listed: Iterable[JsonObject], namespace: str | None = None) -> set[ObjectKey]:
        """APIs that are not those of a fresh list of metadata, or of another generation there."""
        there = {(ObjectKey.of(body), version_of(body)) for body in listed}
        known = {(key, self._apis[key].spec_version) for key in self.apis(namespace)}
        return {key for key, _ in there ^ known}

    def _is_child(self, resource: Resource, key: ObjectKey, body: JsonObject) -> bool:
        """The label alone makes nothing a child: anybody may put it on theirs."""
        if resource is CONFIG_MAPS:
            api = self._apis.get(key)
            return api is not None and controller_uid(body["metadata"]) == api.uid
        if resource is DEPLOYMENTS:
            return body["metadata"]["name"] in deployment_names(key.name)
        if resource is DISRUPTION_BUDGETS:
            return body["metadata"]["name"] in {key.name, web_name(key.name)}
        name = body["metadata"]["name"]  # NAME-peers is a child of an API that compares revisions
        return name == key.name or (resource, name) in self._others.get(key, {})

    def _put(self, key: ObjectKey, resource: Resource, body: JsonObject) -> bool:
        child = ChildView.of(body)
        before = self._others[key].get((resource, child.name))
        if before is None and not self._is_child(resource, key, body):
            return False  # one that is known may have been robbed of its owner: that is news
        self._others[key][resource, child.name] = child.fingerprint
        return before != child.fingerprint

    def remove_deployment(self, key: ObjectKey, name: str) -> None:
        """Forget a Deployment."""
        if name in deployment_names(key.name):
            self._of_name(key, name).pop(key, None)

    def remove_pod(self, key: ObjectKey, name: str) -> None:
        """Forget a pod."""
        self._pods[key].pop(name, None)

    def remove_replica_set(self, key: ObjectKey, name: str) -> None:
        """Forget a ReplicaSet."""
        self._replica_sets[key].pop(name, None)

    def remove_named(self, resource: Resource, key: ObjectKey, name: str) -> None:
        """Forget such a child."""
        self._others[key].pop((resource, name), None)

    def remove_revision(self, key: ObjectKey, name: str) -> None:
        """Forget a revision."""
        self._others[key].pop((CONFIG_MAPS, name), None)

    def replace_pods(self, key: ObjectKey, pods: Iterable[PodView]) -> None:
        """Take a fresh list: a watch that was cut off never tells of what was deleted meanwhile."""
        before = self._pods[key]
        self._pods[key] = {pod.name: _starting_as_before(pod, before.get(pod.name)) for pod in pods}

    def apis(self, namespace: str | None = None) -> tuple[ObjectKey, ...]:
        """Every API known; of one namespace alone, if there is one given."""
        return tuple(key for key in self._apis if namespace in {None, key.namespace})

    def api(self, key: ObjectKey) -> ApiView | None:
        """The API, if it is known."""
        return self._apis.get(key)

    def deployment(self, key: ObjectKey) -> DeploymentView | None:
        """The API's Deployment."""
        return self._deployments.get(key)

    def web(self, key: ObjectKey) -> DeploymentView | None:
        """The Deployment of the web pods of an API with a queue."""
        return self._webs.get(key)

    def owned_pods(self, key: ObjectKey) -> tuple[PodView, ...]:
        """Pods of ReplicaSets of the API's Deployment.

        The label alone does not make a pod one of ours: anybody may put it on theirs.
        """
        return self._pods_of(key, self._deployments.get(key))

    def web_pods(self, key: ObjectKey) -> tuple[PodView, ...]:
        """The same of NAME-web."""
        return self._pods_of(key, self._webs.get(key))

    def canary(self, key: ObjectKey) -> DeploymentView | None:
        """The API's Deployment NAME-canary."""
        return self._canaries.get(key)

    def canary_pods(self, key: ObjectKey) -> tuple[PodView, ...]:
        """The pods of ReplicaSets of NAME-canary."""
        return self._pods_of(key, self._canaries.get(key))

    def _pods_of(self, key: ObjectKey, deployment: DeploymentView | None) -> tuple[PodView, ...]:
        if deployment is None:
            return ()
        sets = {
            one.uid
            for one in self._replica_sets[key].values()
            if one.owner_uid == deployment.child.uid
        }
        return tuple(pod for pod in self._pods[key].values() if pod.owner_uid in sets)

    def without_source(
        self, namespace: str | None, there: Iterable[ObjectKey]
    ) -> tuple[ObjectKey, ...]:
        """APIs whose source is none of all ConfigMaps that are there."""
        found = set(there)
        return tuple(
            key
            for key in self.apis(namespace)
            if (source := self._apis[key].source) is not None
            and ObjectKey(key.namespace, source) not in found
        )

    def users_of_config_map(self, source: ObjectKey) -> tuple[ObjectKey, ...]:
        """APIs whose source is that ConfigMap."""
        return tuple(
            key
            for key, api in self._apis.items()
            if key.namespace == source.namespace and api.source == source.name
        )


def _starting_as_before(pod: PodView, before: PodView | None) -> PodView:
    """A pod that loses its readiness and finds it again has not started anew."""
    if before is None or before.uid != pod.uid:
        return pod
    if before.startup is not None:
        return replace(pod, startup=before.startup)
    # ready already when first seen as such, and its readiness could not be dated: never any more
    return replace(pod, startup=None) if before.ready else pod
