"""Flags and environment variables, as if they had been written in the manifest.

A flag beats the manifest; the environment fills what the manifest does not say. Both are checked
by the manifest's own rules, and so are variables that a cluster takes from ConfigMaps and Secrets.
"""

import json
import logging
import math
from collections.abc import Mapping, MutableMapping
from dataclasses import dataclass

from batchedapi_core import contract
from batchedapi_core.batching import Strategy
from batchedapi_core.manifest import (
    BatchedAPI,
    ManifestError,
    Predictor,
    PredictorEnv,
    format_duration,
    with_changes,
)
from batchedapi_serving.errors import LoadError

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Flags:
    """Options of the command line that stand for fields; None: not given."""

    processes: int | str | None = None
    web_processes: int | None = None
    production: bool = False


def in_effect(
    api: BatchedAPI, flags: Flags, environment: Mapping[str, str], cpus: int
) -> BatchedAPI:
    """`api` with the values that the command line and the environment put in place of its own.

    Args:
        environment: Of this process; `predictor.env` counts too, as both are one in a cluster.
        cpus: For `cpu_count` and `--production`.

    Raises:
        ManifestError: a value is not possible, or not beside the others.
    """
    api = _with_batcher(api, {**api.spec.predictor.variables, **environment})
    changes: dict[str, int | str] = {}
    if flags.processes is not None:
        changes["processesPerReplica"] = flags.processes
    if flags.web_processes is not None:
        changes["webProcesses"] = flags.web_processes
    elif flags.production:
        changes["webProcesses"] = min(cpus, contract.MAX_WEB_PROCESSES)
    return with_changes(api, {"predictor": changes}) if changes else api


def _with_batcher(api: BatchedAPI, environment: Mapping[str, str]) -> BatchedAPI:
    """`api` with the size and the interval of the environment, where it has none of its own."""
    size, interval = (
        environment.get(name, "") for name in (contract.ENV_BATCH_SIZE, contract.ENV_BATCH_TIME)
    )
    told, batching = [], api.spec.server_side_batching
    filled: dict[str, int | str] = {}
    if size and batching.max_batch_size is None:
        told.append(f"{contract.ENV_BATCH_SIZE}={size}")
        filled["maxBatchSize"] = int(_number(contract.ENV_BATCH_SIZE, size, whole=True))
    if interval and "batch_interval" not in batching.model_fields_set:
        told.append(f"{contract.ENV_BATCH_TIME}={interval}")
        seconds = _number(contract.ENV_BATCH_TIME, interval, whole=False)
        filled["batchInterval"] = format_duration(seconds)
    if not filled:
        return api
    if "strategy" not in batching.model_fields_set:
        # They come from a batcher that knows no other: full, or the time is up.
        filled["strategy"] = Strategy.FIXED.value
    try:
        return with_changes(api, {"serverSideBatching": filled})
    except ManifestError as error:
        said = " ".join(told)
        raise ManifestError(tuple(f"{one} ({said})" for one in error.problems)) from error


def take_sources(environment: MutableMapping[str, str]) -> None:
    """Give the keys of `predictor.envFrom` their own names, as the manifest's rules allow it.

    Args:
        environment: Of this process, as the operator made it; nothing is left in it of how the
            keys came.

    Raises:
        LoadError: a key must not be set; says which, and nothing of its value.
    """
    about = json.loads(environment.pop(contract.ENV_SOURCES, '{"sources": [], "env": []}'))
    found: dict[str, str] = {}
    for index, source in enumerate(about["sources"]):
        head = contract.source_prefix(index)
        for waiting in [name for name in environment if name.startswith(head)]:
            name, value = waiting.removeprefix(head), environment.pop(waiting)
            variable = PredictorEnv.model_construct(name=name, value=value)
            for rule in PredictorEnv.rules:
                if not rule.check(variable):
                    text = f"{source} has {name}, which is refused as in env: {rule.message}"
                    raise LoadError("InitFailed", text)
            found[name] = value
    environment.update({name: found[name] for name in found.keys() - {*about["env"]}})


def check_sources(predictor: Predictor, environment: Mapping[str, str]) -> None:
    """See that variables which only a cluster fills in are set where there is none.

    Raises:
        LoadError: one is missing.
    """
    for index, variable in enumerate(predictor.env):
        source = variable.value_from
        if source is None or variable.name in environment:
            continue
        of_key = source.secret_key_ref or source.config_map_key_ref
        if of_key is None or not of_key.optional:
            raise LoadError(
                "InitFailed",
                f"spec.predictor.env[{index}].valueFrom: a cluster fills in {variable.name}, and"
                f" there is none here; set it yourself, {variable.name}=... before the command",
            )
    for index, listed in enumerate(predictor.env_from):
        named = listed.secret_ref or listed.config_map_ref
        log.warning(
            "a cluster sets variables of this source; here those of the environment are used",
            extra={"source": f"spec.predictor.envFrom[{index}]", "object": named and named.name},
        )


def _number(name: str, text: str, *, whole: bool) -> float:
    try:
        value = int(text) if whole else float(text)
    except ValueError:
        value = math.nan
    if not math.isfinite(value) or value < 0:  # the upper bounds are the manifest's
        expected = "a whole number of rows" if whole else "seconds, such as 0.01"
        raise ManifestError((f"environment variable {name}: expected {expected}, got {text!r}",))
    return value
