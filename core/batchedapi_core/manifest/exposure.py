"""`networking.service`, `gateway` and `ingress`: how clients reach the replicas of an API."""

import enum
from typing import Annotated, ClassVar, Final, Literal

from pydantic import Field, StringConstraints

from batchedapi_core import contract
from batchedapi_core.manifest.pod import Annotations, DnsName
from batchedapi_core.manifest.rules import DNS_NAME, DNS_WORDS, ManifestModel, Rule, Whole, worded

_HOST: Final = rf"^([*]\.)?{DNS_NAME}$"
Hostname = Annotated[
    str, StringConstraints(pattern=worded(_HOST, f"{DNS_WORDS}, after *. perhaps"), max_length=253)
]
PathPrefix = Annotated[
    str,
    StringConstraints(
        pattern=worded(r"^/([A-Za-z0-9_.~:-]+(/[A-Za-z0-9_.~:-]+)*)?$", "expected a path: /iris"),
        max_length=253,
    ),
]
_PATHS: Final = "Beginnings of the paths that lead here; others where several APIs share a host."


class ServiceType(enum.StrEnum):
    """Reach of a Service."""

    CLUSTER_IP = "ClusterIP"
    NODE_PORT = "NodePort"
    LOAD_BALANCER = "LoadBalancer"


class ServiceSpec(ManifestModel):
    """The Service in front of the replicas."""

    type: ServiceType = Field(ServiceType.CLUSTER_IP, description="As in Kubernetes.")
    annotations: Annotations = Field(
        default_factory=dict,
        max_length=64,
        description="Annotations of the Service alone, such as a cloud's for its load balancer.",
    )
    port: Whole = Field(contract.SERVICE_PORT, ge=1, le=65535, description="Port of HTTP.")
    traffic_distribution: Literal["PreferClose", "PreferSameZone", "PreferSameNode"] | None = Field(
        None, description="Which replicas are asked first. Absent: all alike."
    )

    rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            cel=f"self.port != {contract.GRPC_PORT}",
            check=lambda s: s.port != contract.GRPC_PORT,
            message=f"spec.networking.service.port must not be {contract.GRPC_PORT}: that is the"
            " port of gRPC",
            field_path=".port",
        ),
    )


class GatewayParent(ManifestModel):
    """A Gateway, or one listener of it."""

    name: DnsName = Field(description="The Gateway.")
    namespace: DnsName | None = Field(None, description="Absent: the API's.")
    section_name: DnsName | None = Field(None, description="A listener. Absent: all that fit.")


class GatewaySpec(ManifestModel):
    """Routes of the Gateway API; they give a request as long as `overload.timeout` does."""

    parent_refs: list[GatewayParent] = Field(
        min_length=1, max_length=8, description="Gateways that the routes attach to."
    )
    hostnames: list[Hostname] = Field(
        min_length=1,
        max_length=16,
        description="Hosts of the HTTPRoute; the first without `*` is in the URL.",
    )
    grpc_hostnames: list[Hostname] = Field(
        default_factory=list,
        max_length=16,
        description="Hosts of a GRPCRoute. A listener takes a host for HTTP or for gRPC, not both.",
    )
    paths: list[PathPrefix] = Field(
        default=["/"], min_length=1, max_length=8, description=f"{_PATHS} Of HTTP."
    )
    scheme: Literal["https", "http"] = Field(
        "https", description="What the listeners speak, for the URL in the status."
    )


class IngressSpec(ManifestModel):
    """An Ingress to the Service's port of HTTP."""

    host: Hostname = Field(description="Host that leads here.")
    class_name: DnsName | None = Field(
        None, description="IngressClass. Absent: the cluster's default."
    )
    tls_secret: DnsName | None = Field(
        None, description="Secret with the host's certificate. Absent: plain HTTP."
    )
    annotations: Annotations = Field(
        default_factory=dict, max_length=64, description="Annotations of the Ingress alone."
    )
    paths: list[PathPrefix] = Field(default=["/"], min_length=1, max_length=8, description=_PATHS)
