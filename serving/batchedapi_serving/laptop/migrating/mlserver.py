"""MLServer's model-settings.json: models of its own runtimes are served as they are."""

from collections.abc import Mapping
from typing import Any, Final

from batchedapi_core.model_format import ModelFormat
from batchedapi_serving.formats.interface import ends_of
from batchedapi_serving.laptop.migrating.migration import (
    IMAGE,
    Draft,
    Migration,
    Project,
    Rules,
    To,
    finished,
    model_uri,
    seconds,
    skeleton,
    text,
    whole,
)

MODEL_SETTINGS: Final = "model-settings.json"
_RUNTIMES: Final = {
    "mlserver_sklearn.SKLearnModel": ModelFormat.SKLEARN,
    "mlserver_xgboost.XGBoostModel": ModelFormat.XGBOOST,
    "mlserver_lightgbm.LightGBMModel": ModelFormat.LIGHTGBM,
    "mlserver_onnx.OnnxModel": ModelFormat.ONNX,
    "mlserver_huggingface.HuggingFaceRuntime": ModelFormat.HUGGINGFACE,
}
_RULES: Final[Rules] = {
    **dict.fromkeys(("name", "implementation", "platform", "versions")),
    **dict.fromkeys(("inputs", "outputs"), "the file says names, types and shapes itself"),
    "max_batch_size": To("serverSideBatching.maxBatchSize", whole),
    "max_batch_time": To("serverSideBatching.batchInterval", seconds),
    "parallel_workers": To("predictor.processesPerReplica", whole),
    "cache_enabled": "put a cache before the Service",
    "parameters": {
        "uri": None,
        "format": None,
        "version": "a manifest is one version; git keeps the others",
        "content_type": "requests say their types",
        "environment_tarball": IMAGE,
        "extra": {
            "task": To("predictor.config.task", text),
            "pretrained_model": To("predictor.model.uri", lambda name: model_uri(f"hf://{name}")),
            "*": "predictor.config is handed to a class",
        },
    },
}


def migrate(project: Project) -> Migration:
    """The model of one model-settings.json.

    Raises:
        MigrateError: it is no JSON.
    """
    draft = Draft(project.folder)
    settings = draft.mapping(next(iter(project.documents()), None), MODEL_SETTINGS)
    draft.name = str(settings.get("name") or project.folder)
    draft.take(settings, _RULES, "")
    if draft.whole(settings.get("max_batch_size", 0), 0, "max_batch_size") > 1:
        draft.set("serverSideBatching.strategy", "Fixed", "max_batch_size")
    else:  # a request is a batch
        draft.spec["serverSideBatching"] = {"maxBatchSize": 1, "sizeUnit": "Requests"}
        if settings.get("max_batch_time"):
            reason = "nothing waits where max_batch_size is not above 1"
            draft.tell("max_batch_time", reason, "set serverSideBatching if rows may share batches")
    runtime = str(settings.get("implementation"))
    parameters = settings.get("parameters")
    told = parameters.get("uri") if isinstance(parameters, Mapping) else None
    names = [f"model{end}" for end in ends_of(_RUNTIMES.get(runtime))]
    file = told or next((name for name in names if name in project.beside), None)
    draft.take(file, To("predictor.model.uri", lambda one: _uri(project, one)), "parameters.uri")
    if runtime not in _RUNTIMES:
        reason = f"expected {', '.join(_RUNTIMES)}, got {runtime}"
        draft.tell(
            "implementation", reason, "load the model in the class, and write what it answers"
        )
    if runtime not in _RUNTIMES or not draft.serve(_RUNTIMES[runtime], "parameters.uri"):
        draft.code = skeleton(draft.class_name)
    return finished(project, [draft], [str(file).removeprefix("./")])


def _uri(project: Project, file: Any) -> str:
    return model_uri(file if "://" in text(file) else project.uri_of(file))
