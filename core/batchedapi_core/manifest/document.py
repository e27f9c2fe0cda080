"""From a parsed YAML document to a BatchedAPI, and to the part of it that a replica is given."""

import enum
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any, Final

from pydantic import AfterValidator, BaseModel, JsonValue, ValidationError

from batchedapi_core import contract
from batchedapi_core.manifest.problems import fields_of, model_of, problem
from batchedapi_core.manifest.removed import put_back, without_removed
from batchedapi_core.manifest.rules import STORED, ManifestModel, Whole
from batchedapi_core.manifest.spec import BatchedAPI, BatchedAPISpec, JsonObject, Metadata
from batchedapi_core.manifest.status import BatchedAPIStatus


class ManifestError(ValueError):
    """A manifest that cannot be used; each problem names its field, what was expected and came."""

    def __init__(self, problems: tuple[str, ...]) -> None:
        super().__init__("; ".join(problems))
        self.problems = problems


class UnknownFields(enum.Enum):
    """Treatment of fields that this version does not know."""

    REFUSE = "refuse"
    """A typing error on a laptop must not pass silently."""
    IGNORE = "ignore"
    """A replica may be older than the operator that wrote its manifest."""


def parse_api(
    document: object,
    unknown: UnknownFields = UnknownFields.REFUSE,
    warn: Callable[[str], None] = lambda _: None,
    *,
    stored: bool = False,
) -> BatchedAPI:
    """Check one BatchedAPI document.

    Args:
        document: A decoded YAML or JSON object with apiVersion, kind, metadata and spec.
        unknown: Whether unknown fields are refused, or those of `spec` ignored.
        warn: Called once for each field that is ignored or was removed, with its path.
        stored: Whether the apiserver keeps it already, so that rules for new ones do not bind it.

    Raises:
        ManifestError: with one line a problem.
    """
    if not isinstance(document, Mapping):
        raise ManifestError((f"expected a {contract.KIND} object, got {type(document).__name__}",))
    kind, version = document.get("kind"), document.get("apiVersion")
    if (kind, version) != (contract.KIND, contract.API_VERSION):
        expected = f"kind {contract.KIND} of {contract.API_VERSION}"
        raise ManifestError((f"expected {expected}, got {kind!r} of {version!r}",))
    metadata, spec = document.get("metadata"), document.get("spec")
    around = _around(document) if unknown is UnknownFields.REFUSE else []
    if isinstance(metadata, Mapping):
        metadata = {key: value for key, value in metadata.items() if key in _NAMED}
    mapped = without_removed(spec)
    spec = mapped.spec
    for text in mapped.warnings:
        warn(text)
    if unknown is UnknownFields.IGNORE and isinstance(spec, Mapping):

        def ignored(path: str) -> None:
            warn(f"{path}: unknown field ignored; this version does not have it")

        spec = _known_part(BatchedAPISpec, spec, "spec", ignored)
    body = {"metadata": metadata, "spec": spec}
    return _validated(body, around, stored=stored).mapped(mapped)


def _validated(
    body: JsonObject, problems: Sequence[str] = (), *, stored: bool = False
) -> BatchedAPI:
    """The model of `body`, unless it or `problems` say no."""
    found = [*problems]
    try:
        api = BatchedAPI.model_validate(
            {key: value for key, value in body.items() if value is not None},
            by_alias=True, by_name=False, context={STORED: stored},
        )  # fmt: skip
    except ValidationError as error:
        found += (problem(BatchedAPI, detail) for detail in error.errors())
        raise ManifestError(tuple(found)) from error
    if found:
        raise ManifestError(tuple(found))
    return api


def _around(document: Mapping[str, Any]) -> list[str]:
    """Problems outside `spec`: in the rest of metadata, and unknown fields.

    What a status says is not judged: whoever writes the object does not write its status.
    """
    metadata, status = document.get("metadata"), document.get("status")
    found: list[str] = []
    others = {}
    if isinstance(metadata, Mapping):
        others = {key: value for key, value in metadata.items() if key not in _NAMED}
    body = {**document, "metadata": others}
    try:
        WholeDocument.model_validate(body, by_alias=True, by_name=False)
    except ValidationError as error:
        found += (problem(WholeDocument, detail) for detail in error.errors())
    if isinstance(status, Mapping):
        _known_part(
            BatchedAPIStatus, status, "status",
            lambda path: found.append(f"{path}: unknown field; leave status out, it is not yours"),
        )  # fmt: skip
    return found


_NAMED: Final = frozenset(fields_of(Metadata))
"""Fields of metadata that BatchedAPI declares."""


def _known_part(
    model: type[BaseModel] | None, value: Mapping[str, Any], path: str, told: Callable[[str], None]
) -> JsonObject:
    """`value` without the members that `model` does not have, of which it tells the paths."""
    if model is None:
        return dict(value)
    fields = fields_of(model)
    kept: JsonObject = {}
    for key, member in value.items():
        if key not in fields:
            told(f"{path}.{key}")
            continue
        inner, place = model_of(fields[key]), f"{path}.{key}"
        if isinstance(member, Mapping):
            kept[key] = _known_part(inner, member, place, told)
        elif isinstance(member, list):
            kept[key] = [
                _known_part(inner, one, f"{place}[{index}]", told)
                if isinstance(one, Mapping)
                else one
                for index, one in enumerate(member)
            ]
        else:
            kept[key] = member
    return kept


def with_changes(api: BatchedAPI, changes: Mapping[str, Mapping[str, Any]]) -> BatchedAPI:
    """`api` with other values, checked like a manifest in which they had been written.

    Args:
        changes: Section of `spec` -> field -> value as in a manifest.

    Raises:
        ManifestError: the values are not possible, or not beside the others.
    """
    spec = api.spec.model_dump(mode="json", by_alias=True, exclude_unset=True, exclude_none=True)
    for section, fields in changes.items():
        spec[section] = {**spec.get(section, {}), **fields}
    return _validated({"metadata": api.metadata.model_dump(), "spec": spec})


def serving_slice(api: BatchedAPI) -> JsonObject:
    """The manifest that a replica of `api` is given: only what changes how a replica behaves.

    Replica counts, resources, images and sources are left out, so that changing them (maxReplicas,
    say) rolls nothing.
    """
    spec = api.spec
    predictor = _told(spec.predictor)
    for name in _NOT_FOR_REPLICAS:
        predictor.pop(name, None)
    if spec.predictor.model is not None:
        predictor["model"]["uri"] = spec.predictor.model.served_uri
    told = {
        "predictor": predictor,
        "serverSideBatching": _batching(api),
        "overload": _told(spec.overload),
        "networking": {**_told(spec.networking), "endpoint": api.endpoint},
    }
    for name in OF_ADDRESSES:
        told["networking"].pop(name, None)
    put_back(told, tuple(one for one in api.before if not _NOT_FOR_REPLICAS & {*one[0]}))
    return {
        "apiVersion": contract.API_VERSION,
        "kind": contract.KIND,
        "metadata": {"name": api.metadata.name},
        "spec": told,
    }


def _batching(api: BatchedAPI) -> JsonObject:
    """`serverSideBatching` of the slice; of a queue only what processes connect by.

    Secrets come by the environment, and the web pods' number and resources change no process.
    """
    batching = api.spec.server_side_batching
    told = _told(batching)
    if batching.queue is not None:
        redis = told["queue"]["redis"]
        told["queue"] = {
            "redis": {"prefix": f"{api.metadata.namespace}:"}
            | {name: value for name, value in redis.items() if not name.endswith("Secret")}
        }
    return told


OF_ADDRESSES: Final = ("service", "gateway", "ingress", "allowFrom")
"""Fields of `networking` that no replica is told, and no revision is made of."""
_NOT_FOR_REPLICAS: Final = frozenset(
    {"source", "image", "imagePullPolicy", "env", "envFrom", "tuning", "autoscaling"}
)
_ALWAYS_TOLD: Final = frozenset(
    {
        "path", "config", "processesPerReplica", "threadsPerProcess", "logLevel",
        "maxBatchSize", "batchInterval", "strategy", "sizeUnit", "maxLatency",
        "timeout", "maxBodySize", "maxReplicaConcurrency",
    }
)  # fmt: skip
"""Fields of the first slices, written whatever they are. Any other is written only when it is not
its default: one more line would be another hash, and an upgrade of the operator would roll the
replicas of everybody who does not use the field."""


def _told(model: BaseModel) -> JsonObject:
    written = model.model_dump(mode="json", by_alias=True, exclude_none=True)
    special = model.model_dump(mode="json", by_alias=True, exclude_none=True, exclude_defaults=True)
    return {
        name: special.get(name, value)
        for name, value in written.items()
        if name in _ALWAYS_TOLD or name in special
    }


_PREFIX: Final = r"([a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*/)?"
_WORD: Final = r"([A-Za-z0-9][-A-Za-z0-9_.]{0,61})?[A-Za-z0-9]"
_KEY: Final = re.compile(_PREFIX + _WORD)
_VALUE: Final = re.compile(f"({_WORD})?")
_LONGEST_PREFIX: Final = 253


def _check_key(key: str) -> None:
    prefix = key.rpartition("/")[0]
    if _KEY.fullmatch(key) is None or len(prefix) > _LONGEST_PREFIX:
        raise ValueError(
            f"expected keys of letters, digits, '-', '_' and '.', such as example.com/team,"
            f" got {key!r:.100}"
        )


def _labels(labels: dict[str, str | None]) -> dict[str, str | None]:
    for key, value in labels.items():
        _check_key(key)
        if value and _VALUE.fullmatch(value) is None:
            raise ValueError(
                "expected values of at most 63 letters, digits, '-', '_' and '.',"
                f" got {value!r:.100}"
            )
    return labels


def _annotations(annotations: dict[str, str | None]) -> dict[str, str | None]:
    for key in annotations:
        _check_key(key.lower())
    return annotations


class OtherMetadata(ManifestModel):
    """`metav1.ObjectMeta` without what BatchedAPI has a field for."""

    generate_name: str | None = None
    labels: Annotated[dict[str, str | None], AfterValidator(_labels)] | None = None
    annotations: Annotated[dict[str, str | None], AfterValidator(_annotations)] | None = None
    finalizers: list[str] | None = None
    owner_references: list[dict[str, JsonValue]] | None = None
    managed_fields: list[dict[str, JsonValue]] | None = None
    resource_version: str | None = None
    self_link: str | None = None
    creation_timestamp: str | None = None
    deletion_timestamp: str | None = None
    deletion_grace_period_seconds: Whole | None = None


class WholeDocument(ManifestModel):
    """A document as it is applied; what is `object` here is judged elsewhere."""

    api_version: object
    kind: object
    metadata: OtherMetadata = OtherMetadata()
    spec: object = None
    status: object = None
