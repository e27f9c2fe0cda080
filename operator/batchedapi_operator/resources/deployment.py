"""The Deployment that runs the replicas of an API, and the Service in front of them."""

import math
from typing import Final

from batchedapi_core import contract
from batchedapi_core.manifest import PLATFORM, BatchedAPI, Pod, as_written, format_duration
from batchedapi_core.manifest.pod import SHARED_MEMORY_DIRECTORY
from batchedapi_operator.cluster import DEPLOYMENTS, SERVICES, JsonObject
from batchedapi_operator.resources import head, labels, selector_labels
from batchedapi_operator.resources.configmap import Revision
from batchedapi_operator.resources.setting import record, setting_of

# The Service in front of the replicas: the API's name, port 80.


def build_service(api: BatchedAPI) -> JsonObject:
    """A ClusterIP Service; the address is the apiserver's to choose."""
    body = head(api, SERVICES, api.metadata.name)
    ports: list[JsonObject] = [
        {
            "name": contract.HTTP_PORT_NAME,
            "port": contract.SERVICE_PORT,
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
        "type": "ClusterIP",
        "selector": selector_labels(api.metadata.name),
        "ports": ports,
    }
    return body


# The Deployment that runs the replicas of an API.

CONTAINER: Final = "serving"
USER_ID: Final = 65532
"""The `nonroot` user of the image; pods are admitted under Pod Security `restricted`."""
PROGRESS_MARGIN_SECONDS: Final = 60
"""A rollout is not called stuck while a model may still be loading."""
UNLIMITED_REQUEST_SECONDS: Final = 600
"""How long a stopping replica is given where `spec.overload.timeout` sets no limit."""
_MANIFEST_VOLUME: Final = "revision"
_SCRATCH_VOLUME: Final = "tmp"
_MODEL_VOLUME: Final = "model"
_SHARED_MEMORY_VOLUME: Final = "shared-memory"
_KEYS_VOLUME: Final = "batchedapi-keys"
_AS_WRITTEN: Final = (
    "nodeSelector", "tolerations", "affinity", "priorityClassName", "runtimeClassName",
    "imagePullSecrets", "serviceAccountName",
)  # fmt: skip
"""Settings that a pod has under the same name."""


def build_deployment(api: BatchedAPI, revision: Revision, image: str) -> JsonObject:
    """The Deployment without `replicas`: those are written through /scale alone."""
    api = api.with_pod_defaults(revision.defaults)
    pod = api.spec.pod
    update = api.spec.update_strategy
    body = head(api, DEPLOYMENTS, api.metadata.name)
    said = record(api, revision.defaults)
    recorded = {contract.ANNOTATION_POD: said} if said else {}
    if recorded:
        body["metadata"]["annotations"] = recorded
    body["spec"] = {
        "selector": {"matchLabels": selector_labels(api.metadata.name)},
        "revisionHistoryLimit": 5,
        "progressDeadlineSeconds": _startup_seconds(api) + PROGRESS_MARGIN_SECONDS,
        "strategy": {
            "type": "RollingUpdate",
            "rollingUpdate": {
                "maxSurge": update.max_surge,
                "maxUnavailable": update.max_unavailable,
            },
        },
        "template": {
            "metadata": {
                "labels": {
                    **pod.labels,
                    **labels(api.metadata.name),
                    contract.LABEL_REVISION: revision.digest,
                },
                "annotations": {
                    **pod.annotations,
                    **recorded,
                    "prometheus.io/scrape": "true",
                    "prometheus.io/port": str(contract.ADMIN_PORT),
                    "prometheus.io/path": contract.PATH_METRICS,
                },
            },
            "spec": _pod(api, revision, image),
        },
    }
    return body


def _pod(api: BatchedAPI, revision: Revision, image: str) -> JsonObject:
    timeout = api.spec.overload.timeout or UNLIMITED_REQUEST_SECONDS
    grace = api.spec.update_strategy.drain_delay + timeout + contract.TERMINATION_MARGIN_SECONDS
    settings, user = as_written(api.spec.pod), _user(api.spec.pod)
    further = {name: settings[name] for name in _AS_WRITTEN if settings.get(name)}
    if spread := settings.get("topologySpreadConstraints"):
        own = {"labelSelector": {"matchLabels": selector_labels(api.metadata.name)}}
        further["topologySpreadConstraints"] = [{**constraint, **own} for constraint in spread]
    return {
        "automountServiceAccountToken": bool(api.spec.pod.automount_service_account_token),
        "enableServiceLinks": False,
        "terminationGracePeriodSeconds": math.ceil(grace),
        "securityContext": {
            "runAsNonRoot": True,
            **dict.fromkeys(("runAsUser", "runAsGroup", "fsGroup") if user else (), user),
            "seccompProfile": {"type": "RuntimeDefault"},
        },
        "containers": [_container(api, image)],
        "volumes": [
            {"name": _MANIFEST_VOLUME, "configMap": {"name": revision.name}},
            {"name": _SCRATCH_VOLUME, "emptyDir": {}},
            *_claim_volumes(api),
            *_shared_memory(api.spec.pod),
            *_keys(api),
            *settings.get("volumes", ()),
        ],
        **further,
    }


def _user(pod: Pod) -> int | None:
    """None: the platform gives one."""
    if pod.run_as_user == PLATFORM:
        return None
    return USER_ID if pod.run_as_user is None else int(pod.run_as_user)


def _shared_memory(pod: Pod) -> list[JsonObject]:
    if pod.shared_memory is None:
        return []
    memory = {"medium": "Memory", "sizeLimit": pod.shared_memory}
    return [{"name": _SHARED_MEMORY_VOLUME, "emptyDir": memory}]


def _keys(api: BatchedAPI) -> list[JsonObject]:
    """By reference: what is in the Secret, the kubelet alone reads and renews."""
    keys = api.spec.networking.api_keys
    if keys is None:
        return []
    return [{"name": _KEYS_VOLUME, "secret": {"secretName": keys.secret_name}}]


def _container(api: BatchedAPI, image: str) -> JsonObject:
    setting = setting_of(api)
    grpc = {"name": contract.GRPC_PORT_NAME, "containerPort": contract.GRPC_PORT}
    model = {"name": _MODEL_VOLUME, "mountPath": contract.MODEL_DIRECTORY, "readOnly": True}
    keys = {"name": _KEYS_VOLUME, "mountPath": contract.KEYS_DIRECTORY, "readOnly": True}
    shared = {"name": _SHARED_MEMORY_VOLUME, "mountPath": SHARED_MEMORY_DIRECTORY}
    return {
        "name": CONTAINER,
        "image": image,
        "imagePullPolicy": api.spec.predictor.image_pull_policy.value,
        "args": [
            "serve",
            *("-f", f"{contract.MANIFEST_DIRECTORY}/{contract.MANIFEST_FILE}"),
            *("--host", "0.0.0.0"),  # noqa: S104 - a pod is reached by its address
            *("--drain-delay", format_duration(api.spec.update_strategy.drain_delay)),
            "--tolerate-unknown-fields",
            # A flag, as an image that does not know it must fail and not serve whoever comes.
            *(["--api-keys", contract.KEYS_DIRECTORY] if _keys(api) else []),
        ],
        **{name: setting[name] for name in ("env", "envFrom") if name in setting},
        "ports": [
            {"name": contract.HTTP_PORT_NAME, "containerPort": contract.HTTP_PORT},
            {"name": contract.ADMIN_PORT_NAME, "containerPort": contract.ADMIN_PORT},
            *([grpc] if api.spec.networking.grpc else []),
        ],
        "resources": setting["resources"],
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
        "volumeMounts": [
            {"name": _MANIFEST_VOLUME, "mountPath": contract.MANIFEST_DIRECTORY, "readOnly": True},
            {"name": _SCRATCH_VOLUME, "mountPath": "/tmp"},  # noqa: S108 - inside the pod
            *([model] if _claim_volumes(api) else []),
            *([keys] if _keys(api) else []),
            *([shared] if _shared_memory(api.spec.pod) else []),
            *map(as_written, api.spec.pod.volume_mounts),
        ],
    }


def _startup_seconds(api: BatchedAPI) -> int:
    return math.ceil(api.spec.predictor.startup_timeout)


def _claim_volumes(api: BatchedAPI) -> list[JsonObject]:
    """The claim of a `pvc://` model; the slice names the folder that it is mounted at."""
    model = api.spec.predictor.model
    if model is None or model.claim is None:
        return []
    claim = {"claimName": model.claim, "readOnly": True}
    return [{"name": _MODEL_VOLUME, "persistentVolumeClaim": claim}]


def _probe(path: str, *, period: int, failures: int, timeout: int = 1) -> JsonObject:
    return {
        "httpGet": {"path": path, "port": contract.ADMIN_PORT_NAME},
        "periodSeconds": period,
        "timeoutSeconds": timeout,
        "failureThreshold": failures,
    }
