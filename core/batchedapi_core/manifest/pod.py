"""`spec.pod`: what a platform asks of the pods; nothing in it reaches the node or undoes ours."""

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Final

from pydantic import AfterValidator, BaseModel, Field, StringConstraints, ValidationError

from batchedapi_core import contract
from batchedapi_core.manifest import kubernetes
from batchedapi_core.manifest.problems import problem
from batchedapi_core.manifest.rules import (
    DNS_NAME,
    DNS_WORDS,
    LABEL_WORDS,
    Flag,
    ManifestModel,
    Rule,
    count_or_word,
    count_or_word_schema,
    each_key_once,
    map_list,
    one_of_rule,
    quantity_rule,
    worded,
)
from batchedapi_core.manifest.units import Quantity

PLATFORM: Final = "Platform"
"""Instead of a user id: whichever the platform gives."""
OWN_VOLUMES: Final = ("revision", "tmp", "model", "shared-memory")
"""Volumes that the operator itself gives a pod."""
SHARED_MEMORY_DIRECTORY: Final = "/dev/shm"  # noqa: S108 - where shared memory is
OWN_LABELS: Final = (
    "app.kubernetes.io/name", "app.kubernetes.io/instance", contract.LABEL_MANAGED_BY,
    "pod-template-hash",
)  # fmt: skip
OWN_ANNOTATIONS: Final = ("prometheus.io/scrape", "prometheus.io/port", "prometheus.io/path")
OWN_DOMAIN: Final = f"{contract.GROUP}/"
_CONFINEMENT: Final = (
    "container.apparmor.security.beta.kubernetes.io/",
    "seccomp.security.alpha.kubernetes.io/",
)
"""Annotations that loosen what a container may do on its node."""
_WRITTEN_BY_OTHERS: Final = ("deployment.kubernetes.io/", "kubectl.kubernetes.io/last-applied-")
"""Annotations that Kubernetes' own controllers and tools count with."""
_TAKEN_BELOW: Final = (
    contract.MANIFEST_DIRECTORY, contract.KEYS_DIRECTORY, contract.MODEL_DIRECTORY, "/dev", "/proc",
    "/sys", "/opt/venv",
    "/run/secrets/kubernetes.io", "/var/run/secrets/kubernetes.io",
)  # fmt: skip
"""Folders in which nothing can be mounted."""
_TAKEN: Final = (
    *_TAKEN_BELOW, "/tmp", "/mnt", "/opt", "/etc", "/run", "/run/secrets", "/var", "/var/run",  # noqa: S108 - in a pod
    "/var/run/secrets", "/usr", "/usr/bin", "/usr/lib", "/usr/local", "/usr/local/bin",
    "/usr/local/lib", "/bin", "/sbin", "/lib", "/lib64",
)  # fmt: skip
"""Folders that cannot be mounted over: the replica's own, what it runs with, and those around."""
_MAPS: Final = ("labels", "annotations", "node_selector")
_VOLUMES: Final = ("volumes", "volume_mounts")
_SOURCES: Final = ("configMap", "secret", "persistentVolumeClaim", "emptyDir", "csi", "ephemeral",
            "projected")  # fmt: skip
_PLAIN_PARTS: Final = (".", "..")

LabelValue = Annotated[
    str,
    StringConstraints(
        pattern=worded(
            r"^(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])?$",
            "expected letters, digits and '-_.', with a letter or digit at both ends",
        ),
        max_length=63,
    ),
]
Labels = dict[str, LabelValue]
Annotations = dict[str, Annotated[str, StringConstraints(max_length=4096)]]
DnsName = Annotated[
    str, StringConstraints(pattern=worded(f"^{DNS_NAME}$", DNS_WORDS), max_length=253)
]
_Label = Annotated[
    str,
    StringConstraints(
        pattern=worded(r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?$", LABEL_WORDS), max_length=63
    ),
]
_UserId = Annotated[
    int | str, count_or_word(PLATFORM, 2**31 - 1), count_or_word_schema(PLATFORM, 2**31 - 1)
]


class PodVolumeProjection(kubernetes.VolumeProjection):
    """One of the things that a projected volume puts together."""

    rules: ClassVar[tuple[Rule, ...]] = (
        one_of_rule(
            "spec.pod.volumes[].projected.sources[]", ("configMap", "secret", "serviceAccountToken")
        ),
    )


class PodProjectedVolume(kubernetes.ProjectedVolumeSource):
    """ConfigMaps, Secrets and tokens of the pod's service account in one folder."""

    sources: list[PodVolumeProjection] = Field(max_length=16)  # type: ignore[assignment]  # frozen


class PodVolume(kubernetes.Volume):
    """A volume of the pod."""

    projected: PodProjectedVolume | None = None
    name: _Label

    rules: ClassVar[tuple[Rule, ...]] = (
        one_of_rule("spec.pod.volumes[]", _SOURCES),
        Rule(
            cel=f"!(self.name in {list(OWN_VOLUMES)}) && !self.name.startsWith('batchedapi-')",
            check=lambda v: v.name not in OWN_VOLUMES and not v.name.startswith("batchedapi-"),
            message=f"spec.pod.volumes[].name must not be {', '.join(OWN_VOLUMES)} or"
            " batchedapi-*: these are the operator's own; choose another name",
            field_path=".name",
        ),
    )


class PodVolumeMount(kubernetes.VolumeMount):
    """Where a volume is seen in the serving container."""

    mount_path: Annotated[
        str,
        StringConstraints(
            pattern=worded(r"^(/[^/:]+)+$", "expected an absolute path without ':'"), max_length=253
        ),
    ]

    rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            cel=f"!(self.mountPath in {list(_TAKEN)})"
            f" && !{list(_TAKEN_BELOW)}.exists(p, self.mountPath.startsWith(p + '/'))"
            f" && !self.mountPath.split('/').exists(p, p in {list(_PLAIN_PARTS)})",
            check=lambda m: (
                m.mount_path not in _TAKEN
                and not m.mount_path.startswith(tuple(f"{path}/" for path in _TAKEN_BELOW))
                and not {*_PLAIN_PARTS} & {*m.mount_path.split("/")}
            ),
            message="spec.pod.volumeMounts[].mountPath must not cover what the replica runs with"
            f" ({contract.MANIFEST_DIRECTORY}, {contract.MODEL_DIRECTORY}, /tmp, /dev, /usr, ...)"
            " and have no . or .. in it: mount into a folder of your own, such as /data; shared"
            " memory is spec.pod.sharedMemory",
            field_path=".mountPath",
        ),
    )


class PodResourceClaim(kubernetes.PodResourceClaim):
    """Devices that the cluster's own drivers give, by a claim or by one made for each pod."""

    name: _Label

    rules: ClassVar[tuple[Rule, ...]] = (
        one_of_rule(
            "spec.pod.resourceClaims[]", ("resourceClaimName", "resourceClaimTemplateName")
        ),
    )


def _owned(path: str, names: tuple[str, ...], heads: tuple[str, ...]) -> Rule:
    """No key of the map at `path` is one of `names` or begins as one of `heads`."""
    member = path.rpartition(".")[2]
    begins = "".join(f" && !k.startsWith('{head}')" for head in heads)
    told = ", ".join((*names, *(f"{head}*" for head in heads)))

    def check(pod: Any) -> bool:
        keys = getattr(pod, member)
        return not any(key in names or key.startswith(heads) for key in keys)

    return Rule(
        cel=f"!has(self.{member}) || self.{member}.all(k, !(k in {list(names)}){begins})",
        check=check,
        message=f"{path} must not have {told}: they are the operator's, or loosen what"
        " confines a container; leave them out",
        field_path=f".{member}",
    )


class ChildMetadata(ManifestModel):
    """Metadata of every object that the operator makes for the API; `spec.pod` has that of pods."""

    labels: Labels = Field(default_factory=dict, max_length=64, description="Further labels.")
    annotations: Annotations = Field(
        default_factory=dict, max_length=64, description="Further annotations."
    )

    rules: ClassVar[tuple[Rule, ...]] = (
        _owned("spec.childMetadata.labels", OWN_LABELS, (OWN_DOMAIN,)),
        _owned("spec.childMetadata.annotations", (), (OWN_DOMAIN, *_WRITTEN_BY_OTHERS)),
    )


class WebPod(ManifestModel):
    """Where the pods NAME-web run, which need none of the model's hardware, and as whom."""

    node_selector: dict[str, LabelValue] = Field(
        default_factory=dict, max_length=64, description="Labels that a node must have."
    )
    tolerations: list[kubernetes.Toleration] = Field(
        default_factory=list,
        max_length=32,
        description="Taints of nodes that do not keep the pods away.",
    )
    service_account_name: DnsName | None = Field(
        None, description="ServiceAccount of the pods. Absent: the namespace's default."
    )


class Pod(ManifestModel):
    """Settings of the pods that a platform asks for; the chart's `defaults.pod` lie under them."""

    labels: Labels = Field(
        default_factory=dict, max_length=64, description="Further labels of the pods."
    )
    annotations: Annotations = Field(
        default_factory=dict, max_length=64, description="Further annotations of the pods."
    )
    node_selector: dict[str, LabelValue] = Field(
        default_factory=dict, max_length=64, description="Labels that a node must have."
    )
    tolerations: list[kubernetes.Toleration] = Field(
        default_factory=list,
        max_length=32,
        description="Taints of nodes that do not keep the pods away, such as those of a GPU pool.",
    )
    affinity: kubernetes.Affinity | None = Field(
        None, description="Nodes, and other pods, that the pods are to be near to or far from."
    )
    topology_spread_constraints: Annotated[
        list[kubernetes.TopologySpreadConstraint],
        AfterValidator(each_key_once("topology_key", "when_unsatisfiable")),
    ] = Field(
        default_factory=list,
        max_length=16,
        description="How the API's own pods are spread. Absent: over nodes and over zones where"
        " that is possible; []: as the scheduler likes.",
        json_schema_extra=map_list("topologyKey", "whenUnsatisfiable"),
    )
    priority_class_name: DnsName | None = Field(None, description="PriorityClass of the pods.")
    runtime_class_name: DnsName | None = Field(None, description="RuntimeClass of the pods.")
    scheduler_name: DnsName | None = Field(
        None, description="Scheduler that places the pods. Absent: the cluster's default."
    )
    image_pull_secrets: Annotated[
        list[kubernetes.LocalObjectReference], AfterValidator(each_key_once("name"))
    ] = Field(
        default_factory=list,
        max_length=16,
        description="Secrets of a private registry, in the API's namespace.",
        json_schema_extra=map_list("name"),
    )
    service_account_name: DnsName | None = Field(
        None, description="ServiceAccount of the pods. Absent: the namespace's default."
    )
    automount_service_account_token: Flag | None = Field(
        None, description="true: the pods get a token for the API server; nothing of ours needs it."
    )
    run_as_user: _UserId | None = Field(
        None,
        description="User id, and id of the group of its volumes; Platform: whichever the platform"
        " gives, as OpenShift's restricted-v2 demands. Absent: 65532, the image's own.",
    )
    shared_memory: Quantity | None = Field(
        None, description="Size of /dev/shm, which counts as memory. Absent: the runtime's 64Mi."
    )
    resource_claims: Annotated[list[PodResourceClaim], AfterValidator(each_key_once("name"))] = (
        Field(
            default_factory=list,
            max_length=8,
            description="Devices by claims, Kubernetes 1.34 or newer, instead of compute.gpu: the"
            " serving container has all of them.",
            json_schema_extra=map_list("name"),
        )
    )
    volumes: Annotated[list[PodVolume], AfterValidator(each_key_once("name"))] = Field(
        default_factory=list,
        max_length=32,
        description=f"Volumes of one of {', '.join(_SOURCES)}.",
        json_schema_extra=map_list("name"),
    )
    volume_mounts: Annotated[list[PodVolumeMount], AfterValidator(each_key_once("mount_path"))] = (
        Field(
            default_factory=list,
            max_length=32,
            description="Where the serving container sees them.",
            json_schema_extra=map_list("mountPath"),
        )
    )

    rules: ClassVar[tuple[Rule, ...]] = (
        _owned("spec.pod.labels", OWN_LABELS, (OWN_DOMAIN,)),
        _owned("spec.pod.annotations", OWN_ANNOTATIONS, (OWN_DOMAIN, *_CONFINEMENT)),
        quantity_rule("spec.pod.sharedMemory", lambda p: p.shared_memory, "1"),
        Rule(
            cel="!has(self.volumeMounts) || self.volumeMounts.all(m,"
            " has(self.volumes) && self.volumes.exists(v, v.name == m.name))",
            check=lambda p: {m.name for m in p.volume_mounts} <= {v.name for v in p.volumes},
            message="spec.pod.volumeMounts[].name must be the name of one of spec.pod.volumes",
            field_path=".volumeMounts",
        ),
    )

    def over(self, defaults: "Pod") -> "Pod":
        """The settings in effect with `defaults` under these.

        labels, annotations and nodeSelector are joined key by key; whatever else is written here
        stands as it is. volumes and volumeMounts are one: a mount without its volume is none.
        """
        written = self.model_fields_set
        if not written.isdisjoint(_VOLUMES):
            written = written | {*_VOLUMES}
        taken = {name: getattr(defaults, name) for name in defaults.model_fields_set - written}
        for name in _MAPS:
            if joined := {**getattr(defaults, name), **getattr(self, name)}:
                taken[name] = joined
        return self.model_copy(update=taken)


SPREAD: Final = Pod.model_validate(
    {
        "topologySpreadConstraints": [
            {
                "maxSkew": 1,
                "topologyKey": key,
                "whenUnsatisfiable": "ScheduleAnyway",
                "matchLabelKeys": ["pod-template-hash"],
            }
            for key in ("kubernetes.io/hostname", "topology.kubernetes.io/zone")
        ]
    }
)
"""The default of every API: where possible, no node and no zone has more of its pods than others;
those of one revision are counted alone."""


class _Defaults(ManifestModel):
    """The part of the chart's values that `pod_defaults` reads."""

    pod: Pod


def pod_defaults(written: Mapping[str, Any]) -> Pod:
    """The chart's `defaults.pod`, checked as `spec.pod` is.

    Raises:
        ValueError: names every field that is wrong, one a line.
    """
    try:
        return _Defaults.model_validate({"pod": written}, by_alias=True, by_name=False).pod
    except ValidationError as error:
        found = (problem(_Defaults, detail) for detail in error.errors())
        lines = (f"defaults.{line.replace('spec.pod', 'defaults.pod')}" for line in found)
        raise ValueError("\n".join(lines)) from error


def as_written(part: BaseModel) -> dict[str, Any]:
    """A part of a manifest as Kubernetes has it: what was written, and nothing that was not."""
    return part.model_dump(mode="json", by_alias=True, exclude_unset=True, exclude_none=True)
