"""`serverSideBatching.queue`: one queue for all replicas, on Redis, and the pods in front of it."""

from typing import Annotated, ClassVar, Final

from pydantic import Field, StringConstraints

from batchedapi_core import contract
from batchedapi_core.manifest.pod import DnsName
from batchedapi_core.manifest.rules import Flag, ManifestModel, Rule, Whole, quantity_rule, worded
from batchedapi_core.manifest.units import Quantity, parse_quantity

_QUEUE: Final = "spec.serverSideBatching.queue"
_WEB: Final = f"{_QUEUE}.web"
_HOST: Final = worded(
    r"^[A-Za-z0-9_.:-]+$", "expected a host name or an address, without scheme and port"
)
_PREFIX: Final = worded(r"^[A-Za-z0-9_.:/-]*$", "expected letters, digits and '_.:/-'")
_SECRET_KEY: Final = worded(r"^[-._A-Za-z0-9]+$", "expected letters, digits and '-._'")
_ONE_KEY: Final = "A Secret of the API's namespace and the key in it that has"


class SecretKey(ManifestModel):
    """One value of a Secret in the API's namespace."""

    name: DnsName = Field(description="Name of the Secret.")
    key: Annotated[str, StringConstraints(pattern=_SECRET_KEY, max_length=253)] = Field(
        description="Key in it."
    )


class Redis(ManifestModel):
    """Where Redis or Valkey is; what is not said here, the environment of the pods may say."""

    host: Annotated[str, StringConstraints(pattern=_HOST, max_length=253)] | None = Field(
        None,
        description=f"Host name or address. Absent: the environment's {contract.ENV_REDIS_HOST},"
        f" else {contract.DEFAULT_REDIS_HOST}.",
    )
    port: Whole | None = Field(
        None,
        ge=1,
        le=65535,
        description=f"Absent: the environment's {contract.ENV_REDIS_PORT}, else"
        f" {contract.DEFAULT_REDIS_PORT}.",
    )
    db: Whole | None = Field(
        None,
        ge=0,
        le=1023,
        description=f"Number of the database. Absent: the environment's {contract.ENV_REDIS_DB},"
        " else 0.",
    )
    tls: Flag = Field(False, description="Connect by TLS, and check Redis' certificate.")
    username_secret: SecretKey | None = Field(
        None,
        description=f"{_ONE_KEY} the user's name. Absent: the environment's"
        f" {contract.ENV_REDIS_USERNAME}, else Redis' default user.",
    )
    password_secret: SecretKey | None = Field(
        None,
        description=f"{_ONE_KEY} the password. Absent: the environment's"
        f" {contract.ENV_REDIS_PASSWORD}, else none.",
    )
    prefix: Annotated[str, StringConstraints(pattern=_PREFIX, max_length=128)] | None = Field(
        None,
        description="Before every key, so that APIs of one name keep apart on one Redis. Absent:"
        " NAMESPACE: in a cluster, nothing on a laptop.",
    )
    max_length: Whole = Field(
        65536,
        ge=1,
        le=16777216,
        description="Requests of one method in Redis at most, those that run too, however many rows"
        " each has; beyond it requests get 503.",
    )


class Web(ManifestModel):
    """The pods NAME-web, which read, check and answer requests: how many, and their resources."""

    min_replicas: Whole = Field(
        2, ge=2, le=1000, description="Fewest of them: two, so that one may go at any time."
    )
    max_replicas: Whole = Field(
        10, ge=2, le=1000, description="Most of them; between, they are scaled on their own CPU."
    )
    cpu: Quantity = Field("200m", description="CPU request of each, which they are scaled by.")
    cpu_limit: Quantity | None = Field(
        None, description="CPU limit of each, at least the request. Absent: none."
    )
    mem: Quantity | None = Field(
        None, description="Memory request and limit of each. Absent: no limit."
    )

    rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            cel="self.minReplicas <= self.maxReplicas",
            check=lambda w: w.min_replicas <= w.max_replicas,
            message=f"{_WEB}.minReplicas must be <= {_WEB}.maxReplicas",
            field_path=".minReplicas",
        ),
        quantity_rule(f"{_WEB}.cpu", lambda w: w.cpu, "1m"),
        quantity_rule(f"{_WEB}.mem", lambda w: w.mem, "1"),
        Rule(
            cel="!has(self.cpuLimit) || quantity(string(self.cpuLimit))"
            ".compareTo(quantity(string(self.cpu))) >= 0",
            check=lambda w: (
                w.cpu_limit is None or parse_quantity(w.cpu_limit) >= parse_quantity(w.cpu)
            ),
            message=f"{_WEB}.cpuLimit must be at least {_WEB}.cpu: a container cannot be limited"
            " to less than it asks for",
            field_path=".cpuLimit",
        ),
    )


class Queue(ManifestModel):
    """One queue for all replicas: pods NAME-web put rows into it, the replicas take them out."""

    redis: Redis = Field(description=(Redis.__doc__ or ""))
    web: Web = Field(
        default_factory=Web, description=(Web.__doc__ or ""), json_schema_extra={"default": {}}
    )
