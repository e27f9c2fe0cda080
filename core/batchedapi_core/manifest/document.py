"""From a parsed YAML document to a BatchedAPI, and to the part of it that a replica is given."""

import enum
from collections.abc import Callable, Mapping
from typing import Any, Final, get_args

from pydantic import BaseModel, ValidationError
from pydantic.fields import FieldInfo

from batchedapi_core import contract
from batchedapi_core.manifest.rules import STORED
from batchedapi_core.manifest.spec import BatchedAPI, JsonObject, Metadata


class ManifestError(ValueError):
    """A manifest that cannot be used; each problem names its field, what was expected and came."""

    def __init__(self, problems: tuple[str, ...]) -> None:
        super().__init__("; ".join(problems))
        self.problems = problems


class UnknownFields(enum.Enum):
    """What to do with fields that this version does not know."""

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
        unknown: Whether unknown fields of `spec` are refused or ignored.
        warn: Called once for each ignored field, with its path.
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
    known = {field.alias or name for name, field in Metadata.model_fields.items()}
    if isinstance(metadata, Mapping):
        metadata = {key: value for key, value in metadata.items() if key in known}
    if unknown is UnknownFields.IGNORE and isinstance(spec, Mapping):
        spec = _known_part(BatchedAPI.model_fields["spec"], spec, "spec", warn)
    try:
        return BatchedAPI.model_validate(
            {"metadata": metadata, "spec": spec}, context={STORED: stored}
        )
    except ValidationError as error:
        raise ManifestError(tuple(_problem(detail) for detail in error.errors())) from error


def _problem(detail: Any) -> str:
    place = ".".join(str(part) for part in detail["loc"])
    if detail["type"] == "rule":  # the message of a rule carries its own paths
        return str(detail["msg"])
    if detail["type"] == "extra_forbidden":
        return f"{place}: unknown field; see the reference of {contract.KIND} for the known ones"
    if detail["type"] == "missing":
        return f"{place}: required, but missing"
    message = str(detail["msg"]).removeprefix("Value error, ")
    if (
        detail["type"] in {"greater_than_equal", "less_than_equal"}
        and type(detail["input"]) is not int
    ):
        message += " seconds"  # every bounded number that is no integer is a duration
    return f"{place}: {message}" + ("" if "got" in message else f", got {detail['input']!r:.100}")


def _known_part(
    field: FieldInfo, value: Mapping[str, Any], path: str, warn: Callable[[str], None]
) -> JsonObject:
    """`value` without the members that the model of `field` does not have."""
    model = _model_of(field.annotation)
    if model is None:
        return dict(value)
    fields = {field.alias or name: field for name, field in model.model_fields.items()}
    kept: JsonObject = {}
    for key, member in value.items():
        if key not in fields:
            warn(f"{path}.{key}: unknown field ignored; this version does not have it")
        elif isinstance(member, Mapping):
            kept[key] = _known_part(fields[key], member, f"{path}.{key}", warn)
        elif isinstance(member, list):
            kept[key] = [
                _known_part(fields[key], one, f"{path}.{key}.{index}", warn)
                if isinstance(one, Mapping)
                else one
                for index, one in enumerate(member)
            ]
        else:
            kept[key] = member
    return kept


def _model_of(annotation: Any) -> type[BaseModel] | None:
    for candidate in (annotation, *get_args(annotation)):
        if isinstance(candidate, type) and issubclass(candidate, BaseModel):
            return candidate
    return None


def with_changes(api: BatchedAPI, changes: Mapping[str, Mapping[str, Any]]) -> BatchedAPI:
    """`api` with other values, checked like a manifest in which they had been written.

    Args:
        api: As parsed.
        changes: Section of `spec` -> field -> value as in a manifest.

    Raises:
        ManifestError: the values are not possible, or not beside the others.
    """
    spec = api.spec.model_dump(mode="json", by_alias=True, exclude_unset=True, exclude_none=True)
    for section, fields in changes.items():
        spec[section] = {**spec.get(section, {}), **fields}
    try:
        return BatchedAPI.model_validate({"metadata": api.metadata.model_dump(), "spec": spec})
    except ValidationError as error:
        raise ManifestError(tuple(_problem(detail) for detail in error.errors())) from error


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
    return {
        "apiVersion": contract.API_VERSION,
        "kind": contract.KIND,
        "metadata": {"name": api.metadata.name},
        "spec": {
            "predictor": predictor,
            "serverSideBatching": _told(spec.server_side_batching),
            "overload": _told(spec.overload),
            "networking": {**_told(spec.networking), "endpoint": api.endpoint},
        },
    }


_NOT_FOR_REPLICAS: Final = ("source", "image", "env")
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
