"""An object's metadata, as far as the apiserver judges what a user writes there."""

import re
from typing import Annotated, Final

from pydantic import AfterValidator, JsonValue

from batchedapi_core.manifest.rules import ManifestModel, Whole

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
