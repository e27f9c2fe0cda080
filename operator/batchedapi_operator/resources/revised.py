"""The part of a spec that a revision is made of, as its Deployment's ReplicaSets remember it.

The Deployment has it in an annotation, which its controller copies to the newest ReplicaSet. So
`kubectl batchedapi history` and `rollback` know what each of them was made of.
"""

import json
from typing import Any, Final

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
    text = section(metadata, "annotations").get(contract.ANNOTATION_SPEC)
    try:
        found: Any = json.loads(text or "null")
    except ValueError:  # somebody else's
        return None
    return found if isinstance(found, dict) else None
