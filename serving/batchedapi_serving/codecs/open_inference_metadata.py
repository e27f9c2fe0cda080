"""What the Open Inference Protocol and KServe's v1 say about the server and its methods.

A method is a model to them: `iris` is the default method of the API iris, `iris.embed` its method
embed. There is one version of each.
"""

from collections.abc import Iterable, Mapping
from importlib.metadata import version
from typing import Any, Final

from batchedapi_serving.codecs.open_inference_tensors import BYTES
from batchedapi_serving.errors import NoSuchRouteError
from batchedapi_serving.predictor import SINGLE_INPUT, SINGLE_OUTPUT, MethodSpec, Tensor

MODEL_VERSION: Final = "1"
"""A replica serves one revision; which one is the business of whoever routes to it."""
EXTENSIONS: Final = ("binary_tensor_data", "model_configuration", "statistics")
_NAME: Final = "batchedapi"
_PLATFORM: Final = "python"
_DEFAULT: Final = "predict"
_ANY: Final = -1


def model_name(api_name: str, method: str) -> str:
    """What `method` of an API is called as a model."""
    return api_name if method == _DEFAULT else f"{api_name}.{method}"


def method_of_model(api_name: str, model: str, model_version: str = "") -> str | None:
    """The method that a model name means; None: the default one.

    Args:
        api_name: Of this replica.
        model: As the client wrote it.
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


def v1_live() -> dict[str, Any]:
    """The document of v1's `GET /`."""
    return {"status": "alive"}


def v1_models(models: Iterable[str]) -> dict[str, Any]:
    """The document of v1's `GET /v1/models`."""
    return {"models": list(models)}


def server_live(*, live: bool) -> dict[str, Any]:
    """The document of `GET /v2/health/live`, and with `live` false of one that is not."""
    return {"live": live}


def server_ready(*, ready: bool) -> dict[str, Any]:
    """The document of `GET /v2/health/ready`."""
    return {"ready": ready}


def model_ready(model: str, *, ready: bool) -> dict[str, Any]:
    """The document of `GET /v2/models/MODEL/ready`, and of v1's `GET /v1/models/MODEL`."""
    return {"name": model, "ready": ready}
