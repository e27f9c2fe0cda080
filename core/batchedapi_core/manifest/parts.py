"""The smaller sections of `spec`. A field exists only if it works; its text is the reference."""

import enum
from typing import Annotated, ClassVar, Final

from pydantic import ConfigDict, Field, PlainValidator, StringConstraints
from pydantic.alias_generators import to_camel

from batchedapi_core import contract
from batchedapi_core.manifest.exposure import GatewaySpec, IngressSpec, ServiceSpec
from batchedapi_core.manifest.kubernetes import NetworkPolicyPeer
from batchedapi_core.manifest.rules import (
    PERCENT,
    Flag,
    ManifestModel,
    Rule,
    Whole,
    count_or_percent,
    not_negative_rule,
    quantity_rule,
    worded,
)
from batchedapi_core.manifest.units import Duration, Quantity, duration_field, parse_quantity

EXTENDED_RESOURCE: Final = (
    r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*"
    r"/([A-Za-z0-9][-A-Za-z0-9_.]{0,61})?[A-Za-z0-9]$"
)
RESERVED_ENDPOINTS: Final = ("/docs", "/openapi.json")


class Overload(ManifestModel):
    """Limits of a replica, and when it refuses requests."""

    timeout: Duration = duration_field(
        "30s",
        at_least="0s",
        at_most="24h",
        description="A request not answered by then gets 504; 0s = no limit.",
    )
    max_body_size: Quantity = Field(
        "32Mi", description="Largest request body, at least 1Ki; above it 413."
    )
    max_replica_concurrency: Whole = Field(
        1024, ge=1, le=30000, description="Requests in one replica at once; above it 503."
    )

    rules: ClassVar[tuple[Rule, ...]] = (
        quantity_rule("spec.overload.maxBodySize", lambda o: o.max_body_size, "1Ki"),
    )


class Compute(ManifestModel):
    """Resources of one replica."""

    cpu: Quantity = Field("200m", description="CPU request.")
    cpu_limit: Quantity | None = Field(
        None,
        description="CPU limit, at least the request. Absent: none, as a throttled batch makes"
        " every request in it late.",
    )
    mem: Quantity | None = Field(None, description="Memory request and limit. Absent: no limit.")
    ephemeral_storage: Quantity | None = Field(
        None,
        description="Request and limit of the node's disk, for logs and /tmp. Absent: no limit.",
    )
    gpu: Whole = Field(0, ge=0, le=16, description="GPUs, as limits[gpuResource].")
    gpu_resource: Annotated[
        str,
        StringConstraints(
            pattern=worded(
                EXTENDED_RESOURCE, "expected a resource of a device plugin, such as nvidia.com/gpu"
            ),
            max_length=253,
        ),
    ] = Field(
        "nvidia.com/gpu",
        description="What the cluster calls a GPU, such as amd.com/gpu, or the profile of a MIG"
        " slice, nvidia.com/mig-1g.10gb.",
    )

    rules: ClassVar[tuple[Rule, ...]] = (
        quantity_rule("spec.compute.cpu", lambda c: c.cpu, "1m"),
        quantity_rule("spec.compute.mem", lambda c: c.mem, "1"),
        quantity_rule("spec.compute.ephemeralStorage", lambda c: c.ephemeral_storage, "1"),
        Rule(
            cel="!has(self.cpuLimit) || quantity(string(self.cpuLimit))"
            ".compareTo(quantity(string(self.cpu))) >= 0",
            check=lambda c: (
                c.cpu_limit is None or parse_quantity(c.cpu_limit) >= parse_quantity(c.cpu)
            ),
            message="spec.compute.cpuLimit must be at least spec.compute.cpu: a container cannot be"
            " limited to less than it asks for",
            field_path=".cpuLimit",
        ),
        Rule(
            cel="!self.gpuResource.contains('kubernetes.io/')"
            " && !self.gpuResource.startsWith('requests.')",
            check=lambda c: (
                "kubernetes.io/" not in c.gpu_resource
                and not c.gpu_resource.startswith("requests.")
            ),
            message="spec.compute.gpuResource must be what a device plugin offers, such as"
            " nvidia.com/gpu: kubernetes.io and requests.* are Kubernetes' own names",
            field_path=".gpuResource",
        ),
    )


IntOrPercent = Annotated[
    int | str,
    PlainValidator(count_or_percent, json_schema_input_type=int | str),
    Field(
        json_schema_extra={
            "x-kubernetes-int-or-string": True,
            "anyOf": [{"type": "integer"}, {"type": "string"}],
            "pattern": PERCENT,
            "maxLength": 4,
        }
    ),
]


Percent = Annotated[
    str,
    StringConstraints(
        pattern=worded(PERCENT, "expected a percentage such as 30%"),
        max_length=64,  # above what fits the pattern, whose words say more
    ),
]


class CompareMode(enum.StrEnum):
    """Whether a new revision is compared with the one before."""

    OFF = "Off"
    ON = "On"


class Compare(ManifestModel):
    """Compares a new revision with the old one, by recent rows, before it gets any."""

    mode: CompareMode = Field(
        CompareMode.OFF,
        description="On: a replica keeps recent rows and their answers in memory, at most 16 MiB."
        " A pod of a new revision asks a pod of the old one for them, and runs them before it is"
        " ready. Off: nothing is kept.",
    )
    slower: Percent = Field(
        "30%",
        description="How much longer batches may take. Above it, the rollout is held.",
    )
    differ: Percent = Field(
        "0%",
        description="Share of rows that may get another answer, beyond what rounding explains."
        " Above it, the rollout is held.",
    )

    @property
    def is_on(self) -> bool:
        """Whether rows are kept and new revisions compared."""
        return self.mode is CompareMode.ON

    @property
    def shares(self) -> tuple[float, float]:
        """`slower` and `differ` as shares: 0.3 is 30 %."""
        return int(self.slower[:-1]) / 100, int(self.differ[:-1]) / 100


class Canary(ManifestModel):
    """Some pods of a new revision take traffic first, beside those of the old one."""

    model_config = ConfigDict(alias_generator=lambda name: to_camel(name.rstrip("_")))

    percent: Whole = Field(
        10, ge=1, le=100, description="How many, of the replicas; rounded up, and on top of them."
    )
    for_: Duration = duration_field(
        "2m",
        at_least="10s",
        at_most="1h",
        description="How long both are measured before the new one takes over. It is given up for"
        " more errors or refusals than the old one has, or longer batches than compare.slower"
        " allows.",
    )


class UpdateStrategy(ManifestModel):
    """How a new revision replaces the old one, and how a replica stops."""

    max_surge: IntOrPercent = Field("25%", description="Replicas above the count in an update.")
    max_unavailable: IntOrPercent = Field(
        0,
        description="Replicas missing in an update: none, so that those that are left are not"
        " overloaded. Where no node has room for one more, 1, and maxSurge 0.",
    )
    drain_delay: Duration = duration_field(
        "5s",
        at_least="0s",
        at_most="10m",
        description="How long a stopping replica goes on accepting, until endpoints have settled.",
    )
    compare: Compare = Field(
        default_factory=Compare,
        description=(Compare.__doc__ or ""),
        json_schema_extra={"default": {}},
    )
    auto_rollback: Flag = Field(
        False,
        description="true: a rollout that does not move for longer than a start may take goes back"
        " to the revision that answers, until the spec or its source is another.",
    )
    canary: Canary | None = Field(
        None, description=f"{Canary.__doc__} Absent: it replaces them pod by pod."
    )

    rules: ClassVar[tuple[Rule, ...]] = (
        not_negative_rule("spec.updateStrategy.maxSurge", lambda u: u.max_surge),
        not_negative_rule("spec.updateStrategy.maxUnavailable", lambda u: u.max_unavailable),
        Rule(
            cel="!(string(self.maxSurge) in ['0', '0%']"
            " && string(self.maxUnavailable) in ['0', '0%'])",
            check=lambda u: not {str(u.max_surge), str(u.max_unavailable)} <= {"0", "0%"},
            message="spec.updateStrategy.maxSurge and spec.updateStrategy.maxUnavailable must not"
            " both be 0, which maxUnavailable is unless it is set: an update could never begin",
            field_path=".maxSurge",
        ),
    )


class ApiKeysSpec(ManifestModel):
    """Keys of a Secret, of which every request over HTTP and gRPC must bring one; else 401."""

    secret_name: Annotated[str, StringConstraints(min_length=1, max_length=253)] = Field(
        description="A Secret of the API's namespace, each value of which is a key. It is mounted:"
        " a changed key holds without a restart, as soon as the kubelet has it."
    )


class CorsSpec(ManifestModel):
    """Lets pages of other origins ask from a browser; cookies are never sent."""

    allow_origins: list[
        Annotated[
            str,
            StringConstraints(
                pattern=worded(
                    r"^([*]|https?://[A-Za-z0-9.:_\[\]-]+)$",
                    "expected '*', or http:// or https:// and a host without a path",
                ),
                max_length=253,
            ),
        ]
    ] = Field(
        min_length=1,
        max_length=32,
        description="Origins such as https://app.example.com; or `*` alone, for any.",
    )


class Networking(ManifestModel):
    """Where predictions are asked for."""

    endpoint: (
        Annotated[
            str,
            StringConstraints(
                pattern=worded(
                    r"^(/[A-Za-z0-9_.~-]+)+$",
                    "expected a path such as /iris, of letters, digits and '_.~-'",
                ),
                max_length=253,
            ),
        ]
        | None
    ) = Field(
        None,
        description="Path of the predictions, beside /predict and /<name>, which are always"
        " served. Absent: /<name>.",
    )
    grpc: Flag = Field(
        False,
        description="Answer the Open Inference Protocol over gRPC too, on port"
        f" {contract.GRPC_PORT} of the replicas and of the Service.",
    )
    max_connection_age: Duration = duration_field(
        "5m",
        at_least="0s",
        at_most="24h",
        description="A connection that is this old, give or take a tenth, is closed with its next"
        " answer, so that clients with pools find new replicas; 0s = never.",
    )
    keep_alive: Duration = duration_field(
        "65m",
        at_least="1s",
        at_most="24h",
        description="A connection without a request for so long is closed. Longer than what stands"
        " in front keeps its own: whoever closes first does not send into a closed connection.",
    )

    api_keys: ApiKeysSpec | None = Field(
        None,
        description=f"{ApiKeysSpec.__doc__} The header is `Authorization: Bearer KEY` or"
        " `X-API-Key: KEY`; health, /docs and /openapi.json are open. Absent: whoever reaches a"
        " replica is answered.",
    )
    cors: CorsSpec | None = Field(
        None, description=f"{CorsSpec.__doc__} Absent: browsers let no other page read an answer."
    )
    access_log: Flag = Field(
        False,
        description="One line in the log for each request, over HTTP and gRPC: method, path,"
        " status, seconds, client and request id; nothing of what is in it.",
    )

    service: ServiceSpec = Field(
        default_factory=ServiceSpec,
        description=(ServiceSpec.__doc__ or ""),
        json_schema_extra={"default": {}},
    )
    gateway: GatewaySpec | None = Field(
        None, description=f"{GatewaySpec.__doc__} Absent: no routes."
    )
    ingress: IngressSpec | None = Field(None, description=f"{IngressSpec.__doc__} Absent: none.")
    allow_from: list[NetworkPolicyPeer] | None = Field(
        None,
        min_length=1,
        max_length=16,
        description="Who may ask for predictions: peers of a NetworkPolicy, as in Kubernetes. The"
        " operator may always read metrics. Absent: no policy is made.",
    )

    rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            cel="self.grpc || !has(self.gateway) || !has(self.gateway.grpcHostnames)"
            " || self.gateway.grpcHostnames.size() == 0",
            check=lambda n: n.gateway is None or not n.gateway.grpc_hostnames or n.grpc,
            message="spec.networking.gateway.grpcHostnames needs spec.networking.grpc: true",
            field_path=".gateway.grpcHostnames",
        ),
        Rule(
            cel="!has(self.endpoint) || !(self.endpoint in ['/docs', '/openapi.json'])",
            check=lambda n: n.endpoint not in RESERVED_ENDPOINTS,
            message="spec.networking.endpoint must not be /docs or /openapi.json:"
            " these routes exist already",
            field_path=".endpoint",
        ),
    )
