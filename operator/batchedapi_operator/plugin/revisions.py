"""Revisions that an API has had, and the way back to one of them. Pure.

They are the ReplicaSets of its Deployment, with the number that Kubernetes gives them: it is given
anew when one comes back.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Self

from batchedapi_core import contract
from batchedapi_core.manifest import ConditionType
from batchedapi_core.manifest.document import OF_ADDRESSES
from batchedapi_operator.cluster import JsonObject, listed, section
from batchedapi_operator.plugin.why import table
from batchedapi_operator.resources.configmap import digest_in
from batchedapi_operator.resources.revised import SECTIONS, number_of, of_replica_set, revised

_MOST_PATHS: Final = 3
_HEAD: Final = ("REVISION", "DIGEST", "CREATED", "READY", "COMPARED", "CHANGED")


class NoWayBackError(Exception):
    """There is no such revision to go back to; says why."""


@dataclass(frozen=True, slots=True)
class RolledOut:
    """A revision that has had pods, or has them."""

    number: int
    digest: str
    created: str
    """RFC 3339."""
    pods: int
    ready: int
    spec: JsonObject | None
    """See `revised`; None: nobody knows any more."""

    @classmethod
    def of(cls, body: JsonObject) -> Self:
        """From a ReplicaSet's body."""
        metadata, status = body["metadata"], section(body, "status")
        return cls(
            number=number_of(metadata),
            digest=section(metadata, "labels").get(contract.LABEL_REVISION, ""),
            created=metadata.get("creationTimestamp") or "",
            pods=status.get("replicas", 0),
            ready=status.get("readyReplicas", 0),
            spec=of_replica_set(metadata),
        )


def rolled_out(sets: Iterable[JsonObject], name: str) -> list[RolledOut]:
    """Those of the Deployment of that name, the newest first."""
    owner = {"kind": "Deployment", "name": name, "controller": True}
    ours = (
        RolledOut.of(one)
        for one in sets
        if any(owner.items() <= by.items() for by in listed(one["metadata"], "ownerReferences"))
    )
    return sorted(ours, key=lambda one: one.number, reverse=True)


def as_rows(revisions: Sequence[RolledOut], status: JsonObject) -> list[JsonObject]:
    """For programs, and for `as_table`; the condition Compared is about the newest."""
    told = listed(status, "conditions")
    compared = [one["reason"] for one in told if one["type"] == ConditionType.COMPARED]
    return [
        {
            "revision": one.number,
            "digest": one.digest,
            "created": one.created,
            "pods": one.pods,
            "ready": one.ready,
            "compared": compared[0] if compared and one is revisions[0] else None,
            "changed": None if before is None else _changed(before, one),
        }
        for one, before in zip(revisions, (*revisions[1:], None), strict=False)
    ]


def as_table(rows: Iterable[JsonObject]) -> list[str]:
    """A line for each, under a head."""
    return table(
        _HEAD,
        [
            (
                str(row["revision"]),
                row["digest"],
                row["created"],
                f"{row['ready']}/{row['pods']}",
                row["compared"] or "-",
                "-" if row["changed"] is None else _few(row["changed"]),
            )
            for row in rows
        ],
    )


def _few(paths: Sequence[str]) -> str:
    more = len(paths) - _MOST_PATHS
    return ", ".join((*paths[:_MOST_PATHS], *([f"{more} more"] if more > 0 else [])))


def _changed(before: RolledOut, after: RolledOut) -> list[str]:
    if before.spec is None or after.spec is None:
        return ["not known"]
    found = changes(before.spec, after.spec)
    if found:
        return found
    return ["its pods alone" if before.digest == after.digest else "files of predictor.source"]


def changes(before: Mapping[str, Any], after: Mapping[str, Any], within: str = "") -> list[str]:
    """Paths of the fields that are not the same in both."""
    found = list[str]()
    for name in sorted({*before, *after}):
        one, other = before.get(name), after.get(name)
        if isinstance(one, dict) and isinstance(other, dict):
            found += changes(one, other, f"{within}{name}.")
        elif one != other:
            found.append(f"{within}{name}")
    return found


def chosen(revisions: Sequence[RolledOut], api: JsonObject, to: str | None) -> RolledOut:
    """The revision of that number or digest, else the newest that is not what `api` asks for.

    It asks for the newest of all, or for the one that autoRollback has given up.

    Raises:
        NoWayBackError: there is none, or nobody knows its spec any more.
    """
    if to is None:
        given_up = section(section(api, "status"), "revision").get("rolledBack")
        newest = [one.digest for one in revisions[:1]]
        asked = ([digest_in(given_up)] if given_up else newest, revised(section(api, "spec")))
        found = [one for one in revisions if ([one.digest], one.spec) != asked]
    else:
        found = [one for one in revisions if to in {str(one.number), one.digest}]
    if not found:
        known = ", ".join(str(one.number) for one in revisions) or "none"
        wanted = "other revision" if to is None else f"revision {to}"
        raise NoWayBackError(f"there is no {wanted}; there are: {known}")
    if found[0].spec is None:
        raise NoWayBackError(
            f"the spec of revision {found[0].number} was not kept, as it is from before an upgrade"
            " or too long: apply its manifest"
        )
    return found[0]


def files_of(config_map: JsonObject) -> list[JsonObject]:
    """Files for a predictor: texts, and others."""
    data = section(config_map, "data").items()
    texts = {name: text for name, text in data if name != contract.MANIFEST_FILE}
    return [texts, section(config_map, "binaryData")]


def sections_of(spec: JsonObject, revision: RolledOut, copy_in: str | None = None) -> JsonObject:
    """The sections of a spec as they were in a revision, with addresses as they are in `spec`.

    Args:
        spec: As it is now.
        revision: One whose spec is known.
        copy_in: The ConfigMap with its files, where its source has others by now.
    """
    wanted: JsonObject = {name: {} for name in SECTIONS if name in spec} | (revision.spec or {})
    if copy_in is not None:
        wanted["predictor"] = {**wanted["predictor"], "source": {"configMap": copy_in}}
    networking = section(spec, "networking").items()
    addresses = {name: value for name, value in networking if name in OF_ADDRESSES}
    wanted["networking"] = {**section(wanted, "networking"), **addresses}
    return wanted
