"""Specs with settings of pods that the apiserver and Python must judge alike."""
# ruff: noqa: S108 - paths in pods

from typing import Any, Final

Spec = dict[str, Any]


def pod(**settings: Any) -> Spec:
    """The smallest good spec with these settings of its pods."""
    return {"predictor": {"path": "model:Iris"}, "pod": settings}


def volume(**volume: Any) -> Spec:
    """One with a volume `a`."""
    return pod(volumes=[{"name": "a", **volume}])


def mounted(path: str, **mount: Any) -> Spec:
    """One with an empty volume at `path`."""
    mounts = [{"name": "a", "mountPath": path, **mount}]
    return pod(volumes=[{"name": "a", "emptyDir": {}}], volumeMounts=mounts)


def env(**variable: Any) -> Spec:
    """One with a variable `A`."""
    return {"predictor": {"path": "model:Iris", "env": [{"name": "A", **variable}]}}


def env_from(**source: Any) -> Spec:
    """One with variables out of one source."""
    return {"predictor": {"path": "model:Iris", "envFrom": [source]}}


def compute(**fields: Any) -> Spec:
    """One with these resources."""
    return {"predictor": {"path": "model:Iris"}, "compute": fields}


SPREAD: Final = {"maxSkew": 1, "topologyKey": "zone", "whenUnsatisfiable": "DoNotSchedule"}
KEY: Final = {"name": "s", "key": "k"}
CLAIM: Final = {
    "metadata": {"labels": {"a": "b"}},
    "spec": {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}},
}

ACCEPTED: Final[dict[str, Spec]] = {
    "nothing of the pods": pod(),
    "every setting of the pods": pod(
        labels={"team": "a", "example.com/cost": ""},
        annotations={"example.com/note": "a b"},
        nodeSelector={"pool": "gpu"},
        tolerations=[
            {"key": "gpu", "operator": "Exists", "effect": "NoSchedule"},
            {"operator": "Exists", "tolerationSeconds": 5, "effect": "NoExecute"},
        ],
        affinity={
            "nodeAffinity": {
                "requiredDuringSchedulingIgnoredDuringExecution": {
                    "nodeSelectorTerms": [
                        {"matchExpressions": [{"key": "a", "operator": "In", "values": ["b"]}]}
                    ]
                }
            },
            "podAntiAffinity": {
                "preferredDuringSchedulingIgnoredDuringExecution": [
                    {"weight": 1, "podAffinityTerm": {"topologyKey": "z", "labelSelector": {}}}
                ]
            },
        },
        topologySpreadConstraints=[SPREAD, {**SPREAD, "topologyKey": "host"}],
        priorityClassName="high",
        runtimeClassName="gvisor.1",
        schedulerName="volcano",
        imagePullSecrets=[{"name": "registry"}],
        serviceAccountName="models",
        automountServiceAccountToken=True,
        runAsUser=1000,
        sharedMemory="1Gi",
        resourceClaims=[
            {"name": "gpu", "resourceClaimTemplateName": "one-gpu"},
            {"name": "nic", "resourceClaimName": "the.nic"},
        ],
        volumes=[
            {"name": "b", "configMap": {"name": "c", "items": [{"key": "k", "path": "p"}]}},
            {"name": "c", "secret": {"secretName": "s", "defaultMode": 256}},
            {"name": "d", "persistentVolumeClaim": {"claimName": "p", "readOnly": True}},
            {"name": "e", "emptyDir": {"medium": "Memory", "sizeLimit": "1Gi"}},
            {"name": "f", "csi": {"driver": "d", "volumeAttributes": {"a": "b"}}},
            {"name": "g", "ephemeral": {"volumeClaimTemplate": CLAIM}},
            {
                "name": "h",
                "projected": {
                    "defaultMode": 0o440,
                    "sources": [
                        {"serviceAccountToken": {"audience": "sts", "path": "t"}},
                        {"configMap": {"name": "c", "items": [{"key": "k", "path": "p"}]}},
                        {"secret": {"name": "s", "optional": True}},
                    ],
                },
            },
        ],
        volumeMounts=[{"name": "b", "mountPath": "/tmp/cache", "readOnly": True}],
    ),
    "a user of the platform's": pod(runAsUser="Platform"),
    "pods that are not spread": pod(topologySpreadConstraints=[]),
    "mounted below what is ours to cover": mounted("/usr/share/fonts", subPath="x"),
    "a variable of a Secret": env(valueFrom={"secretKeyRef": KEY}),
    "a variable of a ConfigMap": env(valueFrom={"configMapKeyRef": {**KEY, "optional": True}}),
    "a variable of the pod": env(valueFrom={"fieldRef": {"fieldPath": "metadata.name"}}),
    "a variable of its resources": env(
        value="", valueFrom={"resourceFieldRef": {"resource": "limits.cpu", "divisor": "1m"}}
    ),
    "variables of a Secret": env_from(secretRef={"name": "s", "optional": True}, prefix="A_"),
    "variables of a ConfigMap": env_from(configMapRef={"name": "c"}),
    "a limit of cpu": compute(cpu="500m", cpuLimit=1),
    "a disk": compute(ephemeralStorage="1Gi"),
    "a slice of a GPU": compute(gpu=1, gpuResource="nvidia.com/mig-1g.10gb"),
    "never pulled": {"predictor": {"path": "model:Iris", "imagePullPolicy": "Never"}},
}
"""Name of the case -> spec."""

REFUSED: Final[dict[str, tuple[Spec, str]]] = {
    "a label of ours": (pod(labels={"batchedapi.dev/api": "x"}), "spec.pod.labels"),
    "our name": (pod(labels={"app.kubernetes.io/name": "x"}), "spec.pod.labels"),
    "a label that is none": (pod(labels={"a": "a b"}), "spec.pod.labels.a"),
    "an annotation of ours": (
        pod(annotations={"prometheus.io/port": "1"}),
        "spec.pod.annotations",
    ),
    "a container without its confinement": (
        pod(annotations={"container.apparmor.security.beta.kubernetes.io/serving": "unconfined"}),
        "spec.pod.annotations",
    ),
    "a number for a label": (pod(nodeSelector={"a": 1}), "spec.pod.nodeSelector.a"),
    "an unknown effect": (pod(tolerations=[{"effect": "Never"}]), "spec.pod.tolerations[0].effect"),
    "an unknown field of Kubernetes": (
        pod(tolerations=[{"keys": "a"}]),
        "spec.pod.tolerations[0].keys",
    ),
    "spread twice": (
        pod(topologySpreadConstraints=[SPREAD, SPREAD]),
        "spec.pod.topologySpreadConstraints[1]",
    ),
    "spread over nothing": (
        pod(topologySpreadConstraints=[{"maxSkew": 1, "whenUnsatisfiable": "DoNotSchedule"}]),
        "spec.pod.topologySpreadConstraints[0].topologyKey",
    ),
    "a secret twice": (
        pod(imagePullSecrets=[{"name": "a"}, {"name": "a"}]),
        "spec.pod.imagePullSecrets[1]",
    ),
    "root": (pod(runAsUser=0), "spec.pod.runAsUser"),
    "a user by another word": (pod(runAsUser="root"), "spec.pod.runAsUser"),
    "a claim of nothing": (pod(resourceClaims=[{"name": "a"}]), "spec.pod.resourceClaims[]"),
    "a claim of two": (
        pod(
            resourceClaims=[
                {"name": "a", "resourceClaimName": "b", "resourceClaimTemplateName": "c"}
            ]
        ),
        "spec.pod.resourceClaims[]",
    ),
    "a claim twice": (
        pod(resourceClaims=[{"name": "a", "resourceClaimName": "b"}] * 2),
        "spec.pod.resourceClaims[1]",
    ),
    "a claim without a name": (
        pod(resourceClaims=[{"resourceClaimName": "b"}]),
        "spec.pod.resourceClaims[0].name",
    ),
    "no shared memory": (pod(sharedMemory="0"), "spec.pod.sharedMemory"),
    "a volume without a source": (volume(), "spec.pod.volumes[]"),
    "a volume of two sources": (
        volume(emptyDir={}, secret={"secretName": "s"}),
        "spec.pod.volumes[]",
    ),
    "a projection of nothing": (
        volume(projected={"sources": [{}]}),
        "spec.pod.volumes[].projected.sources[]",
    ),
    "a projection of two sources": (
        volume(projected={"sources": [{"secret": {"name": "s"}, "configMap": {"name": "c"}}]}),
        "spec.pod.volumes[].projected.sources[]",
    ),
    "a token of a minute": (
        volume(
            projected={"sources": [{"serviceAccountToken": {"path": "t", "expirationSeconds": 60}}]}
        ),
        "spec.pod.volumes[0].projected.sources[0].serviceAccountToken.expirationSeconds",
    ),
    "a folder of the node": (volume(hostPath={"path": "/"}), "spec.pod.volumes[0].hostPath"),
    "a volume of ours": (
        pod(volumes=[{"name": "tmp", "emptyDir": {}}]),
        "spec.pod.volumes[].name",
    ),
    "a volume of ours to come": (
        pod(volumes=[{"name": "batchedapi-x", "emptyDir": {}}]),
        "spec.pod.volumes[].name",
    ),
    "a volume twice": (
        pod(volumes=[{"name": "a", "emptyDir": {}}] * 2),
        "spec.pod.volumes[1]",
    ),
    "huge pages": (volume(emptyDir={"medium": "HugePages"}), "spec.pod.volumes[0].emptyDir.medium"),
    "a mount without a volume": (
        pod(volumeMounts=[{"name": "a", "mountPath": "/a"}]),
        "spec.pod.volumeMounts[].name",
    ),
    "a mount of another volume": (
        pod(
            volumes=[{"name": "b", "emptyDir": {}}],
            volumeMounts=[{"name": "a", "mountPath": "/a"}],
        ),
        "spec.pod.volumeMounts[].name",
    ),
    "two mounts at one place": (
        pod(
            volumes=[{"name": "a", "emptyDir": {}}],
            volumeMounts=[{"name": "a", "mountPath": "/a"}] * 2,
        ),
        "spec.pod.volumeMounts[1]",
    ),
    **{
        f"mounted at {path}": (mounted(path), "spec.pod.volumeMounts")
        for path in (
            "/", "a", "/a/", "/a//b", "/a:b", "/a/../etc", "/tmp", "/etc", "/etc/batchedapi",
            "/etc/batchedapi/x", "/mnt/model", "/dev/shm", "/usr/local", "/opt/venv/lib",
            "/var/run/secrets/kubernetes.io/serviceaccount",
        )
    },
    "a value twice": (
        env(value="x", valueFrom={"secretKeyRef": KEY}),
        "spec.predictor.env[].valueFrom",
    ),
    "a value of nothing": (env(valueFrom={}), "spec.predictor.env[].valueFrom"),
    "a value of two": (
        env(valueFrom={"secretKeyRef": KEY, "configMapKeyRef": KEY}),
        "spec.predictor.env[].valueFrom",
    ),
    "a key of no Secret": (
        env(valueFrom={"secretKeyRef": {"key": "k"}}),
        "spec.predictor.env[0].valueFrom.secretKeyRef.name",
    ),
    "our variable of a Secret": (
        env(name="BATCHEDAPI_X", valueFrom={"secretKeyRef": KEY}),
        "spec.predictor.env[].name",
    ),
    "variables of nothing": (env_from(prefix="A"), "spec.predictor.envFrom[]"),
    "variables of two": (
        env_from(secretRef={"name": "s"}, configMapRef={"name": "s"}),
        "spec.predictor.envFrom[]",
    ),
    "pulled at times": (
        {"predictor": {"path": "model:Iris", "imagePullPolicy": "Sometimes"}},
        "spec.predictor.imagePullPolicy",
    ),
    "limited below its request": (compute(cpu=2, cpuLimit="1500m"), "spec.compute.cpuLimit"),
    "no disk": (compute(ephemeralStorage=0), "spec.compute.ephemeralStorage"),
    "a resource without a domain": (compute(gpuResource="gpu"), "spec.compute.gpuResource"),
    "a resource of Kubernetes": (
        compute(gpuResource="kubernetes.io/gpu"),
        "spec.compute.gpuResource",
    ),
    "a quota for a resource": (
        compute(gpuResource="requests.nvidia.com/gpu"),
        "spec.compute.gpuResource",
    ),
}  # fmt: skip
"""Name of the case -> (spec, path that the message must name)."""
