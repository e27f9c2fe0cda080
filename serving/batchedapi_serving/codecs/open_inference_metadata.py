"""The server and its methods, as the Open Inference Protocol and KServe's v1 describe them.

A method is a model to them: `iris` is the default method of the API iris, `iris.embed` its method
embed. There is one version of each.

Clients made for Triton ask for a model's configuration and its statistics too: what is the largest
batch, how long is waited for it, how long did requests wait and run. The members are Triton's, as
far as there is something here to say; they are those of JSON and of the messages over gRPC.
"""

from collections.abc import Mapping, Sequence
from importlib.metadata import version
from typing import Any, Final

from batchedapi_serving.codecs.open_inference_tensors import BYTES
from batchedapi_serving.errors import NoSuchRouteError
from batchedapi_serving.metrics import slots
from batchedapi_serving.predictor import SINGLE_INPUT, SINGLE_OUTPUT, MethodSpec, Tensor
from batchedapi_serving.settings import MethodSettings

MODEL_VERSION: Final = "1"
"""A replica serves one revision; which one is the business of whoever routes to it."""
EXTENSIONS: Final = ("binary_tensor_data", "model_configuration", "statistics")
_NAME: Final = "batchedapi"
_PLATFORM: Final = "python"
_DEFAULT: Final = "predict"
_ANY: Final = -1


def model_name(api_name: str, method: str) -> str:
    """The name of a method of an API as a model."""
    return api_name if method == _DEFAULT else f"{api_name}.{method}"


def method_of_model(api_name: str, model: str, model_version: str = "") -> str | None:
    """The method that a model name means; None: the default one.

    Args:
        model_version: As the client wrote it; empty: none.

    Raises:
        NoSuchRouteError: another API's name, or a version that there is not.
    """
    if model_version not in ("", MODEL_VERSION):
        raise NoSuchRouteError(
            f"no version {model_version!r:.40} of model {model!r:.80}: there is {MODEL_VERSION}"
        )
    if model == api_name:
        return None
    api, _, method = model.rpartition(".")
    if api == api_name and method:
        return method
    raise NoSuchRouteError(
        f"no model {model!r:.80}: there is {api_name}, and {api_name}.METHOD for each method"
    )


def server_metadata() -> dict[str, Any]:
    """The document of `GET /v2`."""
    return {"name": _NAME, "version": version(_NAME), "extensions": list(EXTENSIONS)}


def model_metadata(model: str, method: MethodSpec) -> dict[str, Any]:
    """The document of `GET /v2/models/MODEL`.

    Outputs that a predictor has not declared are not listed: nothing is known of them before its
    first answer.
    """
    items = {} if method.inputs else {SINGLE_OUTPUT: BYTES}
    return {
        "name": model,
        "versions": [MODEL_VERSION],
        "platform": _PLATFORM,
        "inputs": _tensors(method.inputs, {} if method.inputs else {SINGLE_INPUT: BYTES}),
        "outputs": _tensors(method.outputs, items),
    }


def _tensors(declared: Mapping[str, Tensor], items: Mapping[str, str]) -> list[dict[str, Any]]:
    tensors = [
        {
            "name": name,
            "datatype": tensor.dtype,
            "shape": [_ANY, *(n if isinstance(n, int) else _ANY for n in tensor.shape)],
        }
        for name, tensor in declared.items()
    ]
    return tensors or [
        {"name": name, "datatype": datatype, "shape": [_ANY]} for name, datatype in items.items()
    ]


_OK: Final = 200
_NANOSECONDS: Final = 1e9
_TEXT: Final = "TYPE_STRING"
"""Triton's word for BYTES in a configuration."""


def model_config(
    model: str, method: MethodSpec, settings: MethodSettings, lanes: int
) -> dict[str, Any]:
    """The document of `GET /v2/models/MODEL/config`.

    Args:
        method: With the largest batch in effect.
        lanes: Batches that the replica runs at once.
    """
    batching = settings.batching
    items = {} if method.inputs else {SINGLE_INPUT: BYTES}
    answers = {} if method.inputs else {SINGLE_OUTPUT: BYTES}
    config: dict[str, Any] = {
        "name": model,
        "platform": "python",
        "backend": "python",
        "max_batch_size": method.max_batch_size,
        "input": _configured(method.inputs, items),
        "output": _configured(method.outputs, answers),
        "instance_group": [{"name": model, "kind": "KIND_AUTO", "count": lanes}],
    }
    if method.batched and method.max_batch_size > 1:
        config["dynamic_batching"] = {
            "preferred_batch_size": [],
            "max_queue_delay_microseconds": round(1e6 * batching.batch_interval),
        }
    return config


def _configured(declared: Mapping[str, Tensor], items: Mapping[str, str]) -> list[dict[str, Any]]:
    """One row of each, as Triton has it: the dimension of rows is left out."""
    found: list[dict[str, Any]] = [
        {
            "name": name,
            "data_type": f"TYPE_{tensor.dtype}",
            "dims": [n if isinstance(n, int) else _ANY for n in tensor.shape],
        }
        for name, tensor in declared.items()
    ]
    return found or [{"name": name, "data_type": _TEXT, "dims": []} for name in items]


def model_statistics(model: str, block: Sequence[float]) -> dict[str, Any]:
    """One member of `model_stats` in the document of `GET /v2/models/MODEL/stats`.

    Since the replica started. Times are sums in nanoseconds. One histogram has the times of all
    requests, so those of failed ones are under `success` too. What moves rows to the model process
    and back is in `compute_infer`, where a row counts with the time of its whole batch.

    Args:
        block: The method's slots in the metrics memory.
    """
    answered = {code: block[slot] for code, slot in slots.CODE_SLOT.items()}
    rows = block[slots.BATCH_ROWS + slots.SIZE_SUM]
    waits = block[slots.QUEUE_WAIT : slots.QUEUE_WAIT + slots.LATENCY_SUM]
    batches = block[slots.BATCH_ROWS : slots.BATCH_ROWS + slots.SIZE_SUM]
    whole = block[slots.REQUEST_SECONDS + slots.LATENCY_SUM]
    queued = block[slots.QUEUE_WAIT + slots.LATENCY_SUM]
    return {
        "name": model,
        "version": MODEL_VERSION,
        "inference_count": int(rows),
        "execution_count": int(sum(batches)),
        "inference_stats": {
            "success": _duration(answered[_OK], whole),
            "fail": _duration(sum(answered.values()) - answered[_OK], 0.0),
            "queue": _duration(sum(waits), queued),
            "compute_input": _duration(rows, 0.0),
            "compute_infer": _duration(rows, block[slots.ROW_SECONDS]),
            "compute_output": _duration(rows, 0.0),
        },
    }


def _duration(count: float, seconds: float) -> dict[str, int]:
    return {"count": int(count), "ns": round(seconds * _NANOSECONDS)}
