"""The demand that was recorded once more, with the settings as they are and with others. Pure."""

from collections.abc import Mapping, Sequence
from copy import deepcopy
from typing import Any, Final

import yaml

from batchedapi_core.manifest import (
    BatchedAPI,
    InEffect,
    ManifestError,
    UnknownFields,
    parse_api,
    parse_duration,
    with_changes,
)
from batchedapi_core.scaling.minutes import Minute
from batchedapi_core.scaling.state import ScalingState
from batchedapi_core.simulated import NotReplayedError, replay, startup_of
from batchedapi_operator.cluster import JsonObject, section
from batchedapi_operator.plugin.why import table


class SettingFormError(ValueError):
    """A text that sets no field of autoscaling."""


REFUSALS: Final = (SettingFormError, NotReplayedError, ManifestError)


def changed(api: BatchedAPI, document: Mapping[str, Any], settings: Sequence[str]) -> BatchedAPI:
    """The API with `autoscaling.FIELD=VALUE`, each with a value as in a manifest.

    Raises:
        SettingFormError: One is not of that form.
        ManifestError: A value is not possible.
    """
    scaling = deepcopy(section(section(document, "spec"), "autoscaling"))
    for text in settings:
        path, _, value = text.partition("=")
        first, *fields = path.split(".")
        try:
            found = yaml.safe_load(value)
        except yaml.YAMLError:
            found = None
        if first != "autoscaling" or not fields or found is None:
            raise SettingFormError(
                "--set: expected autoscaling.FIELD=VALUE, such as autoscaling.maxReplicas=5, got"
                f" {text!r}; other sections are tried with `batchedapi simulate` and `tune`"
            )
        place = scaling
        for name in fields[:-1]:
            place[name] = place[name] if isinstance(place.get(name), dict) else {}
            place = place[name]
        place[fields[-1]] = found
    return with_changes(api, {"autoscaling": scaling})


def compared(
    document: Mapping[str, Any], settings: Sequence[str], minutes: Sequence[Minute]
) -> JsonObject:
    """What was recorded, and what comes of the same demand without and with the settings.

    Nothing of it without them where the API may have no replica.

    Raises:
        SettingFormError: See `changed`; ManifestError likewise.
        NotReplayedError: See `replay`.
    """
    status = section(document, "status")
    api = parse_api(document, UnknownFields.IGNORE, stored=True)
    learned = ScalingState.restored(section(status, "autoscaling").get("learned"))
    told = section(status, "effective")
    interval = told.get("batchInterval")
    said = InEffect(
        told.get("lanes"), told.get("maxBatchSize"), interval and parse_duration(interval)
    )
    apis = {"as it is": api, "changed": changed(api, document, settings)}
    if api.spec.autoscaling.min_replicas < 1:
        del apis["as it is"]  # `replay` takes the other alone, if it keeps a replica
    outcomes = {name: replay(one, said, learned, minutes) for name, one in apis.items()}
    least, most = startup_of(learned)
    return {
        "rows": sum(60.0 * (one.demand or 0.0) for one in minutes),
        "startup": f"{least:.0f} s to {most:.0f} s",
        "recorded": {
            "late": None,
            "replicaHours": sum(one.replicas for one in minutes) / 60.0,
            "most": max(one.most for one in minutes),
        },
        **{
            name: {
                "late": one.miss_fraction,
                "replicaHours": one.cost / 3600.0,
                "most": one.max_replicas,
            }
            for name, one in outcomes.items()
        },
    }


def compared_table(found: Mapping[str, Any]) -> list[str]:
    """A column for what was recorded, and one for each simulation."""
    columns = [name for name in ("recorded", "as it is", "changed") if name in found]
    parts = [found[name] for name in columns]
    late = ("-" if one["late"] is None else f"{100.0 * one['late']:.2f} %" for one in parts)
    lines = [
        ("late", *late),
        ("replica-hours", *(f"{one['replicaHours']:.1f}" for one in parts)),
        ("most replicas", *(str(one["most"]) for one in parts)),
    ]
    return table(("", *map(str.upper, columns)), lines)
