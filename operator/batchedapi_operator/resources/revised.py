"""The part of a spec that a revision is made of, as its Deployment's ReplicaSets remember it.

The Deployment has it in an annotation, which its controller copies to the newest ReplicaSet. So
`kubectl batchedapi history` and `rollback` know what each of them was made of.
"""

import json
from dataclasses import asdict, dataclass
from typing import Any, Final, Self

from batchedapi_core import contract
from batchedapi_core.manifest.document import OF_ADDRESSES
from batchedapi_operator.cluster import JsonObject, section

SECTIONS: Final = (
    "predictor", "serverSideBatching", "overload", "compute", "pod", "networking",
)  # fmt: skip
"""Fields of `spec`; the others change no replica."""
MOST_LENGTH: Final = 128 * 1024
"""Characters: all annotations of an object may have twice as many."""


def revised(spec: JsonObject) -> JsonObject:
    """The sections, without the addresses in `networking`."""
    found = {name: spec[name] for name in SECTIONS if spec.get(name)}
    networking = section(found, "networking")
    found["networking"] = {
        name: value for name, value in networking.items() if name not in OF_ADDRESSES
    }
    return found


def noted(spec: JsonObject) -> dict[str, str]:
    """The annotation; none where the spec is too long for one."""
    text = json.dumps(revised(spec), sort_keys=True)
    return {contract.ANNOTATION_SPEC: text} if len(text) <= MOST_LENGTH else {}


def of_replica_set(metadata: JsonObject) -> JsonObject | None:
    """The same, of a ReplicaSet; None: it is from before, or of a spec that was too long."""
    return _read(metadata, contract.ANNOTATION_SPEC)


def number_of(metadata: JsonObject) -> int:
    """The number of a ReplicaSet, which has the highest again when it comes back."""
    return int(section(metadata, "annotations").get("deployment.kubernetes.io/revision") or 0)


@dataclass(frozen=True, slots=True)
class GivenUp:
    """A rollout that did not move, as remembered by the Deployment, which went back."""

    revision: str
    """Name of the revision that was given up."""
    replica_set: str
    """Name of the one whose pods the Deployment has in its place."""
    why: str
    asked: str
    """Digest of all that was asked for."""

    @property
    def told(self) -> str:
        """What was given up, and what for."""
        return f"revision {self.revision}: {self.why}"

    @classmethod
    def of(cls, metadata: JsonObject) -> Self | None:
        """From a Deployment's metadata; None: its rollout was not given up."""
        found = _read(metadata, contract.ANNOTATION_GIVEN_UP) or {}
        try:
            return cls(*(str(found[name]) for name in cls.__slots__))
        except KeyError:
            return None

    def noted(self) -> dict[str, str]:
        """The annotation."""
        return {contract.ANNOTATION_GIVEN_UP: json.dumps(asdict(self), sort_keys=True)}


def _read(metadata: JsonObject, annotation: str) -> JsonObject | None:
    text = section(metadata, "annotations").get(annotation)
    try:
        found: Any = json.loads(text or "null")
    except ValueError:  # somebody else's
        return None
    return found if isinstance(found, dict) else None
