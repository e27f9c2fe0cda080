"""Kubernetes events: what a user who runs `kubectl describe` should read about an API."""

import logging
import uuid
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final, Literal

from batchedapi_core import contract
from batchedapi_core.canary import Promote
from batchedapi_core.manifest import ConditionType
from batchedapi_core.redaction import for_people
from batchedapi_operator.cluster import EVENTS, JsonObject, ObjectKey, listed, micro_time, section
from batchedapi_operator.errors import ApplyError
from batchedapi_operator.kube import Kube
from batchedapi_operator.resources.revised import GivenUp

log = logging.getLogger(__name__)

NOTE_LENGTH: Final = 1024
"""In bytes; the apiserver refuses longer notes, and calls it characters."""


@dataclass(frozen=True, slots=True)
class Note:
    """An event before it is given a name and a time."""

    type: Literal["Normal", "Warning"]
    reason: str
    action: str
    text: str


def notes_of(
    before: Mapping[str, Any],
    after: Mapping[str, Any],
    given_up: GivenUp | None = None,
    taken: Promote | None = None,
) -> tuple[Note, ...]:
    """Events for the changes of a status that are worth one."""
    notes = []
    old, new = section(before, "revision"), section(after, "revision")
    if new.get("rolledBack"):
        if given_up is not None and new["rolledBack"] != old.get("rolledBack"):
            notes.append(Note("Warning", "RolledBack", "RollBack", given_up.told))
    elif new.get("canary"):
        if new["canary"] != old.get("canary"):
            text = f"revision {new['canary']} is tried beside {new['current']}"
            notes.append(Note("Normal", "CanaryRuns", "RollOut", text))
    elif new.get("current") and new["current"] != old.get("current"):
        text, reason = f"revision {new['current']}, image {new['image']}", "NewRevision"
        if taken is not None and new["current"] == old.get("canary"):
            text, reason = f"{text}: {taken.why}", "Promoted"
        notes.append(Note("Normal", reason, "RollOut", text))
    for kind, reason in (
        (ConditionType.SPEC_VALID, "SpecRefused"),
        (ConditionType.MODEL_LOADED, "ModelFailed"),
        (ConditionType.COMPARED, "RolloutHeld"),
    ):
        was, found = _condition(before, kind), _condition(after, kind)
        failed = found.get("status") == "False"
        if failed and (was.get("status"), was.get("reason")) != ("False", found["reason"]):
            text = f"{found['reason']}: {found['message']}"
            notes.append(Note("Warning", reason, "Reconcile", text))
    return tuple(notes)


def _condition(status: Mapping[str, Any], kind: ConditionType) -> Mapping[str, Any]:
    found = [one for one in listed(status, "conditions") if one["type"] == kind]
    return found[0] if found else {}


async def record(
    cluster: Kube, notes: Iterable[Note], key: ObjectKey, uid: str, now: datetime
) -> None:
    """Write them, if that can be done, once: what cannot be written is told by the status, too.

    Args:
        now: When what they tell of came about; it may have been a while ago.
    """
    for note in notes:
        event = build_event(note, key, uid, micro_time(now), uuid.uuid4().hex[:16])
        try:
            await cluster.create_event(event)
        except ApplyError as error:
            log.warning("event not written", extra={"api": str(key), "error": error.message})
        else:
            log.info("event", extra={"api": str(key), "reason": note.reason, "note": note.text})


def build_event(note: Note, key: ObjectKey, uid: str, now: str, suffix: str) -> JsonObject:
    """The Event object; `now` is RFC 3339 with microseconds, `suffix` makes its name unique."""
    return {
        "apiVersion": EVENTS.api_version,
        "kind": EVENTS.kind,
        "metadata": {"name": f"{key.name}.{suffix}", "namespace": key.namespace},
        "eventTime": now,
        "reportingController": f"{contract.GROUP}/operator",
        "reportingInstance": contract.MANAGED_BY,
        "action": note.action,
        "reason": note.reason,
        "type": note.type,
        "note": for_people(note.text).encode()[:NOTE_LENGTH].decode(errors="ignore"),
        "regarding": {
            "apiVersion": contract.API_VERSION,
            "kind": contract.KIND,
            "name": key.name,
            "namespace": key.namespace,
            "uid": uid,
        },
    }
