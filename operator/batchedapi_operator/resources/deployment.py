"""The Deployment that runs the replicas of an API, and the Service in front of them."""

import hashlib
import json
import math
from typing import Final

from batchedapi_core import contract
from batchedapi_core.manifest import (
    PLATFORM,
    SPREAD,
    BatchedAPI,
    ModelSpec,
    as_written,
    format_duration,
)
from batchedapi_core.manifest.pod import SHARED_MEMORY_DIRECTORY
from batchedapi_operator.cluster import DEPLOYMENTS, SERVICES, JsonObject, listed
from batchedapi_operator.resources import (
    LABEL_NAME,
    WORKER,
    annotate,
    answering_labels,
    canary_name,
    head,
    labels,
    peers_name,
    role_labels,
    selector_labels,
    web_name,
)
from batchedapi_operator.resources.configmap import Revision
from batchedapi_operator.resources.setting import record, setting_of, web_resources, web_spec

# The Service in front of the replicas: the API's name, port 80.


def build_service(api: BatchedAPI, *, roles: bool = False) -> JsonObject:
    """The Service; its address is the apiserver's to choose.

    Args:
        api: The manifest.
        roles: There are pods that answer nobody: those of an API with a queue, or that has had one.
    """
    body, asked = head(api, SERVICES, api.metadata.name), api.spec.networking.service
    annotate(body, asked.annotations)
    ports: list[JsonObject] = [
        {
            "name": contract.HTTP_PORT_NAME,
            "port": asked.port,
            "targetPort": contract.HTTP_PORT_NAME,
            "protocol": "TCP",
        }
    ]
    if api.spec.networking.grpc:
        ports.append(
            {
                "name": contract.GRPC_PORT_NAME,
                "port": contract.GRPC_PORT,
                "targetPort": contract.GRPC_PORT_NAME,
                "protocol": "TCP",
                # what tells gateways and meshes that it is HTTP/2 without TLS
                "appProtocol": "kubernetes.io/h2c",
            }
        )
    body["spec"] = {
        "type": asked.type.value,
        "selector": (answering_labels if roles else selector_labels)(api.metadata.name),
        "ports": ports,
    }
    if asked.traffic_distribution is not None:
        body["spec"]["trafficDistribution"] = asked.traffic_distribution
    return body


def build_peers(api: BatchedAPI) -> JsonObject:
    """The Service NAME-peers: a name for the ready pods that have a model, each by its address."""
    name, queue = api.metadata.name, api.spec.server_side_batching.queue
    selector = role_labels(name, contract.ROLE_WORKER) if queue else selector_labels(name)
    port = {"port": contract.ADMIN_PORT, "targetPort": contract.ADMIN_PORT_NAME, "protocol": "TCP"}
    body = head(api, SERVICES, peers_name(name))
    body["spec"] = {
        "clusterIP": "None",
        "selector": selector,
        "ports": [{"name": contract.ADMIN_PORT_NAME, **port}],
    }
    return body


def _compare(api: BatchedAPI, revision: Revision) -> list[JsonObject]:
    """The variable by which pods compare revisions; none where they do not.

    The operator has no right on Secrets, so the token is made of the API's uid: whoever may read
    the API, or an object made for it, can make it too.
    """
    compare, metadata = api.spec.update_strategy.compare, api.metadata
    if not compare.is_on:
        return []
    slower, differ = compare.shares
    told = {
        "peers": f"{peers_name(metadata.name)}.{metadata.namespace}.svc",
        "port": contract.ADMIN_PORT,
        "token": hashlib.sha256(f"compare {metadata.uid}".encode()).hexdigest(),
        "revision": revision.digest,
        "slower": slower,
        "differ": differ,
    }
    return [{"name": contract.ENV_COMPARE, "value": json.dumps(told, sort_keys=True)}]


# The Deployment that runs the replicas of an API.

CONTAINER: Final = "serving"
USER_ID: Final = 65532
"""The `nonroot` user of the image; pods are admitted under Pod Security `restricted`."""
PROGRESS_MARGIN_SECONDS: Final = 60
"""A rollout is not called stuck while a model may still be loading."""
MANIFEST_VOLUME: Final = "revision"
_SCRATCH_VOLUME: Final = "tmp"
_MODEL_VOLUME: Final = "model"
_SHARED_MEMORY_VOLUME: Final = "shared-memory"
_KEYS_VOLUME: Final = "batchedapi-keys"
_AS_WRITTEN: Final = (
    "nodeSelector", "tolerations", "affinity", "priorityClassName", "runtimeClassName",
    "schedulerName", "imagePullSecrets", "serviceAccountName", "resourceClaims",
)  # fmt: skip
"""Settings that a pod has under the same name."""
_ACCOUNT, _OLD_ACCOUNT = "serviceAccountName", "serviceAccount"
"""The apiserver writes one under both names, and takes it from the old one where the new is gone:
an apply that owns the new one alone cannot take it away."""
_OF_WEB: Final = ("priorityClassName", "imagePullSecrets")
"""Fields that a web pod has, too."""
_KEYS_MOUNT: Final = {
    "name": _KEYS_VOLUME,
    "mountPath": contract.KEYS_DIRECTORY,
    "readOnly": True,
}
HELD_SECONDS: Final = 86400
"""For which a pod would have to be ready to take the place of another, while a rollout is held."""
SCRAPED: Final = {
    "prometheus.io/scrape": "true",
    "prometheus.io/port": str(contract.ADMIN_PORT),
    "prometheus.io/path": contract.PATH_METRICS,
}
"""Annotations of pods of every role."""


def build_deployment(
    api: BatchedAPI, revision: Revision, image: str, *, held: bool = False
) -> JsonObject:
    """The Deployment without `replicas`: those are written through /scale alone.

    Args:
        api: The manifest.
        revision: Of it.
        image: Of the serving container.
        held: New pods do not yet take the place of those before. They become ready, and do not
            count as available: so the Deployment's controller lets none of the others go. Without a
            queue there are then as many new ones as old ones: they are to take over together.
    """
    api = api.with_pod_defaults(revision.defaults)
    pod = api.spec.pod
    update = api.spec.update_strategy
    queue = api.spec.server_side_batching.queue
    worker = {contract.LABEL_ROLE: contract.ROLE_WORKER, LABEL_NAME: WORKER} if queue else {}
    body = head(api, DEPLOYMENTS, api.metadata.name)
    said = record(api, revision.defaults)
    recorded = {contract.ANNOTATION_POD: said} if said else {}
    annotate(body, recorded)
    body["spec"] = {
        "selector": {"matchLabels": selector_labels(api.metadata.name)},
        "revisionHistoryLimit": 5,
        "progressDeadlineSeconds": deadline_of(api) + (HELD_SECONDS if held else 0),
        **({"minReadySeconds": HELD_SECONDS} if held else {}),
        "strategy": {
            "type": "RollingUpdate",
            "rollingUpdate": {
                "maxSurge": "100%" if held and queue is None else update.max_surge,
                "maxUnavailable": update.max_unavailable,
            },
        },
        "template": {
            "metadata": {
                "labels": {
                    **pod.labels,
                    **labels(api.metadata.name),
                    **worker,
                    contract.LABEL_REVISION: revision.digest,
                },
                "annotations": {**pod.annotations, **recorded, **SCRAPED},
            },
            "spec": _pod(api, revision, image),
        },
    }
    return body


def build_canary(api: BatchedAPI, revision: Revision, image: str, replicas: int) -> JsonObject:
    """The Deployment NAME-canary: pods as NAME is to have them, behind the same Service.

    Its replicas are nobody else's, so they are in the same apply. A template that gets its pods
    later would have no deadline: without any it is complete.
    """
    body = build_deployment(api, revision, image)
    own = role_labels(api.metadata.name, contract.ROLE_CANARY)
    body["metadata"]["name"] = canary_name(api.metadata.name)
    body["metadata"]["labels"] |= own
    body["spec"] |= {"replicas": replicas, "selector": {"matchLabels": own}}
    body["spec"]["template"]["metadata"]["labels"] |= own
    return body


def without_account(deployment: JsonObject) -> JsonObject:
    """The Deployment, which takes an account away that it does not give, whoever's that is."""
    template = deployment["spec"]["template"]
    pod = {_ACCOUNT: "", _OLD_ACCOUNT: "", **template["spec"]}
    return {
        **deployment,
        "spec": {**deployment["spec"], "template": {**template, "spec": pod}},
    }


def owns_no_account(deployment: JsonObject) -> bool:
    """Whether a Deployment as it is has a service account that no manager has set."""
    if not deployment["spec"]["template"]["spec"].get(_OLD_ACCOUNT):
        return False
    owned = (
        entry.get("fieldsV1", {}).get("f:spec", {}).get("f:template", {}).get("f:spec", {})
        for entry in listed(deployment["metadata"], "managedFields")
    )
    return not any(f"f:{name}" in fields for fields in owned for name in (_ACCOUNT, _OLD_ACCOUNT))


def build_web(api: BatchedAPI, revision: Revision, image: str) -> JsonObject:
    """The Deployment NAME-web of an API with a queue: it answers, and has no model and no GPU.

    Of `spec.pod` it has labels, annotations, pull secrets, priority and user; where model pods may
    run is said of their hardware, so `queue.web.pod` says where these do. It is spread as every API
    is that says nothing of it.
    """
    api = api.with_pod_defaults(revision.defaults)
    name, pod = api.metadata.name, api.spec.pod
    own = role_labels(name, contract.ROLE_WEB)
    body = head(api, DEPLOYMENTS, web_name(name))
    body["metadata"]["labels"] |= own
    body["spec"] = {
        "selector": {"matchLabels": own},
        "revisionHistoryLimit": 5,
        # it is ready once a worker has told what the methods are like
        "progressDeadlineSeconds": deadline_of(api),
        "strategy": {
            "type": "RollingUpdate",
            "rollingUpdate": {"maxSurge": "25%", "maxUnavailable": 0},
        },
        "template": {
            "metadata": {
                "labels": {
                    **pod.labels,
                    **labels(name),
                    **own,
                    contract.LABEL_REVISION: revision.digest,
                },
                "annotations": {**pod.annotations, **SCRAPED},
            },
            "spec": _web_pod(api, revision, image),
        },
    }
    return body


def _web_pod(api: BatchedAPI, revision: Revision, image: str) -> JsonObject:
    settings, keys = as_written(api.spec.pod), _keys(api)
    runs = _runs(api, image, contract.ROLE_WEB, keys, web_resources(api))
    mounts = [*_own_mounts(), *([_KEYS_MOUNT] if keys else [])]
    further = {name: settings[name] for name in _OF_WEB if settings.get(name)}
    further |= _placed(as_written(web_spec(api).pod))
    own = {"labelSelector": {"matchLabels": role_labels(api.metadata.name, contract.ROLE_WEB)}}
    spread = as_written(SPREAD)["topologySpreadConstraints"]
    return {
        **_confined(api),
        "containers": [{**runs, "volumeMounts": mounts}],
        "volumes": [*_own_volumes(revision), *keys],
        "topologySpreadConstraints": [{**constraint, **own} for constraint in spread],
        **further,
    }


def _model_source(model: ModelSpec) -> JsonObject:
    """Source of the model's volume: its image, its claim, or that of its cache; empty: none."""
    if model.image is not None:
        return {"image": {"reference": model.image}}
    if model.claim is not None:
        return {"persistentVolumeClaim": {"claimName": model.claim, "readOnly": True}}
    if model.cache is not None:
        return {"persistentVolumeClaim": {"claimName": model.cache.pvc}}
    return {}


def _pod(api: BatchedAPI, revision: Revision, image: str) -> JsonObject:
    settings, name = as_written(api.spec.pod), api.metadata.name
    worker = api.spec.server_side_batching.queue is not None
    further = _placed(settings)
    if spread := settings.get("topologySpreadConstraints"):
        among = role_labels(name, contract.ROLE_WORKER) if worker else selector_labels(name)
        own = {"labelSelector": {"matchLabels": among}}
        further["topologySpreadConstraints"] = [{**constraint, **own} for constraint in spread]
    keys = [] if worker else _keys(api)
    model, memory = api.spec.predictor.model, api.spec.pod.shared_memory
    volumes, mounts = _own_volumes(revision), _own_mounts()
    if model is not None and (source := _model_source(model)):
        access = {} if model.claim is None and model.image is None else {"readOnly": True}
        volumes.append({"name": _MODEL_VOLUME, **source})
        mounts.append({"name": _MODEL_VOLUME, "mountPath": contract.MODEL_DIRECTORY, **access})
    if keys:
        mounts.append(_KEYS_MOUNT)
    if memory is not None:
        of_memory = {"medium": "Memory", "sizeLimit": memory}
        volumes.append({"name": _SHARED_MEMORY_VOLUME, "emptyDir": of_memory})
        mounts.append({"name": _SHARED_MEMORY_VOLUME, "mountPath": SHARED_MEMORY_DIRECTORY})
    mounts += map(as_written, api.spec.pod.volume_mounts)
    command, resources = contract.ROLE_WORKER if worker else "serve", setting_of(api)["resources"]
    container = {**_runs(api, image, command, keys, resources), "volumeMounts": mounts}
    if told := _compare(api, revision):
        container["env"] = [*container.get("env", ()), *told]
    return {
        **_confined(api),
        "automountServiceAccountToken": bool(api.spec.pod.automount_service_account_token),
        "containers": [container],
        "volumes": [*volumes, *keys, *settings.get("volumes", ())],
        **further,
    }


def _placed(settings: JsonObject) -> JsonObject:
    """The settings that a pod has under the same name."""
    further = {name: settings[name] for name in _AS_WRITTEN if settings.get(name)}
    if account := settings.get(_ACCOUNT):
        further[_OLD_ACCOUNT] = account
    return further


def _confined(api: BatchedAPI) -> JsonObject:
    """The pod template of both roles: time to end in, and nothing of the node or the cluster."""
    timeout = api.spec.overload.timeout or contract.UNLIMITED_REQUEST_SECONDS
    user = api.spec.pod.run_as_user
    if user is None:
        user = USER_ID
    own = (
        {} if user == PLATFORM else dict.fromkeys(("runAsUser", "runAsGroup", "fsGroup"), int(user))
    )
    grace = api.spec.update_strategy.drain_delay + timeout + contract.TERMINATION_MARGIN_SECONDS
    return {
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "terminationGracePeriodSeconds": math.ceil(grace),
        "securityContext": {
            "runAsNonRoot": True,  # and as whom, unless the platform says it
            **own,
            "seccompProfile": {"type": "RuntimeDefault"},
        },
    }


def _own_volumes(revision: Revision) -> list[JsonObject]:
    return [
        {"name": MANIFEST_VOLUME, "configMap": {"name": revision.name}},
        {"name": _SCRATCH_VOLUME, "emptyDir": {}},
    ]


def _keys(api: BatchedAPI) -> list[JsonObject]:
    """By reference: what is in the Secret, the kubelet alone reads and renews."""
    keys = api.spec.networking.api_keys
    if keys is None:
        return []
    return [{"name": _KEYS_VOLUME, "secret": {"secretName": keys.secret_name}}]


def _own_mounts() -> list[JsonObject]:
    return [
        {"name": MANIFEST_VOLUME, "mountPath": contract.MANIFEST_DIRECTORY, "readOnly": True},
        {"name": _SCRATCH_VOLUME, "mountPath": "/tmp"},  # noqa: S108 - inside the pod
    ]


def _runs(
    api: BatchedAPI, image: str, command: str, keys: list[JsonObject], resources: JsonObject
) -> JsonObject:
    """A serving container of any role: its command, its ports, its probes."""
    setting, answers = setting_of(api), command != contract.ROLE_WORKER
    delay = api.spec.update_strategy.drain_delay
    http = {"name": contract.HTTP_PORT_NAME, "containerPort": contract.HTTP_PORT}
    grpc = {"name": contract.GRPC_PORT_NAME, "containerPort": contract.GRPC_PORT}
    return {
        "name": CONTAINER,
        "image": image,
        "imagePullPolicy": api.spec.predictor.image_pull_policy.value,
        "args": [
            command,
            *("-f", f"{contract.MANIFEST_DIRECTORY}/{contract.MANIFEST_FILE}"),
            *("--host", "0.0.0.0"),  # noqa: S104 - a pod is reached by its address
            # a worker that stops takes nothing more at once
            *(["--drain-delay", format_duration(delay)] if answers else []),
            "--tolerate-unknown-fields",
            # A flag, as an image that does not know it must fail and not serve whoever comes.
            *(["--api-keys", contract.KEYS_DIRECTORY] if keys else []),
        ],
        **{name: setting[name] for name in ("env", "envFrom") if name in setting},
        "ports": [
            *([http] if answers else []),
            {"name": contract.ADMIN_PORT_NAME, "containerPort": contract.ADMIN_PORT},
            *([grpc] if answers and api.spec.networking.grpc else []),
        ],
        "resources": resources,
        "startupProbe": _probe(contract.PATH_STARTUP, period=1, failures=_startup_seconds(api)),
        "readinessProbe": _probe(contract.PATH_READY, period=1, timeout=3, failures=3),
        "livenessProbe": _probe(contract.PATH_LIVE, period=10, timeout=5, failures=6),
        "securityContext": {
            "allowPrivilegeEscalation": False,
            "capabilities": {"drop": ["ALL"]},
            "readOnlyRootFilesystem": True,
        },
        "terminationMessagePath": contract.TERMINATION_LOG,
        "terminationMessagePolicy": "FallbackToLogsOnError",
    }


def deadline_of(api: BatchedAPI) -> int:
    """Seconds in which a new pod has to be ready, and a rollout to move."""
    return _startup_seconds(api) + PROGRESS_MARGIN_SECONDS


def _startup_seconds(api: BatchedAPI) -> int:
    return math.ceil(api.spec.predictor.startup_timeout)


def _probe(path: str, *, period: int, failures: int, timeout: int = 1) -> JsonObject:
    return {
        "httpGet": {"path": path, "port": contract.ADMIN_PORT_NAME},
        "periodSeconds": period,
        "timeoutSeconds": timeout,
        "failureThreshold": failures,
    }
