"""A revision: the serving slice and a copy of the user's source in one immutable ConfigMap.

The last good revision goes on serving whatever is edited or deleted elsewhere.
"""

from base64 import b64decode
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

import yaml

from batchedapi_core import contract
from batchedapi_core.manifest import BatchedAPI, Pod, serving_slice
from batchedapi_operator.cluster import CONFIG_MAPS, JsonObject, listed, section
from batchedapi_operator.errors import InvalidSpecError
from batchedapi_operator.resources import annotate, head, labels, record_name, revision_name
from batchedapi_operator.resources.setting import (
    NO_DEFAULTS,
    Running,
    asked_parts,
    digest_of,
    setting_digest,
)

NOTHING_MADE: Final[Mapping[str, str]] = {}
MOST_BYTES: Final = 1024 * 1024
"""Limit for the values of one ConfigMap, by the apiserver's own rule."""


@dataclass(frozen=True, slots=True)
class Revision:
    """Files and defaults of replicas; another content is another revision, and rolls the pods."""

    name: str
    """Name of its ConfigMap."""
    digest: str
    data: Mapping[str, str]
    binary_data: Mapping[str, str] = field(default_factory=dict)
    """Base64, as in the user's ConfigMap."""
    defaults: Pod = NO_DEFAULTS
    """Defaults of the day on which it was first seen: they lie under the settings of its pods."""


def revision_of(
    api: BatchedAPI,
    data: Mapping[str, str],
    binary_data: Mapping[str, str],
    running: Running | None = None,
    defaults: Pod = NO_DEFAULTS,
    *,
    made: Mapping[str, str] = NOTHING_MADE,
) -> Revision:
    """The revision that `api` asks for with the source it has now.

    The manifest's image takes part in the hash: leaving it out later must give a revision of its
    own, else the image pinned for the old one would stay.

    The setting does from the first change on: the first revision of an API is named by its files
    and image alone, as every revision once was, keeps that name while its setting stays, and
    has it again when it comes back.

    Args:
        api: The manifest.
        data: The files of its source.
        binary_data: Those that are no text, as base64.
        running: What its pods are made with; None: it has never had any.
        defaults: Today's, for what lies under the settings of the pods of another revision.
        made: Digests of revisions that are there, each with that of its setting.

    Raises:
        InvalidSpecError: The source has a key that the manifest of the replica needs, or both
            together are more than a ConfigMap may have.
    """
    if contract.MANIFEST_FILE in data or contract.MANIFEST_FILE in binary_data:
        raise InvalidSpecError(
            "Invalid",
            f"spec.predictor.source.configMap: the key {contract.MANIFEST_FILE} is reserved for the"
            " manifest of the replica; rename that file",
        )
    manifest = serving_slice(api)
    hashed: list[object] = [manifest, api.spec.predictor.image, dict(data), dict(binary_data)]
    model = api.spec.predictor.model
    if model is not None and (mounted := model.claim or model.image):
        hashed.append(mounted)  # the slice names the folder that it is mounted at alone
    digest = ""
    if running is not None and running.defaults is not None:
        digest = _named(hashed, api.with_pod_defaults(running.defaults), running, made)
        if digest == running.digest:
            defaults = running.defaults
    if running is None or digest != running.digest:
        digest = _named(hashed, api.with_pod_defaults(defaults), running, made)
    files = {contract.MANIFEST_FILE: yaml.safe_dump(manifest, sort_keys=True), **data}
    size = sum(len(text.encode()) for text in files.values())
    size += sum(len(b64decode(text)) for text in binary_data.values())
    if size > MOST_BYTES:
        raise InvalidSpecError(
            "Invalid",
            "spec.predictor.config, the rest of the manifest and the files of"
            f" spec.predictor.source.configMap must not have more than {MOST_BYTES} bytes together,"
            f" and have {size}: put large files into spec.predictor.image, weights into"
            " spec.predictor.model",
        )
    return Revision(
        name=revision_name(api.metadata.name, digest),
        digest=digest,
        data=files,
        binary_data=binary_data,
        defaults=defaults,
    )


def _named(
    hashed: list[object], api: BatchedAPI, running: Running | None, made: Mapping[str, str]
) -> str:
    """The digest of the revision with those files that `api`, defaults included, asks for."""
    digest = digest_of(hashed)
    kept = running is None or running.setting is None or running.setting.is_that_of(api)
    comes_back = made.get(digest) == setting_digest(api)
    if running is None or (kept and running.digest == digest) or comes_back:
        return digest
    return digest_of([*hashed, asked_parts(api)])


def build_config_map(api: BatchedAPI, revision: Revision) -> JsonObject:
    """The ConfigMap of `revision`, to be mounted at contract.MANIFEST_DIRECTORY."""
    body = headed(api, revision.name)
    body |= {"immutable": True, "data": dict(revision.data)}
    if revision.binary_data:
        body["binaryData"] = dict(revision.binary_data)
    return body


def headed(api: BatchedAPI, name: str, setting: str = "") -> JsonObject:
    """The revision of that name without its data; a digest of its setting may be empty."""
    body = head(api, CONFIG_MAPS, name)
    body["metadata"]["labels"][contract.LABEL_REVISION] = digest_in(name)
    annotate(body, {contract.ANNOTATION_SETTING: setting} if setting else {})
    return body


def build_record(api: BatchedAPI) -> JsonObject:
    """The ConfigMap for what each minute brought, without that; it goes with the API, too.

    The label or a controller would make it one of the revisions of the API.
    """
    body = head(api, CONFIG_MAPS, record_name(api.metadata.name))
    del body["metadata"]["labels"][contract.LABEL_API]
    for owner in body["metadata"]["ownerReferences"]:
        del owner["controller"], owner["blockOwnerDeletion"]
    return body


def digest_in(name: str) -> str:
    """The digest that a revision's name ends in."""
    return name.rpartition("-")[2]


def as_made(found: JsonObject, api_name: str, uid: str) -> bool:
    """Whether the labels and the owner of a revision are still those that it was made with."""
    metadata = found["metadata"]
    wanted = {**labels(api_name), contract.LABEL_REVISION: digest_in(metadata["name"])}
    owner = {"kind": contract.KIND, "name": api_name, "uid": uid, "controller": True}
    return wanted.items() <= section(metadata, "labels").items() and any(
        owner.items() <= one.items() for one in listed(metadata, "ownerReferences")
    )
