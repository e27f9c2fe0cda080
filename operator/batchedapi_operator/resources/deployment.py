"""The Deployment that runs the replicas of an API, and the Service in front of them."""

import math
from typing import Final

from batchedapi_core import contract
from batchedapi_core.manifest import BatchedAPI, format_duration
from batchedapi_operator.cluster import DEPLOYMENTS, SERVICES, JsonObject
from batchedapi_operator.resources import head, labels, selector_labels
from batchedapi_operator.resources.configmap import Revision
from batchedapi_operator.resources.setting import setting_of

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


def build_deployment(api: BatchedAPI, revision: Revision, image: str) -> JsonObject:
    """The Deployment without `replicas`: those are written through /scale alone."""
    update = api.spec.update_strategy
    body = head(api, DEPLOYMENTS, api.metadata.name)
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
                    **labels(api.metadata.name),
                    contract.LABEL_REVISION: revision.digest,
                },
                "annotations": {
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
    return {
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "terminationGracePeriodSeconds": math.ceil(grace),
        "securityContext": {
            "runAsNonRoot": True,
            "runAsUser": USER_ID,
            "runAsGroup": USER_ID,
            "fsGroup": USER_ID,
            "seccompProfile": {"type": "RuntimeDefault"},
        },
        "containers": [_container(api, image)],
        "volumes": [
            {"name": _MANIFEST_VOLUME, "configMap": {"name": revision.name}},
            {"name": _SCRATCH_VOLUME, "emptyDir": {}},
            *_claim_volumes(api),
        ],
    }


def _container(api: BatchedAPI, image: str) -> JsonObject:
    setting = setting_of(api)
    grpc = {"name": contract.GRPC_PORT_NAME, "containerPort": contract.GRPC_PORT}
    model = {"name": _MODEL_VOLUME, "mountPath": contract.MODEL_DIRECTORY, "readOnly": True}
    return {
        "name": CONTAINER,
        "image": image,
        "imagePullPolicy": "IfNotPresent",
        "args": [
            "serve",
            *("-f", f"{contract.MANIFEST_DIRECTORY}/{contract.MANIFEST_FILE}"),
            *("--host", "0.0.0.0"),  # noqa: S104 - a pod is reached by its address
            *("--drain-delay", format_duration(api.spec.update_strategy.drain_delay)),
            "--tolerate-unknown-fields",
        ],
        **({"env": setting["env"]} if "env" in setting else {}),
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
