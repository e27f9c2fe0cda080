"""Flags and environment variables, as if they had been written in the manifest.

A flag beats the manifest; the environment fills what the manifest does not say. Both are checked
by the manifest's own rules.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass

from batchedapi_core import contract
from batchedapi_core.batching import Strategy
from batchedapi_core.manifest import BatchedAPI, ManifestError, format_duration, with_changes


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
        api: As written.
        flags: Of the command line.
        environment: Of this process; `predictor.env` counts too, as both are one in a cluster.
        cpus: For `cpu_count` and `--production`.

    Raises:
        ManifestError: a value is not possible, or not beside the others.
    """
    written = {variable.name: variable.value for variable in api.spec.predictor.env}
    api = _filled(api, {**written, **environment})
    changes: dict[str, int | str] = {}
    if flags.processes is not None:
        changes["processesPerReplica"] = flags.processes
    if flags.web_processes is not None:
        changes["webProcesses"] = flags.web_processes
    elif flags.production:
        changes["webProcesses"] = min(cpus, contract.MAX_WEB_PROCESSES)
    return with_changes(api, {"predictor": changes}) if changes else api


def _filled(api: BatchedAPI, environment: Mapping[str, str]) -> BatchedAPI:
    batching = api.spec.server_side_batching
    changes: dict[str, int | str] = {}
    told = []
    size, interval = (
        environment.get(name, "") for name in (contract.ENV_BATCH_SIZE, contract.ENV_BATCH_TIME)
    )
    if size and batching.max_batch_size is None:
        told.append(f"{contract.ENV_BATCH_SIZE}={size}")
        changes["maxBatchSize"] = int(_number(contract.ENV_BATCH_SIZE, size, whole=True))
    if interval and "batch_interval" not in batching.model_fields_set:
        told.append(f"{contract.ENV_BATCH_TIME}={interval}")
        seconds = _number(contract.ENV_BATCH_TIME, interval, whole=False)
        changes["batchInterval"] = format_duration(seconds)
    if not changes:
        return api
    if "strategy" not in batching.model_fields_set:
        # They come from a batcher that knows no other: full, or the time is up.
        changes["strategy"] = Strategy.FIXED.value
    try:
        return with_changes(api, {"serverSideBatching": changes})
    except ManifestError as error:
        said = " ".join(told)
        raise ManifestError(tuple(f"{one} ({said})" for one in error.problems)) from error


def _number(name: str, text: str, *, whole: bool) -> float:
    try:
        value = int(text) if whole else float(text)
    except ValueError:
        value = math.nan
    if not math.isfinite(value) or value < 0:  # the upper bounds are the manifest's
        expected = "a whole number of rows" if whole else "seconds, such as 0.01"
        raise ManifestError((f"environment variable {name}: expected {expected}, got {text!r}",))
    return value
